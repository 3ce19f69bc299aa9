"""Scratch: a temporary directory of a run. The next run removes it if all processes of the run have ended.

The driver holds a flock on the directory. Its JVM inherits the descriptor and with it the lock. A pid in the name would
not suffice: the JVM outlives a killed driver, and containers that share /tmp use equal pids.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

# Names of the directories that can be removed. The pid only informs users. Older versions of kproc made names without a
# pid and held no lock, so their directories can be in use.
_NAME: Final = re.compile(r"kproc-spark-\d+-[a-z0-9_]{8}")


class Scratch:
    """The temporary directory of one pipeline run, locked until its processes have ended.

    Creating it first removes the directories of ended runs.
    """

    def __init__(self) -> None:
        sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"kproc-spark-{os.getpid()}-"))
            descriptor = _locked(self.path)
            # None: another run that was starting removed the directory before this process locked it. Create another
            # one.
            if descriptor is not None:
                break
        self.descriptor = descriptor

    def remove(self) -> None:
        """Remove the directory and release the lock. Call it when all processes of the run have ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def sweep(directory: Path) -> None:
    """Remove the directories of this user's runs whose processes have all ended."""
    for entry in directory.iterdir():
        if not _NAME.fullmatch(entry.name):
            continue
        descriptor = _locked(entry)
        if descriptor is not None:
            shutil.rmtree(entry, ignore_errors=True)
            os.close(descriptor)


def _locked(path: Path) -> int | None:
    """Lock a directory and return its descriptor. Return None if it is locked, missing, or another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # The path was removed, is no directory, or is not readable for this user.
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.fstat(descriptor).st_uid == os.geteuid() and os.fstat(descriptor).st_nlink > 0
    except BlockingIOError:
        # A run, or the JVM of a killed run, holds the lock.
        is_ours = False
    if not is_ours:
        os.close(descriptor)
        return None
    return descriptor
