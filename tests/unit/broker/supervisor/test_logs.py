"""Lines of the log as JSON objects, and the log file."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from kproc.broker.supervisor import logs
from kproc.broker.supervisor.logs import JsonFormatter


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("kproc.x", logging.WARNING, __file__, 1, message, arguments, info)


def test_line_is_one_object_with_role_and_zone() -> None:
    line = JsonFormatter("handler-1").format(record('a "quoted" %s\nline', "é"))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("pid") > 0
    assert datetime.fromisoformat(fields.pop("time")).tzinfo is not None
    assert fields == {
        "level": "WARNING",
        "role": "handler-1",
        "logger": "kproc.x",
        "message": 'a "quoted" é\nline',
    }


def test_exception_stands_in_the_same_line() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError("because")
    line = JsonFormatter("cleaner-0").format(record("failed", error=raised.value))
    assert "\n" not in line
    assert "ZeroDivisionError: because" in json.loads(line)["exception"]


def test_log_line_with_lone_surrogate_is_written() -> None:
    with pytest.raises(UnicodeEncodeError):
        "\udcff".encode()
    assert json.loads(JsonFormatter("x").format(record("%s", "\udcff")))["message"]


@pytest.fixture
def standard_error(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The standard error of this process is as before after the test."""
    former = os.dup(2)
    monkeypatch.setattr(logs, "_file", None)
    yield
    os.dup2(former, 2)
    os.close(former)


@pytest.mark.usefixtures("standard_error")
def test_log_file_is_appended_to_and_opened_again_after_rename(tmp_path: Path) -> None:
    path, old = tmp_path / "kproc.log", tmp_path / "kproc.log.1"
    path.write_text("of the last run\n")
    logs.use_file(path)
    os.write(2, b"first\n")
    path.rename(old)
    os.write(2, b"second\n")
    assert logs.reopen_file()
    os.write(2, b"third\n")
    assert old.read_text() == "of the last run\nfirst\nsecond\n"
    assert path.read_text() == "third\n"
    assert os.get_inheritable(2)


@pytest.mark.usefixtures("standard_error")
def test_log_file_that_cannot_be_opened_again_stays_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not logs.reopen_file()
    directory = tmp_path / "logs"
    directory.mkdir()
    logs.use_file(directory / "kproc.log")
    directory.rename(tmp_path / "moved")
    assert logs.reopen_file()
    assert "cannot open the log file again" in caplog.text
    os.write(2, b"still here\n")
    assert (tmp_path / "moved" / "kproc.log").read_text().endswith("still here\n")


@pytest.mark.usefixtures("standard_error")
def test_log_file_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, said in (("fifo", "No such device or address"), ("", "Is a directory"), ("no/log", "No such file")):
        with pytest.raises(OSError, match=said):
            logs.use_file(tmp_path / name)
