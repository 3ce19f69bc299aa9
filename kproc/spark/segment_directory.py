"""SegmentDirectory: the segment files of a partition, which their owner changes while this process reads them.

A running broker appends, rolls, deletes by retention, and replaces segments by compaction. Therefore:

- A missing file is looked for under its `.deleted` name, and then the directory is listed again.
- An open file stays complete when it is renamed or deleted. But an index can already belong to its replacement, so the
  batch at an index's position is checked before it is used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kproc.broker.storage.format import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import Corrupt
from kproc.common.regular_file import open_regular
from kproc.spark.brokers import pause
from kproc.wire.batch_header import BASE_OFFSET, HEADER, HEADER_BYTES, MAGIC_BYTE, last_offset_of
from kproc.wire.record_batch import MAGIC

if TYPE_CHECKING:
    from typing import Any

    Array = np.ndarray[Any, np.dtype[Any]]

LOOKS: Final = 20
"""Number of times in a row that a listed segment is missing, after which the log counts as corrupt."""
_TIME_INDEX: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_SWAP_LOOKS: Final = 100
_SWAP_PAUSE_MS: Final = 20
"""Pause, in ms, between 100 checks for `.swap` files. A broker's renames take some ms at most.

After 2 s none is active.
"""
# Errors of fsync() on a read-only medium and on file systems that do not support it.
_NO_SYNC: Final = frozenset({errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_fs = OsFs()
_Found = TypeVar("_Found")


class HalfReplaced(Exception):
    """A crash interrupted a compaction between its renames. The broker's next start decides which files are valid."""


@dataclass(frozen=True)
class SegmentDirectory:
    """The segment files of one partition, by the base offsets of the segments."""

    directory: Path

    def __str__(self) -> str:
        return f"{self.directory.name} in {self.directory.parent}"

    def bases(self) -> list[int]:
        """Return the sorted base offsets of the segments; empty if the partition was deleted.

        Raises HalfReplaced if `.swap` files stay for 2 s.
        """
        for _ in range(_SWAP_LOOKS):
            try:
                names = os.listdir(self.directory)
            except FileNotFoundError:
                return []
            # `.swap`: the broker is between the renames of a compaction. It has renamed the old segments to `.deleted`,
            # but not yet their replacement to its final name. Wait until it has.
            swaps = [name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
            if not swaps:
                break
            pause(_SWAP_PAUSE_MS)
        else:
            raise HalfReplaced(
                f"{self}: {swaps[0]} is left from a compaction that the end of the broker interrupted: start the "
                "broker, which completes or discards the compaction"
            )
        parsed = (parse_segment_file_name(name, LOG_SUFFIX) for name in names)
        return sorted(base for base in parsed if base is not None)

    def sync(self) -> None:
        """Sync the segment files and the directory with their names.

        The files do not show how far the broker has synced them. Without this sync, a power loss could remove records
        of acks=all that a job has read. Errors of a medium without syncs are ignored, because it has no unsynced
        records.
        """

        def sync_all(bases: list[int]) -> None:
            for base in bases:
                descriptor = self.open(base)
                try:
                    _sync(descriptor)
                finally:
                    os.close(descriptor)

        self.repeat_until_listed(sync_all)
        # Sync the directory, too. If a file's name is not synced, a power loss can remove the file with all its records
        # (fsync(2)).
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def path(self, base: int) -> Path:
        return self.directory / segment_file_name(base, LOG_SUFFIX)

    def open(self, base: int) -> int:
        """Open a segment by its base offset, also if it was renamed to `.deleted`.

        Raises FileNotFoundError if the broker has unlinked the file.
        """
        path = self.path(base)
        try:
            return open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            # Retention or compaction has renamed the segment since it was listed, and unlinks it later.
            return open_regular(path.with_name(path.name + DELETED_SUFFIX), os.O_RDONLY)

    def repeat_until_listed(self, look: Callable[[list[int]], _Found]) -> _Found:
        """Call `look` with the base offsets and return its result. Repeat the call if a segment disappears during it.

        Raises Corrupt if a listed segment is missing LOOKS times in a row.
        """
        for _ in range(LOOKS):
            try:
                return look(self.bases())
            except FileNotFoundError:
                # The broker has deleted or replaced a segment during `look`: list the directory again.
                continue
        raise Corrupt(
            f"{self}: the directory lists a segment whose file does not exist, {LOOKS} times in a row"
        )

    def size(self, base: int) -> int:
        try:
            return self.path(base).stat().st_size
        except FileNotFoundError:
            # The broker has deleted the segment since it was listed. The size only decides where ranges are cut.
            return 0

    def offset_index(self, base: int) -> tuple[Array, Array]:
        """Return (last offsets, positions) of the entries in a segment's offset index.

        Both are empty if the index is missing.
        """
        content = _fs.read_file(self.directory / segment_file_name(base, INDEX_SUFFIX)) or b""
        pairs = np.frombuffer(content[: len(content) // 8 * 8], ">i4").reshape(-1, 2).astype(np.int64)
        rows = _growing(pairs[:, 1])
        return pairs[:rows, 0] + base, pairs[:rows, 1]

    def time_index(self, base: int) -> Array:
        content = _fs.read_file(self.directory / segment_file_name(base, TIME_INDEX_SUFFIX)) or b""
        entries = np.frombuffer(content[: len(content) // 12 * 12], _TIME_INDEX)
        entries = entries[: _growing(entries["timestamp"])]
        # Kafka preallocates the index with zeros: a single entry with timestamp 0 is unused space.
        return entries[1:] if len(entries) == 1 and entries["timestamp"][0] == 0 else entries

    def indexed(self, base: int, offset: int) -> tuple[int, int]:
        """Return (last offset, position) of the last index entry at or below the offset, or else (base, 0)."""
        last_offsets, positions = self.offset_index(base)
        entry = int(np.searchsorted(last_offsets, offset, side="right")) - 1
        return (int(last_offsets[entry]), int(positions[entry])) if entry >= 0 else (base, 0)

    def position(self, base: int, offset: int, descriptor: int) -> int:
        """Return a position in the open segment at or before the batch that contains the offset.

        Return 0, the start of the segment, if the batch at the index's position does not match the entry: the index can
        belong to another version of the segment than the open file.
        """
        last_offset, position = self.indexed(base, offset)
        raw = os.pread(descriptor, HEADER_BYTES, position) if position else b""
        if len(raw) < HEADER_BYTES:
            return 0
        header = HEADER.unpack(raw)
        # Accept a smaller last offset than the entry's: if Kafka appends several batches at once, their index entry has
        # the last offset of all of them.
        is_it = (
            header[MAGIC_BYTE] == MAGIC
            and base <= header[BASE_OFFSET] <= last_offset_of(header) <= last_offset
        )
        return position if is_it else 0


def _sync(descriptor: int) -> None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _growing(numbers: Array) -> int:
    """Return the length of the increasing prefix.

    In an active segment's index, zeros that Kafka preallocated follow it.
    """
    stops = np.flatnonzero(numbers[1:] <= numbers[:-1])
    if len(stops):
        return int(stops[0]) + 1
    return len(numbers)
