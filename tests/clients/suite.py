"""Scenarios that every client must pass, written once; each test file names its client."""

from __future__ import annotations

import threading
import time

from tests.support.adapters.base import FETCH_WAIT_MS, ClientAdapter
from tests.support.records import (
    LARGE_SIZES,
    SMALL_SIZES,
    Received,
    Sample,
    assert_same,
    by_partition,
    samples,
)

# Half of the long poll: a consumer woken by the timer needs at least that on average, one woken by the append
# needs milliseconds.
LARGE_TOPIC = {"max.message.bytes": "25000000"}


def round_trip(
    client: ClientAdapter,
    bootstrap: str,
    topic: str,
    records: list[Sample],
    *,
    compression: str,
    idempotent: bool = True,
) -> None:
    """Produce, consume, compare every byte."""
    started_ms = int(time.time() * 1000)
    client.produce(bootstrap, topic, records, compression=compression, idempotent=idempotent)
    counts = {partition: len(rows) for partition, rows in by_partition(records).items()}
    received = client.consume(bootstrap, topic, counts)
    if not client.sends_timestamps:
        finished_ms = int(time.time() * 1000)
        assert all(started_ms <= record.timestamp_ms <= finished_ms for record in received)
        received = [without_timestamp(record) for record in received]
        records = [Sample(r.partition, r.key, r.value, r.headers, 0) for r in records]
    assert_same(records, received)


def without_timestamp(record: Received) -> Received:
    """For tools that stamp records themselves."""
    return Received(record.partition, record.key, record.value, record.headers, 0, offset=record.offset)


def small_records(client: ClientAdapter, *, partitions: int = 3, copies: int = 3) -> list[Sample]:
    """1 B to 100 KB, several of each, over the partitions."""
    return samples(
        SMALL_SIZES * copies,
        partitions=partitions,
        seed=11,
        headers=client.sends_nulls,
        nulls=client.sends_nulls,
    )


def large_records() -> list[Sample]:
    """1 MB to 20 MB, on two partitions, with small ones between them."""
    sizes = [size for large in LARGE_SIZES for size in (1, large)]
    return samples(sizes, partitions=2, seed=12, headers=False, nulls=False)


def is_woken_by_append(client: ClientAdapter, bootstrap: str, topic: str) -> None:
    """A consumer in its long poll at the end of the log gets a new record before the poll ends, three times over.

    A machine that is busy may take seconds for it. Unless an append wakes the poll, each of the rounds takes the whole
    poll: one round that does not shows that it works.
    """
    taken = []
    with client.tail(bootstrap, topic, 0) as tail:
        for round_number in range(3):
            value = f"wake-{round_number}".encode()
            sender = threading.Thread(target=_send_one, args=(bootstrap, topic, value))
            started = time.monotonic()
            sender.start()
            try:
                assert tail.next_value(seconds=12 * FETCH_WAIT_MS / 1000) == value
                taken.append(time.monotonic() - started)
            finally:
                sender.join()
    assert min(taken) < FETCH_WAIT_MS / 1000 / 2, f"woken after {taken} s, the long poll is {FETCH_WAIT_MS} ms"


def _send_one(bootstrap: str, topic: str, value: bytes) -> None:
    from tests.support.adapters import confluent

    confluent.produce(bootstrap, topic, [Sample(0, b"k", value, (), 1)], idempotent=False)
