"""Log lines never make a role wait, and no logger can write more than so many a second."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest

from kproc.broker.supervisor import log_output
from kproc.broker.supervisor.log_output import LINES_PER_SECOND, LogOutput

SECOND_NS = 1_000_000_000


def record(message: str, name: str = "kproc.test") -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, __file__, 1, message, (), None)


class Clock:
    """The time that LogOutput sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 5 * SECOND_NS
        monkeypatch.setattr(log_output, "monotonic_ns", lambda: self.now_ns)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Pipe:
    """A pipe as standard error."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.output = LogOutput(os.fdopen(self.writer, "w"))

    def fill(self) -> None:
        """Write until nothing more fits. Afterwards a write waits, as in a broker."""
        os.set_blocking(self.writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.writer, b"x" * 4096)
        os.set_blocking(self.writer, True)

    def read(self) -> str:
        """Return the lines in the pipe, without the bytes that filled it."""
        os.set_blocking(self.reader, False)
        found = b""
        with suppress(BlockingIOError):
            while True:
                found += os.read(self.reader, 1 << 20)
        return found.decode().lstrip("x")


@pytest.fixture
def pipe(clock: Clock) -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.output.stream.close()
    os.close(made.reader)


def test_full_pipe_loses_lines_and_never_waits(pipe: Pipe) -> None:
    pipe.fill()
    pipe.output.emit(record("first"))
    pipe.output.emit(record("second"))
    pipe.read()
    pipe.output.emit(record("third"))
    pipe.output.emit(record("fourth"))
    lost = "log lines lost, standard error is read too slowly: 2"
    assert pipe.read().splitlines() == [lost, "third", "fourth"]


def test_long_line_that_fits_only_in_part_is_counted(pipe: Pipe) -> None:
    """The next line begins on a line of its own."""
    pipe.output.emit(record("y" * (1 << 20)))
    pipe.read()
    pipe.output.emit(record("next"))
    found = pipe.read()
    assert found.splitlines() == ["", "log lines lost, standard error is read too slowly: 1", "next"]


def test_flood_of_one_logger_is_counted_in_one_line(clock: Clock) -> None:
    stream = StringIO()
    output = LogOutput(stream)
    for at in range(LINES_PER_SECOND + 50):
        output.emit(record(f"flood {at}", "kproc.loud"))
    output.emit(record("calm", "kproc.calm"))
    clock.now_ns += SECOND_NS
    output.emit(record("later", "kproc.calm"))
    lines = stream.getvalue().splitlines()
    assert lines[LINES_PER_SECOND - 1 :] == [
        f"flood {LINES_PER_SECOND - 1}",
        "calm",
        "and 50 more lines of this logger within a second",
        "later",
    ]


def test_file_gets_every_line(clock: Clock, tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        output = LogOutput(file)
        for at in range(100):
            output.emit(record(f"line {at} " + "z" * 5_000))
    assert len((tmp_path / "log").read_text().splitlines()) == 100
