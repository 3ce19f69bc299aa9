"""log_dir_usage: the size of each partition's log on the disk, for DescribeLogDirs.

The cleaner runs it, because it takes long: one stat call for each segment.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from kproc.broker.calls.cleaner_calls import LogDirRequest, LogDirUsage
from kproc.broker.storage.format import LOG_SUFFIX


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
        # One partition must not hide the sizes of the others. Its owner reports the problem.
        return 0
    return total
