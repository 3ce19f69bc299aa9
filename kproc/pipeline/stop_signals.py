"""StopSignals: SIGINT and SIGTERM of `kproc pipeline run`."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class Stopped(Exception):
    """A signal arrived before the queries were started."""


class StopSignals:
    """Signal handlers of SIGINT and SIGTERM. They count the signals: the run ends after its batches if `count` is 1.

    at_once: called for the second and every later signal. If `is_running` is False, the first signal raises Stopped.
    """

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.count = 0
        self.is_running = False
        self._at_once = at_once
        self._before: dict[int, Any] = {}
        self._read, self._write = socket.socketpair()

    def __enter__(self) -> Self:
        # Python's C handler of a signal writes a byte to this socket. It must not block if the socket's buffer is full.
        self._write.setblocking(False)
        # PEP 475: select() continues after a signal. Only the byte that set_wakeup_fd() lets the C handler write ends
        # it.
        self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers. Call it again after Spark's start, because PySpark installs its own for SIGINT."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._read.close()
        self._write.close()

    def wait(self, seconds: float) -> None:
        """Sleep for this time, or until a signal arrives."""
        if select.select([self._read], [], [], seconds)[0]:
            self._read.recv(64)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self.is_running and self.count == 1:
            raise Stopped
        if self.count > 1:
            self._at_once()
