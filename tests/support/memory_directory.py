"""The directory in memory in which a whole run of the tests keeps its temporary files.

A whole run writes and deletes some 100,000 files. On ext4 that is a fifth of its CPU and, on a slow disk, most of its
time. Tests that depend on the file system of a disk use the fixture `disk_path`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.budget import is_whole_run

MEMORY_DIRECTORY = Path("/dev/shm")
# A whole run on two cores uses less than 2 GiB at a time.
FREE_BYTES_MIN = 6 << 30
# Names the directory of temporary files on the disk.
DISK_VARIABLE = "KPROC_TEST_DISK"


def chosen_memory_directory(config: pytest.Config) -> Path | None:
    """Return the directory for the temporary files of this run, or None if they stay where TMPDIR or pytest puts them.

    Chosen tests stay on the disk, so that somebody can look at the files of a failed test.
    """
    is_chosen = "TMPDIR" in os.environ or config.option.basetemp is not None
    return MEMORY_DIRECTORY if is_whole_run(config) and not is_chosen and _has_room(MEMORY_DIRECTORY) else None


def _has_room(directory: Path) -> bool:
    try:
        facts = os.statvfs(directory)
        if min(facts.f_bavail * facts.f_frsize, psutil.virtual_memory().available) < FREE_BYTES_MIN:
            return False
        # A tmpfs has extended attributes of users since Linux 6.6. Without them logs keep no marks of what is synced.
        with tempfile.TemporaryFile(dir=directory) as probe:
            os.setxattr(probe.fileno(), "user.kproc.test", b"")
    except OSError:
        return False
    return True
