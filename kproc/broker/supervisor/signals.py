"""SignalPipe, watch_process: signals, and the end of other processes, as readable descriptors for an epoll loop.

`reset_inherited` undoes what a parent can have done to the signals of a broker.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Container
from types import FrameType


def reset_inherited(*, ends_at_hangup: bool) -> None:
    """Reset the signal mask and SIGCHLD, which this process has inherited from its parent. Call it before any fork.

    ends_at_hangup: True if SIGHUP ends this process. In that case a SIGHUP that the parent ignores, as nohup does, is
    discarded.
    """
    # If SIGCHLD were ignored, the kernel would reap the roles by itself, and waitid() for them would fail.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # If a program has blocked SIGTERM before it starts the broker, the broker would not stop. SignalPipe replaces an
    # ignored SIGHUP by its handler, so a SIGHUP to discard is blocked.
    is_discarded = ends_at_hangup and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGHUP} if is_discarded else ())


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing, and so prevent the default action. SignalPipe reads the number from the wake-up descriptor."""


class SignalPipe:
    """SIGTERM, SIGINT and SIGHUP as bytes on a socket. A process can have one at a time, in its main thread."""

    def __init__(self) -> None:
        self._receive, self._send = socket.socketpair()
        self._receive.setblocking(False)
        self._send.setblocking(False)
        self.fd = self._receive.fileno()
        # Python's C signal handler writes the signal's number to this socket, which wakes an epoll. A Python handler
        # alone would not: it runs between two bytecodes, and the main thread may be asleep. If the socket is full, lost
        # numbers do not matter, because it is readable anyway.
        self._old_fd = signal.set_wakeup_fd(self._send.fileno(), warn_on_full_buffer=False)
        self._old = {
            number: signal.signal(number, _ignore)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }

    def read(self) -> int | None:
        """Return the number of the next received signal, or None if there is none."""
        try:
            received = self._receive.recv(1)
        except BlockingIOError:
            return None
        return received[0] if received else None

    def close(self) -> None:
        """Restore the signal handlers from before this object, and close the sockets."""
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._receive.close()
        self._send.close()


def reap_orphans(ours: Container[int]) -> None:
    """Reap orphaned processes, which process 1 of a container inherits and which would stay zombies for ever.

    Skip the children in `ours`, because other code waits for them. If waitid() reports one of them first, the orphans
    after it are reaped at the next call.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in ours:
            return
        # waitid() with WNOWAIT has left the orphan a zombie, so reap it now. So the status of a child in `ours` is
        # never consumed.
        os.waitpid(found.si_pid, 0)


def watch_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None for pid 0.

    If the process has ended already, the descriptor is readable at once.
    """
    if pid == 0:
        return None
    try:
        # A pidfd refers to this process even after the kernel has reused its pid for another one (pidfd_open(2)).
        return os.pidfd_open(pid)
    except ProcessLookupError:
        # The process has already ended. Return an eventfd that is readable at once, as its pidfd would be.
        fd = os.eventfd(1, os.EFD_CLOEXEC)
        return fd
