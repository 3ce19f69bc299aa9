"""Batches of transactions and the markers that end them, as they are in a partition's log, and Kafka's reader of them.

No coordinator takes part: batches are appended with the broker's own hand (storage's origin COORDINATOR).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kproc.broker.storage.log import AppendResult, Log
from kproc.broker.storage.validate import COORDINATOR, read_marker
from kproc.wire.record_batch import TRANSACTIONAL, decode_records, encode_batch, parse_header
from kproc.wire.records import Record
from kproc.wire.transaction_marker import ControlType, encode_end_transaction
from tests.support.logs import NOW_MS, append_one

Values = list[tuple[int, bytes | None]]


def in_transaction(
    producer_id: int, *values: bytes | str, key: bytes | None = None, epoch: int = 0, timestamp: int = NOW_MS
) -> memoryview:
    """A batch of a producer's open transaction, which begins with it if none is open."""
    records = [
        Record(key, value.encode() if isinstance(value, str) else value, timestamp) for value in values
    ]
    batch = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, flags=TRANSACTIONAL)
    return memoryview(batch)


def marker(producer_id: int, *, commit: bool, epoch: int = 0, timestamp: int = NOW_MS) -> memoryview:
    """What ends a producer's transaction."""
    return memoryview(
        encode_end_transaction(
            ControlType.COMMIT if commit else ControlType.ABORT,
            timestamp_ms=timestamp,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
        )
    )


def put(log: Log, view: memoryview) -> AppendResult:
    """Append a batch of a transaction or its end."""
    result = append_one(log, view, origin=COORDINATOR)
    assert result.error_code == 0, result
    return result


Fetch = Callable[[int], tuple[bytes, list[tuple[int, int]]]]


def committed_fetch(log: Log, max_bytes: Callable[[], int]) -> Fetch:
    """What a log gives a reader of committed records at an offset, as `read_committed` takes it."""

    def fetch(offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        found = log.read(offset, max_bytes(), committed=True)
        parts = []
        for part in found.ranges:
            descriptor = log.state.fs.open(Path(os.fsdecode(part.path)), writable=False)
            parts.append(log.state.fs.read(descriptor, part.length, position=part.position))
            log.state.fs.close(descriptor)
        aborted = [(each.producer_id, each.first_offset) for each in log.aborted_in(offset, found)]
        return b"".join(parts), aborted

    return fetch


def read_committed(fetch: Fetch, offset: int) -> tuple[Values, int]:
    """What Kafka's consumer hands out from an offset on, and how far it comes, with the rule of its Fetcher.

    `fetch` gives the bytes at an offset and the (producer id, first offset) of what was aborted in them.
    """
    found: Values = []
    while True:
        content, named = fetch(offset)
        coming = sorted((first, producer) for producer, first in named)
        aborted: set[int] = set()
        before, position = offset, 0
        while position + 12 <= len(content):
            total = int.from_bytes(content[position + 8 : position + 12], "big") + 12
            if position + total > len(content):
                break
            view = content[position : position + total]
            header, position = parse_header(view), position + total
            while coming and coming[0][0] <= header.last_offset:
                aborted.add(coming.pop(0)[1])
            offset = max(offset, header.last_offset + 1)
            if header.is_control:
                end = read_marker(memoryview(view), header.attributes)
                if end is not None and end[0]:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                records = decode_records(view)
                found += [(each.offset, each.value) for each in records if each.offset >= before]
        if offset == before:
            return found, offset
