"""What Handlers ask the cleaner, and what it asks the owners of partitions."""

from __future__ import annotations

from typing import Final

import msgspec

from kproc.broker.calls.calls import Call, FromImage, Reply
from kproc.broker.storage.compaction_files import SegmentIdentity


class Done(Reply):
    """Whether it has been done: None, or why not."""

    error: str | None


class LogDirAsked(msgspec.Struct, array_like=True):
    """Topics, and indexes of their partitions."""

    topics: list[tuple[str, list[int]]]


class LogDirUsage(Reply):
    """The bytes of each partition's records, in the shape of the question; those of the file system."""

    log_dir: str
    sizes: list[list[int]]
    total_bytes: int
    usable_bytes: int


class PartitionAsked(FromImage):
    """One partition."""

    topic: str
    partition: int


class Deleted(Reply):
    """How many segments."""

    count: int


class LogAsked(msgspec.Struct, array_like=True):
    """A partition's log, which is not that of a namesake."""

    topic: str
    topic_id: bytes
    partition: int


class LogFacts(msgspec.Struct, array_like=True):
    """A log as its owner knows it."""

    start_offset: int
    end_offset: int
    stable_offset: int
    synced_offset: int
    segments: list[SegmentIdentity]
    producers: dict[int, tuple[int, int]]  # (offset of the newest data batch or -1, epoch)


class Prepared(Reply):
    """The facts, or why there are none."""

    facts: LogFacts | None = None
    refused: str = ""


class SwapAsked(LogAsked):
    """Segments, and the one that takes their place."""

    old: list[SegmentIdentity]
    new: SegmentIdentity


class Swapped(Reply):
    """How long it took, or why it was not done."""

    took_us: int | None = None
    refused: str = ""


# The cleaner writes the checkpoints when it knows the sender's metadata, too.
WRITE_CHECKPOINTS: Final[Call[FromImage, Done]] = Call("write_checkpoints", FromImage, Done)
DESCRIBE_LOG_DIR: Final[Call[LogDirAsked, LogDirUsage]] = Call("describe_log_dir", LogDirAsked, LogDirUsage)
ENFORCE_RETENTION: Final[Call[PartitionAsked, Deleted]] = Call("enforce_retention", PartitionAsked, Deleted)
PREPARE_COMPACTION: Final[Call[LogAsked, Prepared]] = Call("prepare_compaction", LogAsked, Prepared)
SWAP_SEGMENTS: Final[Call[SwapAsked, Swapped]] = Call("swap_segments", SwapAsked, Swapped)
