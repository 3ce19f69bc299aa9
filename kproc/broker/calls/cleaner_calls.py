"""Calls from Handlers to the cleaner, and from the cleaner to the owners of partitions."""

from __future__ import annotations

from typing import Final

import msgspec

from kproc.broker.calls.calls import Call, FromImage, Reply
from kproc.broker.storage.compaction_files import SegmentIdentity


class Done(Reply):
    """The outcome of a task of the cleaner: `error` is None, or the reason why it failed."""

    error: str | None


class LogDirRequest(msgspec.Struct, array_like=True):
    """The partitions whose sizes DescribeLogDirs requests: topics, and indexes of their partitions."""

    topics: list[tuple[str, list[int]]]


class LogDirUsage(Reply):
    """The bytes of the requested partitions, a list per topic in the request's order, and of the file system."""

    log_dir: str
    sizes: list[list[int]]
    total_bytes: int
    usable_bytes: int


class LogFileFigures(msgspec.Struct, array_like=True):
    """Figures from a partition's files: the bytes of its records, and two times in ms since 1970.

    newest_ms: when the broker wrote the newest record, or -1 without records.
    oldest_ms: the timestamp of the oldest record, or -1 without records.
    """

    bytes: int
    newest_ms: int
    oldest_ms: int


class LogFiguresReply(Reply):
    """The figures of the requested partitions: a list per topic, in the request's order."""

    figures: list[list[LogFileFigures]]


class PartitionRequest(FromImage):
    """A call about one partition to its owner, for example to enforce its retention."""

    topic: str
    partition: int


class Deleted(Reply):
    """The number of segments that an owner has deleted by retention."""

    count: int


class LogRequest(msgspec.Struct, array_like=True):
    """A partition's log. The topic id tells it from a log of a later topic with the same name."""

    topic: str
    topic_id: bytes
    partition: int


class LogInfo(msgspec.Struct, array_like=True):
    """The state of a log that the cleaner needs to compact it, from the log's owner."""

    start_offset: int
    end_offset: int
    stable_offset: int
    synced_offset: int
    segments: list[SegmentIdentity]
    producers: dict[int, tuple[int, int]]  # (offset of the newest data batch or -1, epoch)


class CompactionPrepared(Reply):
    """The owner's reply before a compaction: the state of the log, or the reason why it cannot be compacted now."""

    facts: LogInfo | None = None
    refused: str = ""


class SwapRequest(LogRequest):
    """The cleaner's call to replace segments of a log with one that it has compacted."""

    old: list[SegmentIdentity]
    new: SegmentIdentity


class Swapped(Reply):
    """The time that the swap took in microseconds, or the reason why it was rejected."""

    took_us: int | None = None
    refused: str = ""


class CleanerActivity(Reply):
    """Says if the cleaner checks the retention of partitions, and if it looks for a log to compact or compacts one."""

    checks_retention: bool
    compacts: bool


# The cleaner writes the checkpoints when its metadata are as new as the sender's.
WRITE_CHECKPOINTS: Final[Call[FromImage, Done]] = Call("write_checkpoints", FromImage, Done)
SHOW_CLEANER_ACTIVITY: Final[Call[FromImage, CleanerActivity]] = Call(
    "cleaner_activity", FromImage, CleanerActivity
)
READ_LOG_FIGURES: Final[Call[LogDirRequest, LogFiguresReply]] = Call(
    "log_figures", LogDirRequest, LogFiguresReply
)
DESCRIBE_LOG_DIR: Final[Call[LogDirRequest, LogDirUsage]] = Call(
    "describe_log_dir", LogDirRequest, LogDirUsage
)
ENFORCE_RETENTION: Final[Call[PartitionRequest, Deleted]] = Call(
    "enforce_retention", PartitionRequest, Deleted
)
PREPARE_COMPACTION: Final[Call[LogRequest, CompactionPrepared]] = Call(
    "prepare_compaction", LogRequest, CompactionPrepared
)
SWAP_SEGMENTS: Final[Call[SwapRequest, Swapped]] = Call("swap_segments", SwapRequest, Swapped)
