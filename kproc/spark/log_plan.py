"""Plan of a read of format("kproc-log"): find the partitions' files and cut their offsets into ranges. Driver only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kproc.broker.storage.checkpoints import LOG_START_FILE, read_partition_metadata
from kproc.broker.storage.format import LOG_SUFFIX, parse_partition_directory_name
from kproc.broker.storage.log_start import read_start_mark
from kproc.broker.storage.offset_checkpoints import (
    OffsetCheckpoint,
    confirms_log_start,
    read_offset_checkpoint,
)
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import Corrupt
from kproc.common.reading import EARLIEST, LATEST, READ_COMMITTED
from kproc.spark.log_files import PartitionFiles
from kproc.spark.log_options import LogOptions, Offsets
from kproc.spark.option_values import OptionError

# The option `topicsPattern` never matches these topics. The option `topics` can name them.
INTERNAL_TOPICS: Final = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state"}
)


def plan(options: LogOptions) -> list[tuple[PartitionFiles, int, int]]:
    """Return (files, first offset, end) of each range. A partition above maxPartitionBytes has several ranges."""
    found = find_partitions(options)
    _check_named(found, options.starting, "startingOffsets")
    _check_named(found, options.ending, "endingOffsets")
    pieces = []
    for files in found:
        start, end = _bounds(files, options)
        pieces += [(files, *each) for each in files.pieces(start, end, options.partition_bytes)]
    return pieces


def find_partitions(options: LogOptions) -> list[PartitionFiles]:
    """Return the partitions of the chosen topics in all data directories.

    Raises OptionError if a topic has no partition, or if two directories have the same partition.
    """
    found: dict[tuple[str, int], PartitionFiles] = {}
    pattern = None if options.pattern is None else re.compile(options.pattern)
    for path in options.paths:
        directory = Path(path)
        starts = read_offset_checkpoint(OsFs(), directory, LOG_START_FILE)
        for name in _partition_names(directory):
            parsed = parse_partition_directory_name(name)
            assert parsed is not None
            topic = parsed[0]
            # As in a consumer's subscription by pattern (exclude.internal.topics), an internal topic is read only by
            # its name.
            is_hidden = topic in INTERNAL_TOPICS
            if topic in options.topics or (pattern is not None and not is_hidden and pattern.search(topic)):
                files = PartitionFiles(
                    directory / name, *parsed, checkpoint=_log_start(starts, directory / name, *parsed)
                )
                if parsed in found:
                    raise OptionError(
                        f"partition {name} is in {found[parsed].directory.parent} and in {directory}"
                    )
                found[parsed] = files
    missing = set(options.topics) - {topic for topic, _ in found}
    if missing or not found:
        what = f"topic {', '.join(sorted(missing))}" if missing else f"topic that {options.pattern!r} matches"
        raise OptionError(f"there is no {what} in {', '.join(options.paths)}")
    return [found[key] for key in sorted(found)]


def _log_start(starts: OffsetCheckpoint, path: Path, topic: str, partition: int) -> int:
    """Return a partition's log start offset, or 0. It comes from the checkpoint file of the data directory.

    Apache Kafka's file has no topic ids. Then use the entry with the topic's name, as Kafka does. If the topic id has
    no entry, kproc's file was lost: use the mark of the partition's directory (storage/log_start.py), as kproc's next
    start does. Otherwise records that DeleteRecords has deleted would come back.
    """
    named = starts.by_name.get((topic, partition), 0)
    fs = OsFs()
    try:
        topic_id = read_partition_metadata(fs, path)
    except Corrupt:
        # Treat a damaged partition.metadata as one without a topic id.
        topic_id = None
    if topic_id is None:
        return 0 if starts.has_ids else named
    recorded = starts.by_id.get((topic_id, partition))
    start = read_start_mark(fs, path, topic_id) if recorded is None else recorded
    if not starts.has_ids:
        return max(named, start)
    return named if named > start and confirms_log_start(fs, path, topic_id, named) else start


def _partition_names(directory: Path) -> list[str]:
    try:
        entries = sorted(os.listdir(directory))
    except OSError as error:
        raise OptionError(f"path {directory} cannot be read: {error.strerror}") from None
    names = [each for each in entries if parse_partition_directory_name(each) is not None]
    if not names:
        if parse_partition_directory_name(directory.name) and any(
            each.endswith(LOG_SUFFIX) for each in entries
        ):
            raise OptionError(f"path {directory} is a partition's directory: give the one that it lies in")
        raise OptionError(
            f"path {directory} is not a data directory: no <topic>-<partition> directories are in it"
        )
    return [each for each in names if (directory / each).is_dir()]


def _check_named(found: Iterable[PartitionFiles], offsets: Offsets, name: str) -> None:
    if isinstance(offsets, int):
        return
    have = {(files.topic, files.partition) for files in found}
    named = {(topic, partition) for topic, each in offsets.items() for partition in each}
    if have != named:
        missing = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(have - named))
        unknown = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(named - have))
        raise OptionError(
            f"{name} must name every partition: "
            + "; ".join(
                filter(None, (missing and f"without {missing}", unknown and f"there is no {unknown}"))
            )
        )


def _bounds(files: PartitionFiles, options: LogOptions) -> tuple[int, int]:
    """Return start and end offset of the read, by the options.

    Raises OptionError for an offset outside the log, unless failOnDataLoss=false.
    """
    low = files.find_start_offset()
    high = files.find_end_offset()
    # The last stable offset is that of an open transaction's first record. It can be below the log's start if that
    # record was deleted.
    if options.isolation == READ_COMMITTED:
        high = max(low, files.last_stable_offset())
    # Sync before the read, so that a power loss cannot remove records that this job has read.
    files.segments.sync()
    start = _offset_of(files, options.starting)
    end = _offset_of(files, options.ending)
    start = low if start == EARLIEST else start
    end = high if end == LATEST else end
    if options.starting_timestamp is not None:
        found = files.offset_of_time(options.starting_timestamp)
        # If no record has this timestamp or a later one, begin at the log's end, as with Kafka's offsetsForTimes.
        start = high if found is None else min(max(low, found), high)
    if options.ending_timestamp is not None:
        found = files.offset_of_time(options.ending_timestamp)
        end = high if found is None else min(found, high)
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if not low <= offset <= high and options.fail_on_data_loss:
            raise OptionError(
                f"{name}: {files} has no offset {offset}, it has {low} to {high} "
                "(failOnDataLoss=false reads the existing records)"
            )
    return max(low, start), min(high, end)


def _offset_of(files: PartitionFiles, offsets: Offsets) -> int:
    return offsets if isinstance(offsets, int) else offsets[files.topic][files.partition]
