"""Reports of errors that librdkafka retries: each once, the full disk by its name, and the end of it."""

from __future__ import annotations

import logging

import pytest

from kproc.cli import refusals
from kproc.cli.refusals import Refusals

STORAGE = "Broker: Disk error when trying to access log file on disk"
REPLICAS = "Broker: Not enough in-sync replicas"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(refusals, "time", clock)
    return clock


def log(watch: Refusals, text: str) -> None:
    line = f"[thrd:x]: t [0]: MessageSet with 1 message(s) encountered error: {text} (actions Refresh,Retry)"
    watch.emit(logging.LogRecord("rdkafka", logging.DEBUG, "", 0, line, None, None))


def test_lasting_error_is_reported_once_until_it_changes(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(refusals, "_is_disk_full", lambda _bootstrap: True)
    watch = Refusals("t", "127.0.0.1:1")
    log(watch, STORAGE)
    watch.report()
    assert capsys.readouterr().err == ""
    for _ in range(30):
        clock.now_s += 1.0
        log(watch, STORAGE)
        watch.report()
    assert capsys.readouterr().err == "kproc: t: the broker's disk is full; trying again, Ctrl-C ends it\n"
    log(watch, REPLICAS)
    watch.report()
    assert capsys.readouterr().err == (
        "kproc: t: the broker's last error was Not enough in-sync replicas (NOT_ENOUGH_REPLICAS); "
        "trying again, Ctrl-C ends it\n"
    )
    watch.delivered()
    watch.delivered()
    assert capsys.readouterr().err == "kproc: t: the broker accepts records again\n"
    assert watch.reason() is None


def test_storage_error_keeps_its_name_if_the_disk_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_is_disk_full", lambda _bootstrap: False)
    watch = Refusals("t", "127.0.0.1:1")
    log(watch, STORAGE)
    reason = str(watch.reason())
    assert reason.startswith("the broker's last error was Disk error")
    assert reason.endswith("(KAFKA_STORAGE_ERROR)")


def test_timeout_is_not_called_an_error_of_the_broker() -> None:
    watch = Refusals("t", "127.0.0.1:1")
    log(watch, "Local: Timed out")
    assert watch.reason() == "the last request failed: Timed out"


def test_short_error_is_not_reported(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Refusals("t", "127.0.0.1:1")
    log(watch, REPLICAS)
    clock.now_s += 0.5
    watch.report()
    watch.delivered()
    assert capsys.readouterr().err == ""
