"""A consumer in a process of its own, that says what happens to it as Kafka's VerifiableConsumer does.

    python -m tests.support.group_member confluent|kafka-python|aiokafka --bootstrap ... --topic ... --group ...

One JSON line for each event. Commits what each poll brought. SIGTERM closes the consumer, which leaves the group. A
topic that begins with ^ is an expression for confluent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from collections.abc import Iterable
from typing import Any

# Records end a poll; nothing else may before a rebalance is over. A leader of kafka-python 3.0.12 that joins again
# because its metadata have changed forgets why as soon as JoinGroup is answered. If the poll that began it has ended
# by then, no other takes the answer to SyncGroup: it never hears of its share, nor sends heartbeats. With Kafka, too.
KAFKA_PYTHON_POLL_MS = 30_000
HEARTBEAT_MS = 300
_POLL_RECORDS_MAX = 200

_is_over = False


def end(*_: object) -> None:
    """SIGTERM: close after this poll."""
    global _is_over
    _is_over = True


def tell(name: str, **fields: Any) -> None:
    """One event, with its time in milliseconds of the host's clock, as VerifiableConsumer has it."""
    event = {"name": name, "timestamp": time.time_ns() // 1_000_000, **fields}
    print(json.dumps(event), flush=True)


Partition = tuple[str, int]


def tell_partitions(name: str, parts: Iterable[Partition]) -> None:
    """Partitions came or went."""
    tell(name, partitions=[{"topic": topic, "partition": index} for topic, index in sorted(parts)])


def tell_records(records: Iterable[tuple[str, int, int]]) -> dict[Partition, int]:
    """Records were processed; what is to be committed for them.

    Each consecutive run of offsets has a row: a member that was fenced and has joined again can get records of its old
    and of its new assignment together.
    """
    runs: dict[Partition, list[list[int]]] = {}
    for topic, index, offset in records:
        rows = runs.setdefault((topic, index), [])
        if rows and rows[-1][-1] + 1 == offset:
            rows[-1].append(offset)
        else:
            rows.append([offset])
    parts = [
        {
            "topic": topic,
            "partition": index,
            "count": len(found),
            "minOffset": found[0],
            "maxOffset": found[-1],
        }
        for (topic, index), rows in runs.items()
        for found in rows
    ]
    tell("records_consumed", partitions=parts)
    return {partition: max(map(max, rows)) + 1 for partition, rows in runs.items()}


def tell_committed(wanted: dict[Partition, int], error: object = None) -> None:
    """A commit was answered."""
    offsets = [
        {"topic": topic, "partition": index, "offset": offset} for (topic, index), offset in wanted.items()
    ]
    tell("offsets_committed", offsets=offsets, success=error is None, error=repr(error))


def run_confluent(options: argparse.Namespace) -> None:
    """librdkafka."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": options.strategy,
        "log_level": 0,
    }
    if options.protocol == "consumer":
        # These are the broker's in this protocol, and librdkafka rejects them.
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            del settings[name]
        settings["group.protocol"] = "consumer"
    if options.instance:
        settings["group.instance.id"] = options.instance

    def on_commit(error: Any, parts: list[Any]) -> None:
        for part in parts:
            tell_committed({(part.topic, part.partition): part.offset}, error or part.error)

    if options.commit == "async":
        settings["on_commit"] = on_commit
    consumer = Consumer(settings)
    polled: list[tuple[str, int, int]] = []  # Topic, partition and offset of records that are not processed yet.

    def process() -> None:
        wanted = tell_records(polled)
        polled.clear()
        offsets = [TopicPartition(*part, offset) for part, offset in wanted.items()]
        if options.commit == "async":
            consumer.commit(offsets=offsets, asynchronous=True)
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            tell_committed(wanted, error)
        else:
            tell_committed(wanted)

    def on_assign(_consumer: Any, parts: list[Any]) -> None:
        tell_partitions("partitions_assigned", ((part.topic, part.partition) for part in parts))

    def on_revoke(_consumer: Any, parts: list[Any]) -> None:
        # Records of the assignment that ends are told before its end, so that nobody takes them for the next one's.
        if polled:
            process()
        tell_partitions("partitions_revoked", ((part.topic, part.partition) for part in parts))

    consumer.subscribe([options.topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
    tell("startup_complete")
    while not _is_over:
        while len(polled) < _POLL_RECORDS_MAX:
            # A callback can process the records that were polled so far.
            message = consumer.poll(0 if polled else 0.1)
            if message is None:
                break
            if message.error() is None:
                polled.append((message.topic(), message.partition(), message.offset()))
        if polled:
            process()
    consumer.close()


def run_kafka_python(options: argparse.Namespace) -> None:
    """kafka-python."""
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(kafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            tell_partitions("partitions_revoked", ((part.topic, part.partition) for part in revoked))

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell_partitions("partitions_assigned", ((part.topic, part.partition) for part in assigned))

    assert options.strategy == "range"
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    consumer.subscribe([options.topic], listener=Listener())
    tell("startup_complete")
    while not _is_over:
        found = consumer.poll(timeout_ms=KAFKA_PYTHON_POLL_MS)
        rows = [(row.topic, row.partition, row.offset) for part in found.values() for row in part]
        if not rows:
            continue
        wanted = tell_records(rows)
        offsets = {
            kafka.TopicPartition(*part): kafka.structs.OffsetAndMetadata(offset, "", -1)
            for part, offset in wanted.items()
        }
        try:
            consumer.commit(offsets)
        except kafka.errors.KafkaError as error:
            tell_committed(wanted, error)
        else:
            tell_committed(wanted)
    consumer.close(autocommit=False)


async def run_aiokafka(options: argparse.Namespace) -> None:
    """aiokafka."""
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(aiokafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            tell_partitions("partitions_revoked", ((part.topic, part.partition) for part in revoked))

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell_partitions("partitions_assigned", ((part.topic, part.partition) for part in assigned))

    assert options.strategy == "range"
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    consumer.subscribe([options.topic], listener=Listener())
    tell("startup_complete")
    await consumer.start()
    while not _is_over:
        found = await consumer.getmany(timeout_ms=100)
        rows = [(row.topic, row.partition, row.offset) for part in found.values() for row in part]
        if not rows:
            continue
        wanted = tell_records(rows)
        offsets = {aiokafka.TopicPartition(*part): offset for part, offset in wanted.items()}
        try:
            await consumer.commit(offsets)
        except (aiokafka.errors.KafkaError, aiokafka.errors.IllegalStateError) as error:
            tell_committed(wanted, error)
        else:
            tell_committed(wanted)
    await consumer.stop()


def main() -> None:
    """Consume until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=["confluent", "kafka-python", "aiokafka"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--strategy", default="range")
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic")
    parser.add_argument("--commit", choices=["sync", "async"], default="sync")
    parser.add_argument("--instance")
    parser.add_argument("--session-ms", type=int, default=6_000)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    if options.client == "confluent":
        run_confluent(options)
    elif options.client == "kafka-python":
        run_kafka_python(options)
    else:
        asyncio.run(run_aiokafka(options))
    tell("shutdown_complete")


if __name__ == "__main__":
    main()
