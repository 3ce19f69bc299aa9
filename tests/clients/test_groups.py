"""Consumers that subscribe, unmodified: they share partitions, give them up, commit and go on where they were."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient  # noqa: E402

from tests.support.adapters import confluent  # noqa: E402
from tests.support.broker import BrokerUnderTest, ServedBroker  # noqa: E402
from tests.support.group_member import KAFKA_PYTHON_POLL_MS  # noqa: E402
from tests.support.groups import find_coordinator, offsets_of  # noqa: E402
from tests.support.raw import Closed, RawClient  # noqa: E402
from tests.support.records import samples  # noqa: E402
from tests.support.topics import TopicFactory, fresh_name  # noqa: E402
from tests.support.wait import wait_until  # noqa: E402

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


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
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


def test_group_resumes_from_committed_offsets(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group = topic(partitions=PARTITIONS), fresh_name("g")
    produce(broker.bootstrap, name, 40)
    with consumer(broker.bootstrap, group, name) as first:
        assert len(set(read([first], 40))) == 40
        first.commit(asynchronous=False)
        (again,) = first.committed([TopicPartition(name, 0)])
        assert again.offset == first.position([TopicPartition(name, 0)])[0].offset > 0
    produce(broker.bootstrap, name, 12)
    with consumer(broker.bootstrap, group, name) as second:
        offsets = read([second], 12)
    # Nothing is read twice, nothing skipped.
    assert sorted(offsets) == sorted({(p, o) for p, o in offsets})
    assert len(offsets) == 12


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
        shown = admin.describe_consumer_groups([group])[group].result(timeout=10)
        assert (shown.state.name, len(shown.members)) == ("STABLE", 1)
        assert len(shown.members[0].assignment.topic_partitions) == PARTITIONS
    listed = admin.list_consumer_groups().result(timeout=10)
    assert group in {row.group_id for row in listed.valid}
    assert not listed.errors
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 1)])
    admin.alter_consumer_group_offsets([wanted])[group].result(timeout=10)
    everything = confluent_kafka.ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([everything])[group].result(timeout=10)
    assert {part.partition: part.offset for part in found.topic_partitions}[0] == 1
    admin.delete_consumer_groups([group])[group].result(timeout=10)
    with RawClient(broker.bootstrap) as raw:
        assert offsets_of(raw, group) == {}


# -- kafka-python ------------------------------------------------------------------------------------------------


def test_kafka_python_members_share_commit_and_leave(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    kafka = pytest.importorskip("kafka")
    name, group = topic(partitions=PARTITIONS), fresh_name("g")
    produce(broker.bootstrap, name, 40)

    def make() -> Any:
        return kafka.KafkaConsumer(
            name,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
        )

    first = make()
    seen: list[tuple[int, int]] = []
    try:

        def read_all() -> bool:
            for rows in first.poll(timeout_ms=KAFKA_PYTHON_POLL_MS).values():
                seen.extend((row.partition, row.offset) for row in rows)
            return len(seen) >= 40

        wait_until(read_all, seconds=SETTLE_SECONDS, what="40 records")
        first.commit()
        # A rebalance needs both at once. New records end the polls, as KAFKA_PYTHON_POLL_MS says why.
        second = make()
        try:
            with ThreadPoolExecutor(2) as pool:
                polls = [pool.submit(one.poll, KAFKA_PYTHON_POLL_MS) for one in (first, second)]
                wait_until(
                    lambda: [len(first.assignment()), len(second.assignment())] == [2, 2],
                    seconds=SETTLE_SECONDS,
                    what="two shares",
                )
                produce(broker.bootstrap, name, PARTITIONS)
                assert all(poll.result() for poll in polls)
        finally:
            second.close(autocommit=False)

        def alone() -> bool:
            first.poll(timeout_ms=KAFKA_PYTHON_POLL_MS)
            return len(first.assignment()) == PARTITIONS

        wait_until(alone, seconds=SETTLE_SECONDS, what="the other has left")
    finally:
        first.close(autocommit=False)
    assert len(set(seen)) == 40
    third = make()
    try:
        produce(broker.bootstrap, name, 4)
        fresh: list[tuple[int, int]] = []

        def read_new() -> bool:
            for rows in third.poll(timeout_ms=KAFKA_PYTHON_POLL_MS).values():
                fresh.extend((row.partition, row.offset) for row in rows)
            return len(fresh) >= 4 + PARTITIONS

        wait_until(read_new, seconds=SETTLE_SECONDS, what="what nobody has committed")
        assert not set(fresh) & set(seen)
    finally:
        third.close(autocommit=False)


# -- aiokafka ----------------------------------------------------------------------------------------------------


def test_aiokafka_members_share_and_commit(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    name, group = topic(partitions=PARTITIONS), fresh_name("g")
    produce(broker.bootstrap, name, 40)

    async def run() -> None:
        def make() -> Any:
            return aiokafka.AIOKafkaConsumer(
                name,
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=300,
                session_timeout_ms=10_000,
            )

        first, second = make(), make()
        seen: set[tuple[int, int]] = set()
        await first.start()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while len(seen) < 40:
                    for rows in (await first.getmany(timeout_ms=50)).values():
                        seen |= {(row.partition, row.offset) for row in rows}
            await first.commit()
            await second.start()
            try:
                async with asyncio.timeout(SETTLE_SECONDS):
                    while [len(first.assignment()), len(second.assignment())] != [2, 2]:
                        await first.getmany(timeout_ms=20)
                        await second.getmany(timeout_ms=20)
                committed = [
                    await first.committed(aiokafka.TopicPartition(name, index)) for index in range(PARTITIONS)
                ]
                assert sum(committed) == 40
            finally:
                await second.stop()
        finally:
            await first.stop()

    asyncio.run(run())


# -- all in one group --------------------------------------------------------------------------------------------


def test_three_client_libraries_share_one_group(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    kafka = pytest.importorskip("kafka")
    aiokafka = pytest.importorskip("aiokafka")
    name, group = topic(partitions=6), fresh_name("g")
    stop = threading.Event()
    shares: dict[str, int] = {}

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            del revoked

        def on_partitions_assigned(self, assigned: Any) -> None:
            shares["kafka-python"] = len(assigned)

    def run_kafka_python() -> None:
        one = kafka.KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
        )
        one.subscribe([name], listener=Listener())
        # Records end a poll, and they come when the shares are there. One that ends while the group rebalances may
        # cost this client its share (KAFKA_PYTHON_POLL_MS), and the first rebalances are for its metadata's sake.
        while not stop.is_set():
            one.poll(timeout_ms=KAFKA_PYTHON_POLL_MS)
        one.close(autocommit=False)

    async def run_aiokafka() -> None:
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        one = aiokafka.AIOKafkaConsumer(
            name,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await one.start()
        while not stop.is_set():
            await one.getmany(timeout_ms=50)
            shares["aiokafka"] = len(one.assignment())
        await one.stop()

    targets: list[Callable[[], None]] = [run_kafka_python, lambda: asyncio.run(run_aiokafka())]
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    try:
        with consumer(broker.bootstrap, group, name, **{"partition.assignment.strategy": "range"}) as one:

            def settled() -> bool:
                one.poll(0.05)
                shares["confluent"] = len(one.assignment())
                return sorted(shares.values()) == [2, 2, 2]

            wait_until(settled, seconds=30, what="a third for each")
    finally:
        stop.set()
        confluent.produce(broker.bootstrap, name, samples([20] * 6, partitions=6, seed=6))
        for thread in threads:
            thread.join(60)


def test_find_coordinator_as_very_first_request(tmp_path: Path) -> None:
    """The very first request of a client may be about a group."""
    with ServedBroker(tmp_path / "data") as served, RawClient(served.bootstrap) as raw:
        assert find_coordinator(raw, "first")["error_code"] == 0
