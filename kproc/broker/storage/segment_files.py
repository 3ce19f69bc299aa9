"""Reads attributes of a log from its files, for a process that does not own it: the cleaner, before it calls the owner.

The functions read only names, sizes, times and single entries. Meanwhile the owner continues: a file may disappear, and
the active segment's time index lags behind its records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kproc.broker.storage.batch_scan import BadBatch, walk_headers
from kproc.broker.storage.compaction_files import SegmentIdentity
from kproc.broker.storage.compaction_policy import SealedSegment
from kproc.broker.storage.format import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_ENTRY,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    AbortedTransaction,
    parse_segment_file_name,
    segment_file_name,
)
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.retention import SegmentInfo
from kproc.broker.storage.txn_index import read_aborted
from kproc.common.clock import NS_PER_MS
from kproc.wire.batch_header import MAX_TIMESTAMP
from kproc.wire.record_batch import NO_TIMESTAMP


def segment_bases(fs: Fs, directory: Path) -> list[int]:
    """Return the base offsets of the segments in a partition's directory, in ascending order."""
    parsed = (parse_segment_file_name(name, LOG_SUFFIX) for name in fs.list_directory(directory))
    return sorted(base for base in parsed if base is not None)


def holds_records(fs: Fs, directory: Path) -> bool:
    """Return True if any segment in a partition's directory has bytes."""
    paths = (directory / segment_file_name(base, LOG_SUFFIX) for base in segment_bases(fs, directory))
    return any((facts := fs.facts_at(path)) is not None and facts.st_size for path in paths)


def holds_synced_records(fs: Fs, directory: Path) -> bool:
    """Return True if any segment in a partition's directory is marked as synced."""
    for base in segment_bases(fs, directory):
        descriptor = fs.open(directory / segment_file_name(base, LOG_SUFFIX), writable=False)
        try:
            # One mark is enough, because it is only written when a sync of this log has succeeded.
            if fs.read_synced_mark(descriptor):
                return True
        finally:
            fs.close(descriptor)
    return False


def info_from_files(fs: Fs, directory: Path, bases: Sequence[int], end_offset: int) -> list[SegmentInfo]:
    """Return base, end, size in bytes and largest timestamp of the segments with these base offsets.

    The last one is the active segment and ends at `end_offset`.
    """
    info = []
    for base, following in zip(bases, [*bases[1:], end_offset], strict=True):
        log = _facts_of(fs, directory / segment_file_name(base, LOG_SUFFIX))
        if log is None:
            info.append(SegmentInfo(base, following, 0, NO_TIMESTAMP))
            continue
        dated = _last_timestamp(fs, directory / segment_file_name(base, TIME_INDEX_SUFFIX))
        # As in Kafka's LogSegment.largestTimestamp, use the file's time if the time index is empty: the segment has no
        # timestamps or was just created.
        if dated < 0:
            dated = log.st_mtime_ns // NS_PER_MS
        info.append(SegmentInfo(base, following, log.st_size, dated))
    return info


def sealed_segments(
    fs: Fs, directory: Path, identities: Sequence[SegmentIdentity], end_offset: int
) -> list[SealedSegment]:
    """Return the segments with the sizes that group_segments() needs. The last one ends at `end_offset`."""
    segments = []
    nexts = [*(each.base_offset for each in identities[1:]), end_offset]
    # zip() must not be strict, because `nexts` has one element even without segments.
    for identity, following in zip(identities, nexts, strict=False):
        log, index, time_index = (
            _facts_of(fs, directory / segment_file_name(identity.base_offset, suffix))
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        segments.append(
            SealedSegment(
                identity.base_offset,
                following,
                identity.size,
                identity.inode,
                0 if index is None else index.st_size,
                0 if time_index is None else time_index.st_size,
                0 if log is None else log.st_mtime_ns,
            )
        )
    return segments


def first_timestamp(fs: Fs, directory: Path, base_offset: int) -> int:
    """Return the largest timestamp in ms of a segment's first batch, or -1 if no whole batch can be read."""
    path = directory / segment_file_name(base_offset, LOG_SUFFIX)
    # The owner may have deleted or swapped the segment since the caller listed it.
    if not fs.exists(path):
        return NO_TIMESTAMP
    descriptor = fs.open(path, writable=False)
    try:
        size = fs.facts(descriptor).st_size
        for _, header in walk_headers(fs, descriptor, 0, size, chunk_bytes=64):
            return header[MAX_TIMESTAMP]
    except BadBatch:
        # A bad batch is no damage here, because the owner may be writing it just now.
        return NO_TIMESTAMP
    finally:
        fs.close(descriptor)
    return NO_TIMESTAMP


def aborted_transactions(fs: Fs, directory: Path, bases: Iterable[int]) -> list[AbortedTransaction]:
    """Return the aborted transactions in the transaction indexes of these segments."""
    return [
        entry
        for base in bases
        for entry in read_aborted(fs, directory / segment_file_name(base, TXN_INDEX_SUFFIX))
    ]


def _facts_of(fs: Fs, path: Path) -> os.stat_result | None:
    if not fs.exists(path):
        return None
    descriptor = fs.open(path, writable=False)
    try:
        return fs.facts(descriptor)
    finally:
        fs.close(descriptor)


def _last_timestamp(fs: Fs, path: Path) -> int:
    facts = _facts_of(fs, path)
    if facts is None or facts.st_size < TIME_ENTRY.size:
        return NO_TIMESTAMP
    descriptor = fs.open(path, writable=False)
    try:
        # Ignore a part of an entry at the end, which the owner may be appending just now.
        at = facts.st_size - facts.st_size % TIME_ENTRY.size - TIME_ENTRY.size
        entry = fs.read(descriptor, TIME_ENTRY.size, position=at)
    finally:
        fs.close(descriptor)
    timestamp: int = TIME_ENTRY.unpack(entry)[0]
    return timestamp
