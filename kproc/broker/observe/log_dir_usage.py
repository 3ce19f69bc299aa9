"""The size of each partition's log on the disk, for DescribeLogDirs, and its times, for `kproc topic list`.

The cleaner reads them, because that takes long: one stat call for each segment.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from kproc.broker.calls.cleaner_calls import LogDirRequest, LogDirUsage, LogFiguresReply, LogFileFigures
from kproc.broker.storage.format import LOG_SUFFIX
from kproc.common.clock import NS_PER_MS
from kproc.wire.batch_header import BASE_TIMESTAMP, HEADER, HEADER_BYTES


def log_dir_usage(directory: Path, asked: LogDirRequest) -> LogDirUsage:
    """Return the sizes of partitions' logs, and the file system's total and free bytes.

    Like Kafka's UnifiedLog.size this counts the .log files without their indexes. A partition that was never used has
    no directory and 0 bytes.
    """
    sizes = [
        [log_bytes(directory / f"{topic}-{index}") for index in indexes] for topic, indexes in asked.topics
    ]
    usage = shutil.disk_usage(directory)
    return LogDirUsage(str(directory.absolute()), sizes, usage.total, usage.free)


def log_bytes(directory: Path) -> int:
    """Return the size of a partition's .log files; 0 if its directory is missing or unreadable."""
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(LOG_SUFFIX):
                    with suppress(OSError):  # Retention deleted it meanwhile, or it cannot be read.
                        total += entry.stat().st_size
    except OSError:
        # Return 0 for a directory that cannot be read, so that the sizes of the other partitions are shown. The owner
        # of the partition reports the problem.
        return 0
    return total


def read_log_figures(directory: Path, asked: LogDirRequest) -> LogFiguresReply:
    """Return sizes and times of partitions' logs from their files. To open the logs would take far longer."""
    return LogFiguresReply(
        [
            [log_figures(f"{directory}/{topic}-{index}") for index in indexes]
            for topic, indexes in asked.topics
        ]
    )


def log_figures(directory: str) -> LogFileFigures:
    """Return size and times of a partition's log: those of an empty log if its directory is missing or unreadable."""
    total, newest_ns, first = 0, -1, ""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.name.endswith(LOG_SUFFIX):
                    continue
                with suppress(OSError):  # Retention deleted it meanwhile, or it cannot be read.
                    found = entry.stat()
                    if found.st_size:
                        total += found.st_size
                        newest_ns = max(newest_ns, found.st_mtime_ns)
                        # The smallest name is the first segment's, because names are offsets with leading zeros.
                        first = min(first or entry.path, entry.path)
    except OSError:
        return LogFileFigures(0, -1, -1)
    return LogFileFigures(
        total, newest_ns // NS_PER_MS if total else -1, _first_timestamp(first) if total else -1
    )


def _first_timestamp(path: str) -> int:
    """Return the timestamp of a segment's first record in ms, or -1 if the file cannot be read or has no batch."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(HEADER_BYTES)
    except OSError:
        # Retention may have deleted the segment since the directory was listed.
        return -1
    return int(HEADER.unpack(head)[BASE_TIMESTAMP]) if len(head) == HEADER_BYTES else -1
