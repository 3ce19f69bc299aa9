"""Faults on demand, with unmodified clients of two libraries. Each test counts the hits of its rule."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.client import Client
from kproc.embedded import Broker
from kproc.wire.header import ApiKey
from tests.support.broker import forked_broker
from tests.support.faulted_clients import LIBRARIES, FaultedClient
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", "inline", slow=["thread"])]

each_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)


@pytest.fixture(scope="module")
def faulty(transport: str) -> Iterator[Broker]:
    """A broker of this file, with two Handlers where there can be several."""
    settings = {} if transport == "inline" else {"num.io.threads": 2, "num.network.threads": 1}
    with forked_broker()(settings, transport=transport) as running:
        yield running


@pytest.fixture
def orders(faulty: Broker) -> Iterator[str]:
    """A topic, and the check that a test leaves no rule."""
    name = fresh_name("orders")
    faulty.create_topic(name)
    yield name
    assert faulty.faults.list() == []


def stored(faulty: Broker, topic: str) -> list[bytes]:
    """All values of a topic with one partition, one record in each batch."""
    with Client.connect(faulty.host, faulty.port) as client:
        rows = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
        topics = [{"name": topic, "partitions": rows}]
        answer = client.call_latest(
            ApiKey.LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
        )
    count = answer["topics"][0]["partitions"][0]["offset"]
    return LIBRARIES["confluent"].consume(faulty.bootstrap, topic, count)


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


@each_library
def test_delayed_produce_is_stored_in_order(faulty: Broker, orders: str, library: FaultedClient) -> None:
    start_s = time.monotonic()
    with faulty.faults.delay("Produce", ms=300, topic=orders, times=1) as rule:
        assert library.produce(faulty.bootstrap, orders, [b"a", b"b"]) == ["", ""]
    assert rule.hits == 1
    assert time.monotonic() - start_s >= 0.3
    assert library.consume(faulty.bootstrap, orders, 2) == [b"a", b"b"]


@each_library
def test_closed_connection_is_retried(faulty: Broker, orders: str, library: FaultedClient) -> None:
    with faulty.faults.close("Produce", topic=orders, times=2) as rule:
        assert library.produce(faulty.bootstrap, orders, [b"a", b"b"]) == ["", ""]
    assert rule.hits == 2
    assert library.consume(faulty.bootstrap, orders, 2) == [b"a", b"b"]


@each_library
def test_dropped_request_times_out_and_is_retried(
    faulty: Broker, orders: str, library: FaultedClient
) -> None:
    with faulty.faults.drop_request("Produce", topic=orders, times=1) as rule:
        assert library.produce(faulty.bootstrap, orders, [b"a"], timeout_ms=1000) == [""]
    assert rule.hits == 1
    assert library.consume(faulty.bootstrap, orders, 1) == [b"a"]


@each_library
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "silent"])
def test_lost_answer_of_idempotent_producer_stores_record_once(
    faulty: Broker, orders: str, library: FaultedClient, closes: bool
) -> None:
    with faulty.faults.drop_answer("Produce", close=closes, topic=orders, times=1) as rule:
        assert library.produce(
            faulty.bootstrap, orders, [b"a", b"b"], timeout_ms=1000, enable_idempotence=True
        ) == ["", ""]
    assert rule.hits == 1
    assert stored(faulty, orders) == [b"a", b"b"]


@each_library
def test_lost_answer_without_idempotence_stores_record_twice(
    faulty: Broker, orders: str, library: FaultedClient
) -> None:
    with faulty.faults.drop_answer("Produce", close=True, topic=orders, times=1):
        library.produce(faulty.bootstrap, orders, [b"a", b"b"], enable_idempotence=False)
    assert stored(faulty, orders) == [b"a", b"a", b"b"]


@each_library
def test_delayed_answer_comes_after_the_work(faulty: Broker, orders: str, library: FaultedClient) -> None:
    with faulty.faults.delay_answer("Produce", ms=60_000, topic=orders, times=1) as rule:
        with ThreadPoolExecutor(1) as pool:
            produced = pool.submit(
                library.produce, faulty.bootstrap, orders, [b"a"], timeout_ms=1000, enable_idempotence=True
            )
            # The record can be read while its producer still waits.
            assert library.consume(faulty.bootstrap, orders, 1) == [b"a"]
            assert produced.result(PATIENCE_SECONDS) == [""]
        assert rule.hits == 1
    assert stored(faulty, orders) == [b"a"]


@each_library
def test_cut_answers_are_requested_again(faulty: Broker, orders: str, library: FaultedClient) -> None:
    with faulty.faults.cut_answer("Produce", topic=orders, times=1) as of_produce:
        library.produce(faulty.bootstrap, orders, [b"a" * 10_000, b"b"], enable_idempotence=True)
    # Above 8 KiB, the answer of a Fetch is a range of a file.
    with faulty.faults.cut_answer("Fetch", topic=orders, times=1) as of_fetch:
        assert library.consume(faulty.bootstrap, orders, 2) == [b"a" * 10_000, b"b"]
    assert (of_produce.hits, of_fetch.hits) == (1, 1)
    assert stored(faulty, orders) == [b"a" * 10_000, b"b"]


@each_library
def test_throttle_holds_back_the_next_request(faulty: Broker, orders: str, library: FaultedClient) -> None:
    start_s = time.monotonic()
    with faulty.faults.throttle("Produce", ms=400, topic=orders, times=1) as rule:
        assert library.produce(faulty.bootstrap, orders, [b"a", b"b"]) == ["", ""]
    assert rule.hits == 1
    assert time.monotonic() - start_s >= 0.4


@each_library
def test_client_follows_advertised_versions(faulty: Broker, orders: str, library: FaultedClient) -> None:
    library.produce(faulty.bootstrap, orders, [b"a"])
    with (
        faulty.faults.advertise({"Produce": (3, 7)}, client_id="faulted") as rule,
        faulty.faults.delay("Produce", ms=1, versions=(0, 7), topic=orders) as old,
        faulty.faults.delay("Produce", ms=1, versions=(8, 99), topic=orders) as new,
    ):
        assert library.produce(faulty.bootstrap, orders, [b"b"]) == [""]
        assert (old.hits, new.hits) == (1, 0)
    assert rule.hits >= 1
    assert library.consume(faulty.bootstrap, orders, 2) == [b"a", b"b"]


@each_library
def test_sync_group_error_lets_the_member_join_again(
    faulty: Broker, orders: str, library: FaultedClient
) -> None:
    group = fresh_name("group")
    library.produce(faulty.bootstrap, orders, [b"a"])
    with faulty.faults.fail("SyncGroup", group=group, error="REBALANCE_IN_PROGRESS", times=1) as rule:
        assert library.consume(faulty.bootstrap, orders, 1, group=group) == [b"a"]
    assert rule.hits == 1
    assert rule.matches >= 2
