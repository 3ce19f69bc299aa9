"""A full or broken disk on demand, with unmodified clients of two libraries, and the broker's recovery from it."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.client import ClientError
from kproc.embedded import Broker
from tests.support.broker import forked_broker
from tests.support.faulted_clients import LIBRARIES
from tests.support.status import status
from tests.support.wait import wait_until

pytestmark = [pytest.mark.clients, pytest.mark.own_broker, pytest.mark.transports("process")]

IMPATIENT: dict[str, Any] = {"retries": 1, "enable_idempotence": False}
"""Settings of producers that report the second error."""


@pytest.fixture
def broker(fork_server: None) -> Iterator[Broker]:
    with forked_broker()({"kproc.flush": "group", "num.io.threads": 2, "num.network.threads": 1}) as running:
        yield running


def test_full_disk_refuses_writes_until_the_rule_ends(broker: Broker) -> None:
    for name, library in LIBRARIES.items():
        broker.create_topic(name)
        with broker.faults.fill_disk(free_bytes=2_000) as rule:
            values = [b"a" * 1_000, b"b" * 2_000]
            first, second = library.produce(broker.bootstrap, name, values, **IMPATIENT)
            assert first == ""
            assert "storage" in second.lower()
            assert rule.hits >= 1
            wait_until(lambda: status(broker.bootstrap)["disk"]["is_full"], what="the status shows it")
        assert library.produce(broker.bootstrap, name, [b"c"]) == [""]
        assert library.consume(broker.bootstrap, name, 2) == [values[0], b"c"]
    with broker.faults.fill_disk() as rule:
        with pytest.raises(RuntimeError, match="No space left on device"):
            broker.create_topic("more")
        assert rule.hits == 1
    broker.create_topic("more")


def shows_offline(broker: Broker, topics: Set[str]) -> bool:
    return {row["topic"] for row in status(broker.bootstrap)["offline"]["first"]} == topics


def test_broken_disk_takes_the_log_offline_until_a_restart(broker: Broker) -> None:
    for fail in (broker.faults.fail_write, broker.faults.fail_sync):
        topics = {f"{fail.__name__}-{name}": library for name, library in LIBRARIES.items()}
        for topic, library in topics.items():
            broker.create_topic(topic)
            assert library.produce(broker.bootstrap, topic, [b"a"]) == [""]
        with fail(topic=f"{fail.__name__}-*", times=len(topics)) as rule:
            for topic, library in topics.items():
                errors = library.produce(broker.bootstrap, topic, [b"b", b"c"], **IMPATIENT)
                assert all("storage" in error.lower() for error in errors)
            assert rule.hits == len(topics)
            assert library.produce(broker.bootstrap, "other", [b"d"]) == [""]
        # A status that was published between the two failures has only the first one.
        wait_until(partial(shows_offline, broker, topics.keys()), what="the status shows both topics")
        assert all(f"log=offline partition={topic}-0" in broker.log_text() for topic in topics)
        broker.restart()
        for topic, library in topics.items():
            assert library.produce(broker.bootstrap, topic, [b"e"]) == [""]
            found = library.consume(broker.bootstrap, topic, 3 if fail == broker.faults.fail_sync else 2)
            # A record whose sync has failed is possibly stored, as on a real disk.
            assert (found[0], found[-1]) == (b"a", b"e")


def test_fail_sync_needs_a_broker_that_syncs(fork_server: None) -> None:
    with forked_broker()(transport="inline") as broker:
        with pytest.raises(ClientError, match=r"start it with kproc\.flush=group"):
            broker.faults.fail_sync(topic="t")
        broker.create_topic("t")
        with broker.faults.fail_write(topic="t", error="ENOSPC", times=1) as rule:
            assert LIBRARIES["confluent"].produce(broker.bootstrap, "t", [b"a"]) == [""]
        assert rule.counts == (2, 1)
