"""A temporary directory that is known to be in use as long as any process of its run lives, and swept by the next run.

A lock of flock's on the directory is held by the driver and, by the descriptor that it inherits, by its JVM. Pids would
not do: the JVM outlives a driver that was killed, and in a container that shares /tmp the same pid is somebody else.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

# The pid is for people. Names without one are of versions that hold no lock: those are left alone.
_NAME: Final = re.compile(r"kproc-spark-\d+-[a-z0-9_]{8}")


class Scratch:
    """A new directory, locked; what runs that are over have left is removed first."""

    def __init__(self) -> None:
        sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"kproc-spark-{os.getpid()}-"))
            descriptor = _locked(self.path)
            if descriptor is not None:
                break  # Else another run that starts has swept it before it was locked.
        self.descriptor = descriptor

    def remove(self) -> None:
        """Once nothing of the run lives any more."""
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
    """The descriptor of a directory of our own that nobody else holds and that is still there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # Gone, no directory, or not ours to look into.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.fstat(descriptor).st_uid == os.geteuid() and os.fstat(descriptor).st_nlink > 0
    except BlockingIOError:
        is_ours = False
    if not is_ours:
        os.close(descriptor)
        return None
    return descriptor
