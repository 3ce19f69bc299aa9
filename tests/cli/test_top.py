"""`kproc top` in a terminal: pages, keys, signals, and a terminal that is left as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker import ROOT, BrokerUnderTest

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"


class TopInTerminal:
    """The command as a process on a pseudo terminal of 80 x 24."""

    def __init__(self, bootstrap: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(80, 24)
        self.mode: list[Any] = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kproc", "top", "--bootstrap", bootstrap, "--interval", "0.5"],
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, pattern: str, seconds: float = 30) -> str:
        """Read until the output from now on has a match of the pattern. Return this output."""
        fresh, end_s = "", time.monotonic() + seconds
        while not re.search(pattern, fresh):
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"{pattern!r} is not in {fresh[-2000:]!r}"
            if select.select([self.master], [], [], left_s)[0]:
                fresh += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        self.shown += fresh
        return fresh

    def end(self) -> int:
        code = self.process.wait(30)
        while select.select([self.master], [], [], 0)[0]:
            self.shown += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        return code

    def assert_restored(self) -> None:
        assert termios.tcgetattr(self.slave) == self.mode
        assert self.shown.count(ENTER) <= self.shown.count(LEAVE)
        assert self.shown.rstrip().endswith(LEAVE) or self.shown.rfind(LEAVE) > self.shown.rfind(ENTER)


@pytest.fixture
def top(broker: BrokerUnderTest) -> Iterator[TopInTerminal]:
    terminal = TopInTerminal(broker.bootstrap)
    yield terminal
    terminal.process.kill()
    terminal.process.wait(10)
    for fd in (terminal.master, terminal.slave):
        os.close(fd)


def test_keys_walk_through_the_pages_and_q_restores_the_terminal(top: TopInTerminal, filled: str) -> None:
    top.wait_for("bottleneck")
    top.press(f"2/{filled}\r".encode())
    top.wait_for(f"\x1b\\[2K{filled} ")
    top.press(b"3")
    top.wait_for(r"\d+ groups")
    top.press(b"\x1b[Z?")
    top.wait_for("Columns of topics")
    top.press(b"?45")
    top.wait_for("KprocOperation")
    top.resize(120, 40)
    top.process.send_signal(signal.SIGWINCH)
    # A screen of 40 lines, in one piece: the one before may have arrived in part.
    top.wait_for("\x1b\\[H((?!\x1b\\[H)[^\n])*(\n((?!\x1b\\[H)[^\n])*){39}quit")
    # Nobody controls the jobs of a new session, so the process goes on at once.
    top.process.send_signal(signal.SIGTSTP)
    top.wait_for("\x1b\\[\\?1049l(.|\n)*\x1b\\[\\?1049h(.|\n)*quit")
    top.press(b"q")
    assert top.end() == 0
    top.assert_restored()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_restore_the_terminal(top: TopInTerminal, number: signal.Signals, code: int) -> None:
    top.wait_for("bottleneck")
    top.process.send_signal(number)
    assert top.end() == code
    top.assert_restored()
