"""The line of a request in `kproc monitor`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kproc.cli import monitor
from kproc.cli.common import Format
from kproc.cli.failure import Failure
from kproc.cli.monitor import format_row
from tests.support.cases import in_one_test

ROW: dict[str, Any] = {
    "time_ms": 1_700_000_000_042, "api": "Produce", "version": 9, "topics": ["orders"], "others": [], "more": 0,
    "user": "User:ANONYMOUS", "client": "shop", "address": "10.1.2.3", "request_bytes": 16_412,
    "response_bytes": 57, "took_us": 4371, "outcome": "Send", "error": "",
}  # fmt: skip


def words(**changes: Any) -> list[str]:
    return format_row({**ROW, **changes}).split(" ")


def test_line_has_time_api_topic_result_sizes_and_client() -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(1_700_000_000))
    assert words() == [f"{clock}.042", "Produce", "orders", "ok", "4.37ms", "16KiB>57B", "shop", "10.1.2.3"]


@in_one_test(
    ("changes", "at", "word"),
    [
        ({"error": "NOT_COORDINATOR"}, 3, "NOT_COORDINATOR"),
        ({"outcome": "CloseConnection"}, 3, "closed"),
        ({"topics": []}, 2, "-"),
        ({"topics": ["a", "b"], "others": ["g"], "more": 2}, 2, "a,b,g,+2"),
        ({"user": "User:alice"}, 7, "User:alice"),
        ({"client": ""}, 6, "-"),
        ({"request_bytes": 0, "others": ["PLAIN"], "topics": []}, 4, "-"),
        ({"user": ""}, 7, "10.1.2.3"),
        ({"client": "x\x1b[2J"}, 6, "x\\x1b[2J"),
        ({"request_bytes": 999, "response_bytes": 1_050_000}, 5, "999B>1.0MiB"),
    ],
)
def test_line_shows(changes: dict[str, Any], at: int, word: str) -> None:
    assert words(**changes)[at] == word


@in_one_test(
    "changes",
    [{"time_ms": 1e300}, {"time_ms": None}, {"topics": [1]}, {"took_us": "x"}, {"error": {}, "outcome": []}],
)
def test_malformed_line_is_one_clear_error(changes: dict[str, Any]) -> None:
    """A program that is no broker of kproc can send anything."""
    with pytest.raises(Failure, match="a line that cannot be shown"):
        monitor._print({**ROW, **changes}, Format.TABLE)


def test_line_that_is_no_object_is_one_clear_error() -> None:
    with pytest.raises(Failure, match="a line that cannot be shown"):
        monitor._print([], Format.TABLE)  # type: ignore[arg-type]


def test_line_breaks_between_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal once broke `127.0.0.1` into two lines."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    row = {**ROW, "topics": ["__consumer_offsets"], "user": "User:admin", "address": "127.0.0.1"}
    monitor._print(row, Format.TABLE)
    first, second = capsys.readouterr().out.splitlines()
    assert max(len(first), len(second)) <= 80
    assert [*first.split(), *second.split()] == format_row(row).split()
    assert second.startswith(" " * 13)
