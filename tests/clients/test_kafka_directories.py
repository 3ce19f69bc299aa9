"""Partitions with transactions and groups change the broker: from Apache Kafka's data directory to kproc's, and back.

The metadata logs of the two differ, so no directory is taken over whole: the topics are made at the taker, and the
files of their partitions are put in place while both are down, those of `__transaction_state` and
`__consumer_offsets` among them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from bench.peers.kafka import KafkaPeer
from kproc.broker.storage.checkpoints import write_partition_metadata
from kproc.broker.storage.os_fs import OsFs
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import CRC_AT, CRC_FROM, LOG_OVERHEAD_BYTES, crc_of
from tests.support.broker import ServedBroker
from tests.support.configs import set_config
from tests.support.java_tools import JVM, PRODUCER_PERFORMANCE, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient, batch
from tests.support.wait import stretched, wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it makes the transactions")

from confluent_kafka import AcknowledgeType, Consumer, ShareConsumer, TopicPartition

from tests.support.adapters.transactional import Confluent, committed_offset, read_all

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

TOPIC, PERFORMED, GROUP, MODERN = "orders", "performed", "readers", "modern"
PARTITIONS = 2
TIMEOUT_MS = 5_000
COORDINATED = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    # The number of a state's partition depends on the topic id, which another broker does not keep.
    "share.coordinator.state.topic.num.partitions": "1",
}
TIMED_OUT = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
# Who writes leaves the transaction open whose timeout passes, who takes over ends it.
WRITER, TAKER = {**COORDINATED, TIMED_OUT: "600000"}, {**COORDINATED, TIMED_OUT: "500"}


class Side(Protocol):
    """A broker that is started and stopped with one data directory."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def directory(self) -> Path: ...
    def up(self) -> None: ...
    def down(self) -> None: ...


class Kafka:
    """Apache Kafka."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._peer = KafkaPeer(settings=settings, jvm=JVM)
        self._peer.start()

    @property
    def bootstrap(self) -> str:
        return self._peer.bootstrap

    @property
    def directory(self) -> Path:
        return self._peer.data

    def up(self) -> None:
        self._peer.start_after_kill()

    def down(self) -> None:
        self._peer.end()

    def close(self) -> None:
        self._peer.__exit__(None, None, None)


class Kproc:
    """`kproc serve`."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.directory = directory
        self._settings = settings
        self._broker: ServedBroker | None = None
        self.up()

    @property
    def bootstrap(self) -> str:
        assert self._broker is not None
        return self._broker.bootstrap

    def up(self) -> None:
        self._broker = ServedBroker(self.directory, settings=self._settings).start()

    def down(self) -> None:
        assert self._broker is not None
        self._broker.stop()
        self._broker = None

    def close(self) -> None:
        if self._broker is not None:
            self.down()


@contextmanager
def sides(tmp_path: Path, *, kafka_writes: bool) -> Iterator[tuple[Side, Side]]:
    """(writer, taker), both running."""
    kafka = Kafka(WRITER if kafka_writes else TAKER)
    try:
        kproc = Kproc(tmp_path / "kproc", TAKER if kafka_writes else WRITER)
        try:
            yield (kafka, kproc) if kafka_writes else (kproc, kafka)
        finally:
            kproc.close()
    finally:
        kafka.close()


def make_topics(bootstrap: str) -> dict[str, bytes]:
    """Those of the test, and the coordinators' by their first use; the id of each."""
    with RawClient(bootstrap) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        client.create_topic(PERFORMED)
    with Confluent(bootstrap, "first") as producer:
        producer.begin()
        producer.send_offsets("first", TOPIC, 0, 1)
        producer.commit()
    with RawClient(bootstrap) as client:
        return {
            name: client.topic_id(name)
            for name in (TOPIC, PERFORMED, "__transaction_state", "__consumer_offsets")
        }


def write(bootstrap: str) -> None:
    """Transactions of each end, and two of none."""
    run_tool(
        PRODUCER_PERFORMANCE,
        *("--topic", PERFORMED, "--num-records", "60", "--record-size", "20", "--throughput", "400"),
        *("--transactional-id", "performer", "--transaction-duration-ms", "20"),
        *("--bootstrap-server", bootstrap),
    )
    with (
        Confluent(bootstrap, "done") as done,
        Confluent(bootstrap, "undone") as undone,
        Confluent(bootstrap, "returning") as returning,
        Confluent(bootstrap, "forgotten", stretched(TIMEOUT_MS)) as forgotten,
    ):
        done.begin()
        for partition in range(PARTITIONS):
            done.send(TOPIC, partition, b"done %d" % partition)
        done.send_offsets(GROUP, TOPIC, 0, 11)
        done.commit()
        undone.begin()
        undone.send(TOPIC, 0, b"undone")
        undone.send_offsets(GROUP, TOPIC, 0, 99)
        undone.flush()
        undone.abort()
        returning.begin()
        returning.send(TOPIC, 0, b"of the one that returns")
        returning.flush()
        returning.send_offsets(GROUP, TOPIC, 1, 77)
        forgotten.begin()
        forgotten.send(TOPIC, 1, b"of the one that is forgotten")
        forgotten.flush()
        done.begin()
        for partition in range(PARTITIONS):
            done.send(TOPIC, partition, b"behind %d" % partition)
        done.commit()


def carry(writer: Path, taker: Path, ids: dict[str, bytes]) -> None:
    """Put the files of the writer's partitions in the place of the taker's, where each topic has another id."""
    carried = 0
    for name, topic_id in ids.items():
        for source in writer.glob(f"{name}-[0-9]"):
            target = taker / source.name
            shutil.rmtree(target, ignore_errors=True)  # kproc makes one with its first use.
            shutil.copytree(source, target)
            write_partition_metadata(OsFs(), target, topic_id)
            carried += 1
    assert carried > len(ids)


def described(bootstrap: str, name: str) -> dict[str, Any]:
    """A transaction as its coordinator describes it, once that has loaded."""

    def answer() -> dict[str, Any]:
        with RawClient(bootstrap) as client:
            rows = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]})
        (row,) = rows["transaction_states"]
        assert row["error_code"] == 0, row
        return dict(row)

    return wait_until(answer, seconds=30, what=f"a description of {name}")


def state_of(bootstrap: str, name: str) -> str:
    return str(described(bootstrap, name)["transaction_state"])


def values(bootstrap: str, isolation: str) -> list[bytes]:
    return read_all(bootstrap, TOPIC, PARTITIONS, isolation=isolation)


def check_taken(bootstrap: str) -> None:
    """What the writer left is there, and goes on."""
    assert state_of(bootstrap, "done") == "CompleteCommit"
    assert state_of(bootstrap, "undone") == "CompleteAbort"
    assert state_of(bootstrap, "performer") == "CompleteCommit"
    left = described(bootstrap, "returning")
    assert left["transaction_state"] == "Ongoing"
    parts = {(row["topic"], index) for row in left["topics"] for index in row["partitions"]}
    assert (TOPIC, 0) in parts
    assert {name for name, _ in parts} == {TOPIC, "__consumer_offsets"}
    assert read_all(bootstrap, TOPIC, 1, isolation="read_committed") == [b"done 0"]
    assert len(values(bootstrap, "read_uncommitted")) == 7
    assert len(read_all(bootstrap, PERFORMED, 1, isolation="read_committed")) == 60

    with Confluent(bootstrap, "returning") as returning:
        assert state_of(bootstrap, "returning") == "Empty", (
            "its transaction is aborted before it may begin another"
        )
        assert described(bootstrap, "returning")["producer_epoch"] > left["producer_epoch"]
        returning.begin()
        returning.send(TOPIC, 1, b"returned")
        returning.commit()
    wait_until(
        lambda: state_of(bootstrap, "forgotten") == "CompleteAbort",
        seconds=30,
        what="the timeout ends the transaction that was forgotten",
    )
    committed = [b"done 0", b"behind 0", b"done 1", b"behind 1", b"returned"]
    assert values(bootstrap, "read_committed") == committed
    assert committed_offset(bootstrap, GROUP, TOPIC, 0) == 11
    assert committed_offset(bootstrap, GROUP, TOPIC, 1) is None
    with Confluent(bootstrap, "done") as done:
        done.begin()
        done.send(TOPIC, 1, b"again")
        done.send_offsets(GROUP, TOPIC, 1, 12)
        done.commit()
    assert values(bootstrap, "read_committed") == [*committed, b"again"]
    assert committed_offset(bootstrap, GROUP, TOPIC, 1) == 12


@pytest.mark.parametrize("kafka_writes", [True, False], ids=["from Kafka to kproc", "from kproc to Kafka"])
def test_directory_with_transactions_moves_to_and_from_kafka(tmp_path: Path, kafka_writes: bool) -> None:
    with sides(tmp_path, kafka_writes=kafka_writes) as (writer, taker):
        ids = make_topics(taker.bootstrap)
        taker.down()
        make_topics(writer.bootstrap)
        write(writer.bootstrap)
        writer.down()
        if kafka_writes:
            with pytest.raises(RuntimeError, match="Apache Kafka's"):
                ServedBroker(writer.directory).start()
        carry(writer.directory, taker.directory, ids)
        taker.up()
        check_taken(taker.bootstrap)


# -- a group of the consumer protocol --------------------------------------------------------------------------


@contextmanager
def static_member(bootstrap: str) -> Iterator[Consumer]:
    """A member with all partitions of the topic, to which it subscribes by an expression. It keeps its place."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": MODERN,
            "group.protocol": "consumer",
            "group.instance.id": "seat",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([f"^{TOPIC}$"])
        wait_until(
            lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == PARTITIONS,
            seconds=60,
            what="all partitions",
        )
        yield consumer
    finally:
        consumer.close()


def described_group(bootstrap: str) -> dict[str, Any]:
    """The group as its coordinator describes it, once that has loaded."""

    def answer() -> dict[str, Any]:
        with RawClient(bootstrap) as client:
            fields = {"group_ids": [MODERN], "include_authorized_operations": False}
            (row,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, fields)["groups"]
        assert row["error_code"] == 0, row
        return dict(row)

    return wait_until(answer, seconds=30, what=f"a description of {MODERN}")


@pytest.mark.parametrize("kafka_writes", [True, False], ids=["from Kafka to kproc", "from kproc to Kafka"])
def test_consumer_group_moves_to_and_from_kafka(tmp_path: Path, kafka_writes: bool) -> None:
    """Its static member has left for a time, and returns to the taker with its offsets."""
    with sides(tmp_path, kafka_writes=kafka_writes) as (writer, taker):
        ids = make_topics(taker.bootstrap)
        taker.down()
        make_topics(writer.bootstrap)
        with static_member(writer.bootstrap) as member:
            partitions = [TopicPartition(TOPIC, index, 3 + index) for index in range(PARTITIONS)]
            member.commit(offsets=partitions, asynchronous=False)
        left = described_group(writer.bootstrap)
        writer.down()
        carry(writer.directory, taker.directory, ids)
        taker.up()
        found = described_group(taker.bootstrap)
        for name in ("group_state", "group_epoch", "assignment_epoch", "assignor_name"):
            assert found[name] == left[name], name
        (mine,), (before,) = found["members"], left["members"]
        for name in ("member_id", "instance_id", "member_epoch", "client_id", "subscribed_topic_regex"):
            assert mine[name] == before[name], name
        assert (mine["instance_id"], mine["member_epoch"]) == ("seat", -2)
        for index in range(PARTITIONS):
            assert committed_offset(taker.bootstrap, MODERN, TOPIC, index) == 3 + index
        with static_member(taker.bootstrap):
            back = described_group(taker.bootstrap)
        assert back["group_epoch"] > left["group_epoch"]
        assert [row["instance_id"] for row in back["members"]] == ["seat"]


# -- a share group -------------------------------------------------------------------------------------------------

QUEUE, SHARE_STATES, GROUP_RESOURCE = "queue", "__share_group_state", 32
SHARED = (TOPIC, "__consumer_offsets", SHARE_STATES)
STORED = 8
# By offset: what the member at the writer does with a record.
REJECTED, RELEASED = (3,), (2, 5, 6, 7)


def share_scene(bootstrap: str) -> dict[str, bytes]:
    """Make the topics, that of the states among them, by a member that reads nothing. Return the ids of the topics."""
    make_topics(bootstrap)
    with RawClient(bootstrap) as client:
        kind = {"kind": GROUP_RESOURCE, "resource": QUEUE}
        assert set_config(client, "share.auto.offset.reset", "earliest", **kind) == (0, None)
        with share_member(bootstrap, "opener") as member:
            wait_until(
                lambda: not member.poll(0.05) and any(client.topic_id(SHARE_STATES)), seconds=60, what="its topic"
            )
        return {name: client.topic_id(name) for name in SHARED}


@contextmanager
def share_member(bootstrap: str, group: str = QUEUE) -> Iterator[ShareConsumer]:
    settings = {"share.acknowledgement.mode": "explicit", "log_level": 0}
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **settings}) as member:
        member.subscribe([TOPIC])
        yield member


def deliver(bootstrap: str, count: int, kinds: dict[int, AcknowledgeType]) -> list[tuple[int, int]]:
    """Let a member acknowledge so many records, with ACCEPT if `kinds` has none. Return (offset, delivery count)."""
    found: list[tuple[int, int]] = []

    def has_all() -> bool:
        for message in member.poll(0.2):
            assert message.error() is None, message.error()
            found.append((message.offset(), message.delivery_count()))
            member.acknowledge(message, kinds.get(message.offset(), AcknowledgeType.ACCEPT))
        assert not any(member.commit_sync(20).values())
        return len(found) >= count

    with share_member(bootstrap) as member:
        wait_until(has_all, seconds=60, what=f"{count} deliveries")
    return sorted(found)


def share_offsets(bootstrap: str) -> dict[int, tuple[int, int]]:
    """(start offset, lag) of each partition, once the coordinators have loaded."""

    def answer() -> dict[int, tuple[int, int]]:
        with RawClient(bootstrap) as client:
            groups = [{"group_id": QUEUE, "topics": None}]
            (group,) = client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": groups})["groups"]
        assert group["error_code"] == 0, group
        (topic,) = group["topics"]
        assert not any(row["error_code"] for row in topic["partitions"]), topic
        return {row["partition_index"]: (row["start_offset"], row["lag"]) for row in topic["partitions"]}

    return wait_until(answer, seconds=30, what=f"the start offsets of {QUEUE}")


def rename_topic(directory: Path, old: bytes, new: bytes) -> int:
    """Replace a topic's id in the batches of a partition. Return how often it was there."""
    count = 0
    for path in directory.glob("*.log"):
        content = path.read_bytes()
        changed, at = bytearray(content.replace(old, new)), 0
        count += content.count(old)
        while at < len(changed):
            length = int.from_bytes(changed[at + LOG_OVERHEAD_BYTES - 4 : at + LOG_OVERHEAD_BYTES], "big")
            end = at + LOG_OVERHEAD_BYTES + length
            changed[at + CRC_AT : at + CRC_FROM] = crc_of(changed[at:end]).to_bytes(4, "big")
            at = end
        path.write_bytes(changed)
    return count


@pytest.mark.parametrize("kafka_writes", [True, False], ids=["from Kafka to kproc", "from kproc to Kafka"])
def test_share_group_moves_to_and_from_kafka(tmp_path: Path, kafka_writes: bool) -> None:
    """The taker replays the group and the states of its share partitions, and delivers what is left of them."""
    kinds = dict.fromkeys(REJECTED, AcknowledgeType.REJECT) | dict.fromkeys(RELEASED, AcknowledgeType.RELEASE)
    with sides(tmp_path, kafka_writes=kafka_writes) as (writer, taker):
        ids = share_scene(taker.bootstrap)
        taker.down()
        old = share_scene(writer.bootstrap)
        with RawClient(writer.bootstrap) as client:
            client.produce(TOPIC, batch(*(b"%d" % number for number in range(STORED))))
        assert deliver(writer.bootstrap, STORED, kinds) == [(offset, 1) for offset in range(STORED)]
        left = share_offsets(writer.bootstrap)
        # Kafka moves a start offset only with a later acknowledgement.
        assert left[0][1] == len(RELEASED)
        writer.down()
        carry(writer.directory, taker.directory, ids)
        for name in SHARED[1:]:
            directories = list(taker.directory.glob(f"{name}-[0-9]"))
            assert sum(rename_topic(each, old[TOPIC], ids[TOPIC]) for each in directories), name
        taker.up()
        assert share_offsets(taker.bootstrap) == left
        assert deliver(taker.bootstrap, len(RELEASED), {}) == [(offset, 2) for offset in RELEASED]
        wait_until(lambda: share_offsets(taker.bootstrap)[0][1] == 0, seconds=30, what="the end of the queue")
