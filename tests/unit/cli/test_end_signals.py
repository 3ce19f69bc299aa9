"""Signals that end a command after it has finished its work, with the exit code of the signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kproc.cli.end_signals import catch_signals, interrupt_at_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A signal that the code under test does not handle must not end the tests."""

    def fail(number: int, _frame: object) -> None:
        raise AssertionError(f"signal {number} is not handled")

    before = {number: signal.signal(number, fail) for number in SIGNALS[1:]}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signal_interrupts_the_work_and_sets_the_exit_code() -> None:
    finished: list[int] = []

    def work(number: int) -> None:
        with interrupt_at_signals():
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                finished.append(number)
                raise

    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        with pytest.raises(SystemExit) as ended:
            work(number)
        assert (finished[-1], ended.value.code) == (number, code)
        with pytest.raises(AssertionError):  # The former handler is back.
            signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):
        work(signal.SIGINT)


def test_ignored_signal_stays_ignored() -> None:
    """nohup ignores SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupt_at_signals(), catch_signals() as ending:
        signal.raise_signal(signal.SIGHUP)
    assert not ending.number


def test_first_caught_signal_waits_and_the_second_interrupts() -> None:
    for number, kind in zip(SIGNALS, (KeyboardInterrupt, SystemExit, SystemExit), strict=True):
        with catch_signals() as ending:
            signal.raise_signal(number)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        with pytest.raises(kind):
            ending.raise_exit()
