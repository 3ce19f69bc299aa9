"""Faults on demand, with unmodified clients of two libraries. Each test counts the hits of its rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.embedded import Broker
from tests.support.faulted_clients import LIBRARIES, FaultedClient
from tests.support.topics import fresh_name

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", "inline", slow=["thread"])]

each_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)


@pytest.fixture(scope="module")
def faulty(transport: str) -> Iterator[Broker]:
    """A broker of this file, with two Handlers where there can be several."""
    settings = {} if transport == "inline" else {"num.io.threads": 2, "num.network.threads": 1}
    with Broker(settings, transport=transport) as running:
        yield running


@pytest.fixture
def orders(faulty: Broker) -> Iterator[str]:
    """A topic, and the check that a test leaves no rule."""
    name = fresh_name("orders")
    faulty.create_topic(name)
    yield name
    assert faulty.faults.list() == []


@each_library
def test_produce_is_retried_after_error_codes(faulty: Broker, orders: str, library: FaultedClient) -> None:
    with faulty.faults.fail("Produce", topic=orders, error="NOT_LEADER_OR_FOLLOWER", times=2) as rule:
        assert library.produce(faulty.bootstrap, orders, [b"a", b"b"]) == ["", ""]
    assert rule.counts == (4, 2)
    assert library.consume(faulty.bootstrap, orders, 2) == [b"a", b"b"]


@each_library
def test_fetch_error_codes_are_retried(faulty: Broker, orders: str, library: FaultedClient) -> None:
    library.produce(faulty.bootstrap, orders, [b"a", b"b", b"c"])
    with faulty.faults.fail("Fetch", topic=orders, error="NOT_LEADER_OR_FOLLOWER", times=2) as rule:
        assert library.consume(faulty.bootstrap, orders, 3) == [b"a", b"b", b"c"]
    assert rule.hits == 2
