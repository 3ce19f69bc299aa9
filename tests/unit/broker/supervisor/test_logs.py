"""Lines of the log as JSON objects."""

from __future__ import annotations

import json
import logging
from datetime import datetime

import pytest

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


def test_what_is_no_unicode_is_written_all_the_same() -> None:
    with pytest.raises(UnicodeEncodeError):
        "\udcff".encode()
    assert json.loads(JsonFormatter("x").format(record("%s", "\udcff")))["message"]
