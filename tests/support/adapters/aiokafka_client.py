"""aiokafka: asyncio, with its own encoder and decoder of record batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.adapters.base import FETCH_WAIT_MS, LARGEST_MESSAGE_BYTES, TIMEOUT_SECONDS
from tests.support.records import Received, Sample

name = "aiokafka"
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
    asyncio.run(_produce(bootstrap, topic, records, compression, idempotent))


async def _produce(
    bootstrap: str, topic: str, records: Sequence[Sample], compression: str, idempotent: bool
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=idempotent,
        compression_type=None if compression == "none" else compression,
        max_request_size=LARGEST_MESSAGE_BYTES,
        linger_ms=20,
    )
    await producer.start()
    try:
        acknowledgements = [
            await producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        await asyncio.wait_for(asyncio.gather(*acknowledgements), TIMEOUT_SECONDS)
    finally:
        await producer.stop()


def consume(bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Received]:
    """Read from the start exactly `counts[partition]` records of each partition."""
    return asyncio.run(_consume(bootstrap, topic, counts))


async def _consume(bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Received]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, partition) for partition in counts]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        received: list[Received] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(received) < sum(counts.values()) and time.monotonic() < deadline:
            for rows in (await consumer.getmany(timeout_ms=200)).values():
                received.extend(
                    Received(r.partition, r.key, r.value, tuple(r.headers), r.timestamp, offset=r.offset)
                    for r in rows
                )
        return received
    finally:
        await consumer.stop()


class _Tail:
    """The consumer lives in an event loop of its own, which runs only inside these calls."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._bootstrap = bootstrap
        self._where = TopicPartition(topic, partition)
        self._runner = asyncio.Runner()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def __enter__(self) -> _Tail:
        self._run(self._start())
        return self

    async def _start(self) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=FETCH_WAIT_MS + 40_000,
        )
        await self._consumer.start()
        self._consumer.assign([self._where])
        await self._consumer.seek_to_end(self._where)
        await self._consumer.position(self._where)
        assert not await self._consumer.getmany(timeout_ms=500)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._consumer.stop())
        self._runner.close()

    def next_value(self, seconds: float) -> bytes:
        """The next record's value; AssertionError when none comes."""
        rows = self._run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        for records in rows.values():
            return bytes(records[0].value)
        raise AssertionError(f"no record within {seconds:g} s")


def tail(bootstrap: str, topic: str, partition: int) -> _Tail:
    """A consumer waiting at the partition's end."""
    return _Tail(bootstrap, topic, partition)
