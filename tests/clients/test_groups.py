"""Consumers that subscribe, unmodified: they share partitions, give them up, commit and go on where they were."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient  # noqa: E402

from tests.support.adapters import confluent  # noqa: E402
from tests.support.broker import BrokerUnderTest, ServedBroker  # noqa: E402
from tests.support.group_scene import GroupScene  # noqa: E402
from tests.support.groups import find_coordinator, offsets_of  # noqa: E402
from tests.support.raw import Closed, RawClient  # noqa: E402
from tests.support.records import samples  # noqa: E402
from tests.support.topics import TopicFactory, fresh_name  # noqa: E402
from tests.support.wait import PATIENCE_SECONDS, wait_until  # noqa: E402

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", slow=["thread"])]

PARTITIONS = 4
SETTLE_SECONDS = 20.0


@contextmanager
def consumer(bootstrap: str, group: str, topic: str, **more: Any) -> Iterator[Consumer]:
    """A subscribed consumer of confluent-kafka."""
    one = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 300,
            **more,
        }
    )
    try:
        one.subscribe([topic])
        yield one
    finally:
        one.close()


def produce(bootstrap: str, topic: str, count: int) -> None:
    confluent.produce(bootstrap, topic, samples([20] * count, partitions=PARTITIONS, seed=count))


def read(consumers: Iterable[Consumer], count: int, seconds: float = SETTLE_SECONDS) -> list[tuple[int, int]]:
    """(partition, offset) of the next `count` records, whoever gets them."""
    found: list[tuple[int, int]] = []

    def enough() -> bool:
        for one in consumers:
            for message in one.consume(100, timeout=0.05):
                assert message.error() is None, message.error()
                found.append((message.partition(), message.offset()))
        return len(found) >= count

    wait_until(enough, seconds=seconds, what=f"{count} records")
    return found


def wait_shares(consumers: list[Consumer], shares: list[int]) -> list[set[int]]:
    """Poll until the members have that many partitions each, all of them together, none twice."""

    def settled() -> list[set[int]] | None:
        for one in consumers:
            one.poll(0.02)
        owned = [{part.partition for part in one.assignment()} for one in consumers]
        is_whole = set().union(*owned) == set(range(PARTITIONS))
        is_settled = is_whole and sorted(map(len, owned)) == sorted(shares)
        return owned if is_settled else None

    return wait_until(settled, seconds=SETTLE_SECONDS, what=f"shares of {shares}")


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_remaining_member_takes_over_partitions(
    broker: BrokerUnderTest, topic: TopicFactory, strategy: str
) -> None:
    name, group = topic(partitions=PARTITIONS), fresh_name("g")
    produce(broker.bootstrap, name, 40)
    settings = {"partition.assignment.strategy": strategy}
    with consumer(broker.bootstrap, group, name, **settings) as first:
        wait_shares([first], [PARTITIONS])
        with consumer(broker.bootstrap, group, name, **settings) as second:
            wait_shares([first, second], [2, 2])
        wait_shares([first], [PARTITIONS])
        produce(broker.bootstrap, name, 8)
        assert read([first], 8)


def test_committed_offsets_survive_stop_and_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    group = fresh_name("g")
    name = fresh_name("kept")
    with ServedBroker(data, settings={"num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}) as served:
        with RawClient(served.bootstrap) as raw:
            raw.create_topic(name, partitions=PARTITIONS)
        produce(served.bootstrap, name, 40)
        with consumer(served.bootstrap, group, name) as one:
            read([one], 40)
            positions = one.position([TopicPartition(name, index) for index in range(PARTITIONS)])
            offsets = [
                TopicPartition(name, part.partition, part.offset, metadata=f"m{part.partition}")
                for part in positions
            ]
            one.commit(offsets=offsets, asynchronous=False)
        wanted = {(name, part.partition): part.offset for part in positions}
        for row in served.processes:
            if row["role"] == "handler":
                os.kill(int(row["pid"]), signal.SIGKILL)
        wait_until(
            lambda: _offsets_or_none(served.bootstrap, group) == wanted, seconds=15, what="after kill -9"
        )
    with ServedBroker(data, settings={"num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}) as served:
        with RawClient(served.bootstrap) as raw:
            assert offsets_of(raw, group) == wanted
        with consumer(served.bootstrap, group, name) as one:
            produce(served.bootstrap, name, 8)
            assert sorted(read([one], 8))[0][1] == wanted[name, 0]
            (kept,) = one.committed([TopicPartition(name, 2)])
            assert kept.metadata == "m2"


def _offsets_or_none(bootstrap: str, group: str) -> dict[tuple[str, int], int] | None:
    try:
        with RawClient(bootstrap) as raw:
            return offsets_of(raw, group)
    except (AssertionError, Closed):
        return None  # The Handlers' successors are not there yet.


def test_static_member_of_librdkafka_rejoins_without_rebalance(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group = topic(partitions=PARTITIONS), fresh_name("g")
    with consumer(broker.bootstrap, group, name) as other:
        lost: list[Any] = []
        other.subscribe([name], on_revoke=lambda _consumer, parts: lost.append(parts))
        with consumer(broker.bootstrap, group, name, **{"group.instance.id": "s1"}) as first:
            before = wait_shares([other, first], [2, 2])
            lost.clear()
        # Closing a static member does not leave the group.
        with consumer(broker.bootstrap, group, name, **{"group.instance.id": "s1"}) as back:
            after = wait_shares([other, back], [2, 2])
        assert after == before
        assert not lost


def test_admin_client_describes_alters_and_deletes_groups(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name, group = topic(partitions=PARTITIONS), fresh_name("g")
    produce(broker.bootstrap, name, 12)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with consumer(broker.bootstrap, group, name) as one:
        read([one], 12)
        one.commit(asynchronous=False)
        shown = admin.describe_consumer_groups([group])[group].result(timeout=PATIENCE_SECONDS)
        assert (shown.state.name, len(shown.members)) == ("STABLE", 1)
        assert len(shown.members[0].assignment.topic_partitions) == PARTITIONS
    listed = admin.list_consumer_groups().result(timeout=PATIENCE_SECONDS)
    assert group in {row.group_id for row in listed.valid}
    assert not listed.errors
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 1)])
    admin.alter_consumer_group_offsets([wanted])[group].result(timeout=PATIENCE_SECONDS)
    everything = confluent_kafka.ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([everything])[group].result(timeout=PATIENCE_SECONDS)
    assert {part.partition: part.offset for part in found.topic_partitions}[0] == 1
    admin.delete_consumer_groups([group])[group].result(timeout=PATIENCE_SECONDS)
    with RawClient(broker.bootstrap) as raw:
        assert offsets_of(raw, group) == {}


# -- each library ------------------------------------------------------------------------------------------------


@pytest.fixture
def scene(broker: BrokerUnderTest, topic: TopicFactory) -> Iterator[GroupScene]:
    with GroupScene(
        broker.bootstrap, topic(partitions=PARTITIONS), PARTITIONS, fresh_name("scene")
    ) as running:
        yield running


@pytest.mark.parametrize("library", ["confluent", "kafka-python", "aiokafka"])
def test_group_shares_partitions_and_resumes_from_commits(scene: GroupScene, library: str) -> None:
    """The members share the partitions, take over those of one that leaves, and resume where the group committed."""
    members = scene.start(library, library)
    scene.settle()
    scene.close(members[-1])
    scene.settle()
    wait_until(lambda: len(scene.committed()) == PARTITIONS, seconds=20, what="a commit of every partition")
    scene.close(*scene.members)
    committed = scene.committed()
    again = scene.start(library, library)
    scene.settle()
    scene.wait_reading(again)
    scene.finish_producing()
    scene.wait_delivered()
    assert scene.first_offsets(again) == committed


def test_find_coordinator_as_very_first_request(tmp_path: Path) -> None:
    """The very first request of a client may be about a group."""
    with ServedBroker(tmp_path / "data") as served, RawClient(served.bootstrap) as raw:
        assert find_coordinator(raw, "first")["error_code"] == 0
