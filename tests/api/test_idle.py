"""kproc.Broker.wait_until_idle: what keeps a broker busy, and what does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kproc.embedded import Broker
from kproc.wire.header import ApiKey
from tests.support.broker import forked_broker
from tests.support.raw import NO_TOPIC_ID, RawClient, batch, fetch_fields, produce_fields
from tests.support.topics import fresh_name

pytestmark = [pytest.mark.own_broker, pytest.mark.no_leak_guard]  # Dead roles get successors.


@pytest.fixture(scope="module")
def watched(fork_server: None) -> Iterator[Broker]:
    """A broker of this file with two Handlers that sync, so that a Fetch has parts at both."""
    settings = {"num.io.threads": 2, "kproc.flush": "group"}
    with forked_broker()(settings, transport="process") as running:
        yield running


def test_broker_with_long_polls_alone_is_idle(watched: Broker) -> None:
    topic = fresh_name("polled")
    watched.create_topic(topic, partitions=2)
    with RawClient(watched.bootstrap) as client, RawClient(watched.bootstrap) as producer:
        # A Fetch of both partitions waits at both Handlers, and counts once.
        wanted = [(topic, NO_TOPIC_ID, [(0, 0), (1, 0)])]
        client.send(ApiKey.FETCH, 12, fetch_fields(wanted, max_wait_ms=60_000))
        watched.wait_until_idle(30)
        watched.wait_until_idle(0)
        with watched.faults.delay_answer("Produce", ms=60_000, topic=topic):
            producer.send(ApiKey.PRODUCE, 9, produce_fields([(topic, NO_TOPIC_ID, [(0, batch(b"late"))])]))
            with pytest.raises(TimeoutError) as failure:
                watched.wait_until_idle(0.5)
    text = str(failure.value)
    assert text.startswith("the broker is not idle within 0.5 s:\n  +0.")
    assert "requests in progress, " in text
    watched.wait_until_idle(30)


def test_broker_is_idle_after_dead_roles_have_successors(watched: Broker) -> None:
    watched.kill_role("cleaner", wait=False)
    watched.wait_until_idle(30)
    watched.kill_role("handler", 1, wait=False)
    watched.wait_until_idle(30)
    topic = fresh_name("after")
    watched.create_topic(topic, partitions=2)


def test_broker_that_emulates_an_old_release_becomes_idle(fork_server: None) -> None:
    """Kafka 2.1 has no ListTransactions."""
    with forked_broker()(emulate="2.1", transport="inline") as old:
        old.wait_until_idle(30)
