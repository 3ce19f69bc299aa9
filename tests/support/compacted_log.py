"""A log of keyed records that is compacted and read back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from kproc.broker.storage.log import Log
from kproc.wire.record_batch import BatchHeader, encode_batch, parse_header
from kproc.wire.records import Record
from tests.support.logs import NOW_MS, LogRig, records_in


def keyed(*pairs: tuple[str | None, str | None], timestamp: int = NOW_MS, **fields: Any) -> memoryview:
    """A batch of (key, value) pairs."""
    records = [
        Record(
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            timestamp + number,
        )
        for number, (key, value) in enumerate(pairs)
    ]
    return memoryview(encode_batch(records, **fields))


@dataclass
class ClosingRig(LogRig):
    """Closes its logs when the test ends."""

    stack: ExitStack = field(default_factory=ExitStack)

    def open(self, **fields: Any) -> Log:
        log = super().open(**fields)
        self.stack.callback(log.close, clean=False)
        return log


def batches_of(log: Log) -> list[BatchHeader]:
    found = []
    for segment in log.state.segments.all():
        content = segment.path(".log").read_bytes()
        position = 0
        while position < len(content):
            found.append(parse_header(content, position))
            position += found[-1].total_bytes
    return found


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records in the files."""
    found = []
    for segment in log.state.segments.all():
        records = records_in(segment.path(".log").read_bytes())
        found += [(record.offset, record.key, record.value) for record in records]
    return found
