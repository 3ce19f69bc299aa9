"""kafka-python 3.x: the pure-Python client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd

from tests.support.adapters.base import FETCH_WAIT_MS, LARGEST_MESSAGE_BYTES, TIMEOUT_SECONDS
from tests.support.records import Received, Sample

name = "kafka_python"
compressions = (
    "none",
    *(
        codec
        for codec, has in (("gzip", has_gzip), ("snappy", has_snappy), ("lz4", has_lz4), ("zstd", has_zstd))
        if has()
    ),
)
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
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=idempotent,
        compression_type=None if compression == "none" else compression,
        max_request_size=LARGEST_MESSAGE_BYTES,
        linger_ms=20,
    )
    try:
        futures = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        for future in futures:
            future.get(timeout=TIMEOUT_SECONDS)
    finally:
        producer.close(timeout=TIMEOUT_SECONDS)


def consume(bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Received]:
    """Read from the start exactly `counts[partition]` records of each partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, check_crcs=True
    )
    try:
        partitions = [TopicPartition(topic, partition) for partition in counts]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        received: list[Received] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(received) < sum(counts.values()) and time.monotonic() < deadline:
            for rows in consumer.poll(timeout_ms=200).values():
                received.extend(
                    Received(
                        r.partition, r.key, r.value, tuple(r.headers or ()), r.timestamp, offset=r.offset
                    )
                    for r in rows
                )
        return received
    finally:
        consumer.close()


class _Tail:
    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._where = TopicPartition(topic, partition)
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            # kafka-python rejects a timeout that is not above the wait, which is stretched on a busy machine.
            request_timeout_ms=FETCH_WAIT_MS + 30_000,
        )

    def __enter__(self) -> _Tail:
        self._consumer.assign([self._where])
        self._consumer.seek_to_end(self._where)
        self._consumer.position(self._where)
        # The long poll is under way once a poll has come back empty.
        assert not self._consumer.poll(timeout_ms=500)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def next_value(self, seconds: float) -> bytes:
        """The next record's value; AssertionError when none comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for rows in self._consumer.poll(timeout_ms=100).values():
                return bytes(rows[0].value)
        raise AssertionError(f"no record within {seconds:g} s")


def tail(bootstrap: str, topic: str, partition: int) -> _Tail:
    """A consumer waiting at the partition's end."""
    return _Tail(bootstrap, topic, partition)
