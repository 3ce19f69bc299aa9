"""SignalPipe, watch_process: signals, and the end of other processes, as readable descriptors for an epoll loop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Container
from types import FrameType


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. The wake-up descriptor carries the number; a handler only replaces the default action."""


class SignalPipe:
    """SIGTERM, SIGINT and SIGHUP as bytes on a socket. A process can have one at a time, in its main thread."""

    def __init__(self) -> None:
        self._receive, self._send = socket.socketpair()
        self._receive.setblocking(False)
        self._send.setblocking(False)
        self.fd = self._receive.fileno()
        # Python's C handler writes the number of the signal here, so it wakes an epoll. A Python handler runs only
        # between two bytecodes of the main thread, which may sleep by then. A full pipe loses nothing that matters: it
        # is readable anyway.
        self._old_fd = signal.set_wakeup_fd(self._send.fileno(), warn_on_full_buffer=False)
        self._old = {
            number: signal.signal(number, _ignore)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }

    def read(self) -> int | None:
        """Return the next signal's number, or None."""
        try:
            received = self._receive.recv(1)
        except BlockingIOError:
            return None
        return received[0] if received else None

    def close(self) -> None:
        """Restore the former signal handlers."""
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._receive.close()
        self._send.close()


def reap_orphans(ours: Container[int]) -> None:
    """Reap orphans that process 1 of a container inherits and that would stay zombies for ever.

    Skip our own children, because other code waits for them. If the kernel reports one of them first, the orphans
    behind it are reaped at the next call.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in ours:
            return
        # WNOWAIT above left the child a zombie, so that this call cannot take the status of a child that other code
        # waits for.
        os.waitpid(found.si_pid, 0)


def watch_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None for pid 0.

    If the process has ended already, the descriptor is readable at once.
    """
    if pid == 0:
        return None
    try:
        # A pidfd names the process and not its number, so a process that gets the same number later is not watched by
        # mistake.
        return os.pidfd_open(pid)
    except ProcessLookupError:
        # The process has ended already, so return a descriptor that is readable at once, as its pidfd would be.
        fd = os.eventfd(1, os.EFD_CLOEXEC)
        return fd
