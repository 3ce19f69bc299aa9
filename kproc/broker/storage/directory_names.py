"""The names of the files in a partition's directory: files of segments, and files that a crash has left over.

Recovery calls these functions before it opens any segment, because a power loss can keep some changes of names and lose
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kproc.broker.storage.failed_sync import write_note
from kproc.broker.storage.format import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file_name,
)
from kproc.broker.storage.fs import Fs, StorageFailure, sync_directory
from kproc.common.errors import Corrupt
from kproc.wire.primitives import INT64_MAX

WAY_OUT_OF_LOSS: Final = (
    "files are missing or truncated; restore them and restart the broker; OPERATING.md, 'Partitions that are refused', "
    "says how to accept the loss"
)


def log_bases(names: Iterable[str]) -> list[int]:
    """Return the base offsets of a log's segments, in ascending order."""
    bases = (parse_segment_file_name(name, LOG_SUFFIX) for name in names)
    return sorted(base for base in bases if base is not None)


def read_newest_mark(fs: Fs, directory: Path) -> int | None:
    descriptor = fs.open_directory(directory)
    try:
        return fs.read_newest_mark(descriptor)
    finally:
        fs.close(descriptor)


def check_newest(directory: Path, bases: Sequence[int], newest: int | None, start_offset: int) -> None:
    """Raise Corrupt if the log has no segment with the base offset `newest` or a higher one.

    newest: the base offset of the newest segment whose name was synced, by the mark in the directory's attribute.
    bases: the base offsets of the existing segments. start_offset: the log's start.

    No crash causes this. Recovery removes no segment up to the mark. Retention and DeleteRecords keep the last segment,
    or create a new one first, and compaction keeps it. There is one exception: a power loss can keep the deletion of
    all segments and lose the new one. Then a DeleteRecords has moved the log's start above the mark: do not raise.
    """
    if newest is None or (bases and bases[-1] >= newest) or newest < start_offset:
        return
    raise Corrupt(
        f"{directory} has no segment from offset {newest} on, but one was stored: {WAY_OUT_OF_LOSS}"
    )


def finish_interrupted(fs: Fs, directory: Path, names: Iterable[str]) -> tuple[list[int], list[int]]:
    """Finish the deletions and writes that a crash interrupted. Return (segment bases, snapshot offsets), ascending.

    Unlinks files with the suffixes .deleted and of temporary files, and indexes without a .log file.
    """
    bases: list[int] = []
    snapshots: list[int] = []
    indexes: list[tuple[int, str]] = []
    strays: list[str] = []
    for name in names:
        suffix = name[name.rfind(".") :]
        base = parse_segment_file_name(name, suffix)
        # .deleted files are from an owner that died before file.delete.delay.ms had passed, temporary files from one
        # that died inside replace_file().
        if suffix in (DELETED_SUFFIX, TEMPORARY_SUFFIX):
            strays.append(name)
        # Skip files that belong to no segment, such as leader-epoch-checkpoint and partition.metadata.
        elif base is None:
            continue
        elif suffix == LOG_SUFFIX:
            bases.append(base)
        elif suffix == SNAPSHOT_SUFFIX:
            snapshots.append(base)
        elif suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            indexes.append((base, name))
    # Remove indexes without a .log file. A power loss can leave them, because a roll and a deletion change several
    # names, which reach the disk in any order.
    strays += [name for base, name in indexes if base not in bases]
    # An earlier recovery renamed a torn segment and crashed before it synced the new name. Sync it before the file is
    # removed.
    if any(_was_behind(name, bases) for name in strays):
        sync_names(fs, directory)
    # Unlink only after the sync above. In the other order a power loss could bring a segment back whose
    # offsets new records have got meanwhile.
    for name in strays:
        fs.unlink(directory / name)
    return sorted(bases), sorted(snapshots)


def _was_behind(stray: str, bases: Sequence[int]) -> bool:
    """Return True if `stray` names a .log.deleted file of a segment behind the last one.

    Only a recovery that truncated a torn tail leaves such a file. Retention deletes only the oldest segments, and
    compaction replaces only segments before the active one.
    """
    base = parse_segment_file_name(stray, LOG_SUFFIX + DELETED_SUFFIX)
    return base is not None and base > max(bases, default=INT64_MAX)


def sync_names(fs: Fs, directory: Path) -> None:
    """Sync the directory after renames and before any append.

    Otherwise a power loss could bring a removed segment back, and its records would have the same offsets as new ones.
    If the sync fails, create the note of failed_sync.py, so that the next opening does not believe the page cache.
    """
    try:
        sync_directory(fs, directory)
    except StorageFailure:
        write_note(fs, directory)
        raise
