"""The terminal of `kproc top`: alternate screen, keys without Enter, signals. Its former state is always restored."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

# xterm control sequences. _ENTER: alternate screen, no cursor, no line wrap. _LEAVE undoes these in reverse order.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STOPPING: Final = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
# Longest wait for the rest of a key's escape sequence, which a slow line can deliver in pieces.
_SEQUENCE_S: Final = 0.05
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|[\s\S]")
_UNFINISHED: Final = re.compile(rb"\x1b(\[[0-9;]*|O)?$")
_NAMES: Final = {
    "\x1b": "escape", "\t": "tab", "\x1b[Z": "backtab", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\x08": "backspace", "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown", "\x1b[H": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1b[4~": "end", "\x1bOA": "up",
    "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left", "\x1bOH": "home", "\x1bOF": "end", "\x0c": "redraw",
}  # fmt: skip


def parse_keys(data: bytes) -> list[str]:
    """Return the names of the keys in a terminal's input. A character is its own name.

    Unknown sequences are omitted.
    """
    found = (_NAMES.get(each, each) for each in _KEY.findall(data.decode("utf-8", "ignore")))
    return [each for each in found if each.isprintable()]


class TerminalClosed(Exception):
    """The terminal was closed, so that output is pointless."""


class Terminal:
    """The terminal on which `kproc top` draws, as a context manager.

    Only the main thread may use it, because only that thread gets signals. Other threads may call only `wake`.
    """

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._out = sys.stdout.fileno()
        self._saved: list[Any] = termios.tcgetattr(self._in)
        self._handlers: dict[int, Any] = {}
        self._wakes, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup_fd = -1
        self._drawn: str | None = None
        self.has_colour = not os.environ.get("NO_COLOR")

    def __enter__(self) -> Self:
        # At a signal such as SIGWINCH the interpreter writes a byte to this pipe, so that `wait` returns.
        self._old_wakeup_fd = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            for number in _ENDING:
                self._handlers[number] = signal.signal(number, _exit_at_signal)
            for number, handler in zip(_STOPPING, (self._stop, self._resume, self._resize), strict=True):
                self._handlers[number] = signal.signal(number, handler)
            self._enter()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        # Block signals, so that a second one cannot interrupt the restoration of the terminal.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_ENDING, *_STOPPING})
        try:
            self._reset_terminal()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_wakeup_fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _enter(self) -> None:
        # In cbreak mode a key arrives without Enter, and Ctrl-C and Ctrl-Z still send signals.
        tty.setcbreak(self._in, termios.TCSANOW)
        self._write(_ENTER)
        self._drawn = None

    def _reset_terminal(self) -> None:
        # Ignore errors of a terminal that was closed.
        with contextlib.suppress(OSError, TerminalClosed):
            self._write(_LEAVE)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._in, termios.TCSANOW, self._saved)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle Ctrl-Z (SIGTSTP): restore the terminal for the shell, and stop this process."""
        self._reset_terminal()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Execution continues here after SIGCONT, or at once without a shell that controls jobs (an orphaned process
        # group).
        signal.signal(number, self._stop)
        self._enter()

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        # Handle SIGCONT: after a SIGSTOP, which cannot be handled, the shell has changed the terminal's mode, so set
        # ours again.
        self._enter()

    def _resize(self, _number: int, _frame: FrameType | None) -> None:
        self._drawn = None

    @property
    def size(self) -> tuple[int, int]:
        """The number of columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError as error:
            raise TerminalClosed from error
        # A serial line reports the size 0, so assume 80 x 24.
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show the lines from the top of the screen. They must have no line ends and fit the width."""
        # Clear each line before its text and not after it: after a full line the cursor is still on the last character,
        # which would be cleared.
        text = "\x1b[H" + "\r\n".join(f"\x1b[2K{line}" for line in lines)
        if text != self._drawn:
            self._write(text if self._drawn is not None else f"\x1b[2J{text}")
            self._drawn = text

    def _write(self, text: str) -> None:
        data = memoryview(text.encode("utf-8", "replace"))
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError as error:
            raise TerminalClosed from error

    def wait(self, timeout_s: float) -> list[str]:
        """Wait up to `timeout_s` for keys and return them. Return early, without keys, after `wake` or a signal."""
        ready, _, _ = select.select([self._in, self._wakes], [], [], max(0.0, timeout_s))
        if self._wakes in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, 4096)
        return parse_keys(self._read()) if self._in in ready else []

    def _read(self) -> bytes:
        try:
            data = os.read(self._in, 1024)
            while _UNFINISHED.search(data) and select.select([self._in], [], [], _SEQUENCE_S)[0]:
                data += os.read(self._in, 1024)
        except OSError as error:
            raise TerminalClosed from error
        if not data:
            raise TerminalClosed
        return data

    def wake(self) -> None:
        """Make the present or next `wait` return. Any thread may call this."""
        # Ignore a full pipe: it is readable, so `wait` returns anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")


def _exit_at_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
