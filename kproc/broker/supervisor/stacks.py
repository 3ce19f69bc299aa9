"""Reads the stacks of a running role, even one that hangs, for the archive of `kproc doctor`.

On SIGUSR1 every process of the broker writes the stacks of its threads into a memfd. faulthandler does that in C, even
if the interpreter hangs. `kproc doctor` finds the memfd in /proc/PID/fd by its name.

A process can give this name to any file of the host in its own mount namespace, and the reader truncates the file
first. So the reader requires a file without hard links (a memfd has none) that belongs to the process's user.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import stat
from typing import BinaryIO, Final

from kproc.broker.observe.status import real_uid

NAME: Final = "stacks-of-kproc"
_LINK: Final = f"/memfd:{NAME}"
_WAIT_S: Final = 0.05
_WAITS: Final = 20
_BYTES_MAX: Final = 4 << 20

_fd = -1


def install() -> int:
    """Prepare this process to write its stacks into a memfd at SIGUSR1. Call this again after a fork.

    Return the memfd's descriptor, which stays open.
    """
    global _fd
    if _fd < 0 or not _is_ours(f"/proc/self/fd/{_fd}"):
        _fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        # Write with O_APPEND: the reader truncates the file, but the file position stays. Without O_APPEND the next
        # stacks would follow a hole of zero bytes.
        fcntl.fcntl(_fd, fcntl.F_SETFL, os.O_APPEND)
    # Remove a registration inherited from the parent. The fork has reset SIGUSR1, and register() installs
    # faulthandler's signal handler only if there is no registration.
    faulthandler.unregister(signal.SIGUSR1)
    faulthandler.register(signal.SIGUSR1, file=_fd, all_threads=True)
    return _fd


def _is_ours(path: str) -> bool:
    try:
        return os.readlink(path).startswith(_LINK)
    # The process has closed this descriptor since /proc/PID/fd was listed.
    except OSError:
        return False


def read_stacks(pid: int) -> str | None:
    """Return the present stacks of the threads of a process.

    Return None if the process has no such memfd, is stopped, has ended, or must not be signalled by us. Wait up to 1 s.
    """
    try:
        # SIGUSR1 would kill a process that has not installed the handler yet.
        if not _catches(pid):
            return None
        memfd = _open_memfd(pid)
        if memfd is None:
            return None
        with memfd as file, contextlib.closing(_Handle(pid)) as handle:
            # The stacks of an earlier request would otherwise be read again.
            file.truncate(0)
            handle.signal(signal.SIGUSR1)
            size = -1
            for _ in range(_WAITS):
                if handle.has_ended(_WAIT_S):
                    return None
                # faulthandler writes in pieces and does not report its end. Assume that it has ended if the file has
                # not grown for _WAIT_S (50 ms).
                before, size = size, os.fstat(file.fileno()).st_size
                if size and size == before:
                    return file.read(_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, ProcessLookupError):
        return None
    return None


def _open_memfd(pid: int) -> BinaryIO | None:
    """Open the memfd of a process, or return None if it has none. Raises OSError."""
    directory, uid = f"/proc/{pid}/fd", real_uid(pid)
    for name in os.listdir(directory):
        if not _is_ours(f"{directory}/{name}"):
            continue
        # Check the file by an O_PATH descriptor, because opening a FIFO could block and opening a device could have
        # effects.
        descriptor = os.open(f"{directory}/{name}", os.O_PATH | os.O_CLOEXEC)
        try:
            facts = os.fstat(descriptor)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_uid == uid:
                return open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0)
        finally:
            os.close(descriptor)
    return None


def _catches(pid: int) -> bool:
    """Return True if the process handles SIGUSR1. Otherwise that signal would end it."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        caught = next(line for line in file if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


class _Handle:
    """A pidfd of a process. It still refers to the same process after the kernel has reused the pid."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._fd, number)

    def has_ended(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._fd)
