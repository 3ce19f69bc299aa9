"""Which segments retention takes: pure functions over facts, so that a table of cases tests them.

The owner knows the facts of its open logs; the cleaner reads them from files (`proposals`), and asks.

As in Kafka: only from the oldest on, without gaps; the active segment may go by age (the log rolls first),
an empty one never; a segment goes by size only while the log stays at least as large as retention.bytes
without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kproc.storage.batch_scan import BadBatch, walk_headers
from kproc.storage.format import (
    LOG_SUFFIX,
    TIME_ENTRY,
    TIME_INDEX_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from kproc.storage.fs import Fs
from kproc.storage.log_config import LogConfig

_NS_PER_MS = 1_000_000


class SegmentFacts(NamedTuple):
    """What retention looks at."""

    base_offset: int
    next_offset: int  # The next segment's base, or the log's end.
    size: int
    largest_timestamp: int


def expired(segments: Sequence[SegmentFacts], *, now_ms: int, retention_ms: int) -> int:
    """How many of the oldest segments are older than retention.ms; -1 keeps all."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        if not segment.size or now_ms - segment.largest_timestamp <= retention_ms:
            break
        count += 1
    return count


def oversized(segments: Sequence[SegmentFacts], *, retention_bytes: int) -> int:
    """How many of the oldest segments can go with retention.bytes still there; -1 keeps all."""
    if retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        if not segment.size or surplus < segment.size:
            break
        surplus -= segment.size
        count += 1
    return count


def below_start(segments: Sequence[SegmentFacts], *, start_offset: int) -> int:
    """How many of the oldest segments end at or before the log's start (DeleteRecords moved it)."""
    count = 0
    for segment in segments:
        if not segment.size or segment.next_offset > start_offset:
            break
        count += 1
    return count


def victims(
    segments: Sequence[SegmentFacts], config: LogConfig, *, now_ms: int, start_offset: int
) -> tuple[str, int]:
    """(reason, how many of the oldest segments go): the rule that takes most."""
    counts = {"log start offset": below_start(segments, start_offset=start_offset)}
    if config.is_deleting:
        counts["retention.ms"] = expired(segments, now_ms=now_ms, retention_ms=config.retention_ms)
        counts["retention.bytes"] = oversized(segments, retention_bytes=config.retention_bytes)
    reason = max(counts, key=lambda name: counts[name])
    return reason, counts[reason]


def proposals(fs: Fs, directory: Path, config: LogConfig, now_ms: int) -> tuple[int, str] | None:
    """(offset, reason): the segments that end at or before it may go; None when all stay, or there is no log.

    For the cleaner, which does not own the log: it only reads, and the owner goes on meanwhile.
    `Log.delete_segments_before` takes only what ends below the offset, so a late proposal does no harm.
    """
    if not fs.exists(directory):
        return None
    facts = _facts_from_files(fs, directory)
    reason, count = victims(facts, config, now_ms=now_ms, start_offset=0)
    if not count:
        return None
    if count < len(facts):
        return facts[count].base_offset, reason
    end_offset = _end_offset(fs, directory, facts[-1])
    return None if end_offset is None else (end_offset, reason)


def _facts_from_files(fs: Fs, directory: Path) -> list[SegmentFacts]:
    names = fs.list_directory(directory)
    parsed = (parse_segment_file_name(name, LOG_SUFFIX) for name in names)
    bases = sorted(base for base in parsed if base is not None)
    facts = []
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        size, modified_ms = _size_and_time(fs, directory / segment_file_name(base, LOG_SUFFIX))
        dated = _last_timestamp(fs, directory / segment_file_name(base, TIME_INDEX_SUFFIX))
        if following is None or dated < 0:
            # The active segment's time index lags behind its records; the file's own time does not.
            dated = max(dated, modified_ms)
        facts.append(SegmentFacts(base, base + 1 if following is None else following, size, dated))
    return facts


def _size_and_time(fs: Fs, path: Path) -> tuple[int, int]:
    if not fs.exists(path):
        return 0, 0  # Deleted meanwhile: an empty segment is no victim, nor what follows it.
    descriptor = fs.open(path, writable=False)
    facts = fs.facts(descriptor)
    fs.close(descriptor)
    return facts.st_size, facts.st_mtime_ns // _NS_PER_MS


def _last_timestamp(fs: Fs, path: Path) -> int:
    size, _ = _size_and_time(fs, path)
    if size < TIME_ENTRY.size:
        return -1
    descriptor = fs.open(path, writable=False)
    entry = fs.read(descriptor, TIME_ENTRY.size, position=size - size % TIME_ENTRY.size - TIME_ENTRY.size)
    fs.close(descriptor)
    timestamp: int = TIME_ENTRY.unpack(entry)[0]
    return timestamp


def _end_offset(fs: Fs, directory: Path, active: SegmentFacts) -> int | None:
    """Where the log ends, by the headers of its last segment; None while a batch is being written."""
    descriptor = fs.open(directory / segment_file_name(active.base_offset, LOG_SUFFIX), writable=False)
    end_offset = active.base_offset
    try:
        for _, header in walk_headers(fs, descriptor, 0, active.size):
            end_offset = header[0] + header[6] + 1
    except BadBatch:
        return None
    finally:
        fs.close(descriptor)
    return end_offset
