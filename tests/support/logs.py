"""Batches and logs for the storage tests: small, dated from one instant, special where a test wants it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kproc.broker.storage.fs import Fs
from kproc.broker.storage.log import AppendResult, LastStop, Log, LogConfig, LogIdentity
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import ManualClock
from kproc.wire.compression import compress
from kproc.wire.record_batch import decode_records, encode_batch, parse_header, rebuild
from kproc.wire.records import Record, encode_records

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def batch(*values: bytes | str, timestamp: int = NOW_MS, step_ms: int = 0, **fields: Any) -> memoryview:
    """A batch of one record per value, as a client sends it: writable, base offset 0."""
    records = [
        Record(None, value.encode() if isinstance(value, str) else value, timestamp + step_ms * number)
        for number, value in enumerate(values or (b"x",))
    ]
    return memoryview(encode_batch(records, **fields))


def dated(
    *deltas: int, base: int = NOW_MS, largest: int = NOW_MS, codec: int = 0, key: bytes | None = None
) -> memoryview:
    """A batch whose records have these timestamp deltas, and whose header says what it likes of them."""
    plain = batch(*([b"x"] * len(deltas)), timestamp=base)
    records = ((delta, number, Record(key, b"x")) for number, delta in enumerate(deltas))
    payload = compress(codec, encode_records(records))
    return memoryview(rebuild(parse_header(plain), payload, codec=codec, max_timestamp=largest)[0])


def sequenced(
    producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1, **fields: Any
) -> memoryview:
    """A batch of an idempotent producer."""
    return batch(
        *([b"v"] * count), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields
    )


@dataclass
class LogRig:
    """Opens one partition's log again and again, as starts and crashes do."""

    directory: Path
    config: LogConfig = field(default_factory=LogConfig)
    clock: ManualClock = field(default_factory=lambda: ManualClock(wall_ms=NOW_MS))
    fs: Fs = field(default_factory=OsFs)
    leader_epoch: int = 0

    def open(self, **fields: Any) -> Log:
        """Open (or create) the log. `fields` are those of LastStop, the leader epoch and the topic id."""
        leader_epoch = fields.pop("leader_epoch", self.leader_epoch)
        identity = self.identity._replace(topic_id=fields.pop("topic_id", TOPIC_ID))
        return Log.open(
            identity,
            self.config,
            leader_epoch=leader_epoch,
            clock=self.clock,
            fs=self.fs,
            last=LastStop(**fields),
        )

    @property
    def identity(self) -> LogIdentity:
        """The partition t-0 in the rig's directory."""
        return LogIdentity(self.directory, "t", TOPIC_ID, 0)

    @property
    def files(self) -> dict[str, bytes]:
        """All files of the partition with their bytes."""
        return {path.name: path.read_bytes() for path in sorted(self.directory.iterdir())}


def append_one(log: Log, view: memoryview, **fields: Any) -> AppendResult:
    """Append a single batch."""
    (result,) = log.append([view], **fields)
    return result


def read_all(log: Log, offset: int | None = None, **fields: Any) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record from an offset on, through read() and the files it points at."""
    offset = log.state.start_offset if offset is None else offset
    found: list[tuple[int, bytes | None]] = []
    while offset < log.state.end_offset:
        result = log.read(offset, 1 << 20, **fields)
        if not result.ranges:
            break
        content = b""
        for part in result.ranges:
            with open(part.path, "rb") as file:
                file.seek(part.position)
                content += file.read(part.length)
        records = records_in(content)
        found += [(record.offset, record.value) for record in records if record.offset >= offset]
        offset = found[-1][0] + 1
    return found


def records_in(content: bytes) -> list[Record]:
    """The records of whole batches back to back; one that is cut at the end is left out."""
    records: list[Record] = []
    position = 0
    while position + 12 <= len(content):
        total = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        if position + total > len(content):
            break
        records += decode_records(content[position : position + total])
        position += total
    return records


def write_log(rig: LogRig, count: int = 20, *, clean: bool = False) -> list[int]:
    """`count` batches of two records, dated rising; returns their positions. The log is closed."""
    log = rig.open()
    positions = []
    for number in range(count):
        positions.append(log.state.active_bytes)
        append_one(log, batch(f"a{number}", f"b{number}", timestamp=NOW_MS + 10 * number))
    log.close(clean=clean)
    return positions
