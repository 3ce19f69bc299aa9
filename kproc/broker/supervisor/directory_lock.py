"""Locks of a data directory, so that one process at a time changes its files.

- An flock of the file `.lock`, whose name is that of Kafka's lock file. Every role that writes files inherits its
  descriptor.
- An flock of the directory itself. If somebody removes `.lock`, a second broker creates another file of that name and
  can lock it, but not the directory. systemd-tmpfiles also leaves a locked directory alone.
- A POSIX lock of `.lock`, which Apache Kafka uses and which does not conflict with an flock. It is only acquired and
  released once, to detect a running Kafka.

The supervisor holds the two flocks. Commands that change files of a stopped broker hold them while they run.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kproc.broker.storage.format import LOCK_FILE
from kproc.broker.storage.os_fs import FILE_MODE

_LOCKED: Final = (errno.EAGAIN, errno.EACCES)
# Longest wait in ns for a lock that dying processes of a killed broker still hold.
_WAIT_NS: Final = 1_000_000_000
_RETRY_SECONDS: Final = 0.02


class DirectoryInUse(OSError):
    """Another process has locked the data directory."""


class DirectoryLock:
    """The locks of a data directory. Raises DirectoryInUse, and OSError if the directory cannot be locked.

    Every role that writes files inherits `lock_fd`, so that the directory stays locked while any of them lives. Only an
    flock can be inherited so, because it belongs to the open file. A POSIX lock belongs to one process.
    """

    def __init__(self, data: Path, *, can_create: bool = True) -> None:
        """Lock a data directory and its file `.lock`.

        can_create: create a missing `.lock`. Otherwise lock only the directory if `.lock` is missing.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if can_create else 0)
        self.lock_fd = -1
        self._directory_fd = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(*() if can_create else (FileNotFoundError,)):
                self.lock_fd = os.open(data / LOCK_FILE, flags, FILE_MODE)
            _wait_for(self._lock)
        except BaseException:
            self.release()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Ignore other errors than a conflict: NFS emulates flock by locking the bytes of a file, which fails for a
            # directory (flock(2)).
            if error.errno in _LOCKED:
                raise
        if self.lock_fd < 0:
            return
        # Kafka's FileChannel.tryLock sets a POSIX lock. Test for it by setting one, and release that before the flock,
        # because on NFS the two kinds conflict even in one process.
        fcntl.lockf(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(self.lock_fd, fcntl.LOCK_UN)
        # The kernel releases an flock when the last descriptor of the open file is closed, so a broker that was killed
        # leaves no lock behind. A pid file would stay.
        fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Unlock the directory, unless a child still has the descriptor of `.lock`."""
        for fd in (self.lock_fd, self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self.lock_fd = self._directory_fd = -1


@contextmanager
def locked_directory(data: Path) -> Iterator[None]:
    """Hold the locks of a directory whose broker has stopped, or of copied files without a `.lock`.

    Raises DirectoryInUse and OSError.
    """
    lock = DirectoryLock(data, can_create=False)
    try:
        yield
    finally:
        lock.release()


def _wait_for(lock: Callable[[], None]) -> None:
    """Call `lock` until it succeeds. Raise DirectoryInUse if another process keeps a lock for longer than 1 s.

    A broker that was killed with SIGKILL keeps the lock until the kernel has ended its last role. On a busy host a user
    can start the next broker before that. The wait is short, because a second broker beside a healthy one is an error.
    """
    give_up_ns = time.monotonic_ns() + _WAIT_NS
    while True:
        try:
            lock()
        except OSError as error:
            if error.errno not in _LOCKED:
                raise
            if time.monotonic_ns() > give_up_ns:
                raise DirectoryInUse(error.errno, error.strerror) from error
        else:
            return
        time.sleep(_RETRY_SECONDS)  # noqa: TID251 - no descriptor reports an unlock
