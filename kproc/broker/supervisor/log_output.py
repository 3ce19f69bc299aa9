"""LogOutput: writes the log lines of a role to standard error and never waits for its reader.

Clients can cause log lines. A pipe that nobody reads must not stop a Handler, and a flood of lines must not fill a
disk. A line that cannot be written at once is lost. A logger may write LINES_PER_SECOND lines per second, and more are
suppressed. Both are counted, and the counts are logged before the next line of any logger.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from time import monotonic_ns
from typing import Final, TextIO

LINES_PER_SECOND: Final = 200
_SECOND_NS: Final = 1_000_000_000
# A pipe that poll() reports as writable accepts at least PIPE_BUF bytes without blocking (pipe(7)).
_PIPE_BYTES: Final = select.PIPE_BUF


class _LoggerRate:
    """The number of lines of one logger in the current second."""

    __slots__ = ("lines", "since_ns")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.lines = 0


class LogOutput(logging.StreamHandler[TextIO]):
    """The only handler of the root logger in a broker's processes."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        super().__init__(stream)
        self._rates: dict[str, _LoggerRate] = {}
        self._lost = 0  # Lines that did not fit into the pipe of standard error.
        self._is_torn = False  # True if only the beginning of the last line was written.

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now_ns = monotonic_ns()
            self._report_floods(now_ns)
            rate = self._rates.get(record.name)
            if rate is None:
                rate = self._rates[record.name] = _LoggerRate(now_ns)
            rate.lines += 1
            if rate.lines <= LINES_PER_SECOND:
                self._emit(record)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - as in logging.StreamHandler
            self.handleError(record)

    def _report_floods(self, now_ns: int) -> None:
        for name, rate in list(self._rates.items()):
            if now_ns - rate.since_ns >= _SECOND_NS:
                del self._rates[name]
                more = rate.lines - LINES_PER_SECOND
                if more > 0:
                    self._emit(_line(name, "and %d more lines of this logger within a second", more))

    def _emit(self, record: logging.LogRecord) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self._write(_line(__name__, "log lines lost, standard error is read too slowly: %d", lost), lost)
        self._write(record, 1)

    def _write(self, record: logging.LogRecord, count: int) -> None:
        """Write a log line. If the write would block, discard it and add `count` to the number of lost lines."""
        text = self.format(record) + self.terminator
        try:
            descriptor = self.stream.fileno()
        except (OSError, ValueError, AttributeError):
            self.stream.write(text)  # A stream of the tests.
            self.flush()
            return
        line = text.encode("utf-8", "backslashreplace")
        # End the torn line first. Otherwise a reader would take this line for its rest.
        if self._is_torn:
            line = b"\n" + line
        # pipe(7): a write of up to PIPE_BUF bytes is atomic, so no line of another process gets into the
        # middle of a piece.
        for at in range(0, len(line), _PIPE_BYTES):
            piece = line[at : at + _PIPE_BYTES]
            if not has_room(descriptor) or _write_some(descriptor, piece) < len(piece):
                self._is_torn = self._is_torn or at > 0
                self._lost += count
                return
        self._is_torn = False


def _line(name: str, message: str, count: int) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, __file__, 0, message, (count,), None)


def _write_some(descriptor: int, piece: bytes) -> int:
    try:
        return os.write(descriptor, piece)
    except BlockingIOError:  # The pipe is non-blocking, and another process has filled it since poll().
        return 0


def has_room(descriptor: int) -> bool:
    """Return True if PIPE_BUF bytes can be written without waiting for a reader."""
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLOUT)
        # O_NONBLOCK belongs to the open file (fcntl(2)), so setting it would change standard error for other
        # processes, too. So ask before each write instead.
        return any(events & select.POLLOUT for _, events in poll.poll(0))
    except OSError:
        return True  # For example a file, which poll() does not support and which never blocks.
