"""confluent-kafka, that is librdkafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.adapters.base import FETCH_WAIT_MS, LARGEST_MESSAGE_BYTES, TIMEOUT_SECONDS
from tests.support.records import Received, Sample
from tests.support.topics import wait_for_markers

name = "confluent"
compressions = ("none", "gzip", "snappy", "lz4", "zstd")
sends_timestamps = True
sends_nulls = True


def produce(
    bootstrap: str,
    topic: str,
    records: Sequence[Sample],
    *,
    compression: str = "none",
    idempotent: bool = True,
) -> None:
    """Send all and return when each is acknowledged by acks=all."""
    problems: list[str] = []
    delivered = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        if error is not None:
            problems.append(str(error))
        delivered += 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": idempotent,
            "compression.type": compression,
            "message.max.bytes": LARGEST_MESSAGE_BYTES,
            "linger.ms": 20,
            "message.timeout.ms": int(TIMEOUT_SECONDS * 1000),
        }
    )
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=on_delivery,
        )
    left = producer.flush(TIMEOUT_SECONDS)
    assert not problems, problems[:3]
    assert (left, delivered) == (0, len(records))


def consume(bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Received]:
    """Read from the start exactly `counts[partition]` records of each partition."""
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
        received: list[Received] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(received) < sum(counts.values()) and time.monotonic() < deadline:
            batch = consumer.consume(500, timeout=0.2)
            received.extend(map(_received, batch))
        return received
    finally:
        consumer.close()


def consume_committed(bootstrap: str, topic: str, *, partitions: int = 1) -> list[Received]:
    """Read the committed records of all partitions, once no transaction of the topic is undecided."""
    wait_for_markers(bootstrap, topic, partitions=partitions)
    consumer = _consumer(bootstrap, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    try:
        left = set(range(partitions))
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        received: list[Received] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while left and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    received.append(_received(message))
        assert not left, f"partitions {left} of {topic} were not read to their ends"
        return received
    finally:
        consumer.close()


def _consumer(bootstrap: str, **more: Any) -> Consumer:
    # librdkafka insists on a group.id, though `assign` without commits never joins a group.
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"none-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "check.crcs": True,
            "fetch.wait.max.ms": FETCH_WAIT_MS if "enable.partition.eof" in more else 500,
            **more,
        }
    )


def _received(message: Message) -> Received:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    kind, timestamp_ms = message.timestamp()
    assert kind != TIMESTAMP_NOT_AVAILABLE
    headers = tuple((key, bytes(value)) for key, value in message.headers() or ())
    return Received(
        message.partition(), message.key(), message.value(), headers, timestamp_ms, offset=message.offset()
    )


class _Tail:
    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._where = TopicPartition(topic, partition)
        self._consumer = _consumer(bootstrap, **{"enable.partition.eof": True})

    def __enter__(self) -> _Tail:
        _, end = self._consumer.get_watermark_offsets(self._where, timeout=TIMEOUT_SECONDS)
        self._consumer.assign([TopicPartition(self._where.topic, self._where.partition, end)])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            error = message.error() if message is not None else None
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return self
        raise AssertionError("the end of the partition was not reported")

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def next_value(self, seconds: float) -> bytes:
        """The next record's value; AssertionError when none comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                return message.value() or b""
        raise AssertionError(f"no record within {seconds:g} s")


def tail(bootstrap: str, topic: str, partition: int) -> _Tail:
    """A consumer waiting at the partition's end."""
    return _Tail(bootstrap, topic, partition)
