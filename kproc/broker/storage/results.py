"""The results of a Log's methods: plain values, created once per batch or read, never changed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kproc.broker.storage.segment import LogSegment
from kproc.common.errors import RecordErrors
from kproc.wire.file_range import FileRange


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of appending one batch, with the fields that a partition has in a Produce response.

    A msgspec struct, because there is one per batch: it takes 80 ns to create, a NamedTuple 300 ns.
    """

    error_code: int
    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    message: str | None = None
    is_duplicate: bool = False
    record_errors: RecordErrors = ()


class ReadResult(NamedTuple):
    """Ranges of the log's files. As in Kafka, the last batch may be incomplete."""

    ranges: list[FileRange]
    bytes: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class SyncPoint(NamedTuple):
    """The descriptors that a sync thread must fdatasync so that everything before `end_offset` is on the disk.

    The descriptors stay open until the owner passes the point to LogDurability.mark_synced() or sync_failed().
    """

    fds: tuple[int, ...]
    end_offset: int
    # Sealed segments, then the active one, which is missing if too many sealed segments wait.
    segments: tuple[LogSegment, ...]
    sealed_count: int  # Number of `segments` that were sealed when the point was made.
    sizes: tuple[int, ...]  # Sizes of `segments` in bytes when the point was made.
    extra_fds: tuple[int, ...]  # Descriptors of directories and small files, opened only for this point.
    directory_fd: int | None  # The partition's directory among `extra_fds`, if it has new names.
    closes: bool = False  # True if the log is closed behind the point.


class RecordPosition(NamedTuple):
    """Offset and timestamp of a record that was looked up by its timestamp."""

    offset: int
    timestamp: int
