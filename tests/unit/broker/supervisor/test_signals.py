"""Signals and ends of processes as readable descriptors; everything is given back."""

from __future__ import annotations

import os
import select
import signal

import pytest

from kproc.broker.supervisor.signals import SignalPipe, reset_inherited, watch_process
from tests.support.ring_pair import Forked


def is_readable(fd: int, seconds: float = 0) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def test_signals_come_as_numbers_in_their_order() -> None:
    pipe = SignalPipe()
    try:
        assert pipe.read() is None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
            assert is_readable(pipe.fd, 5)
            assert pipe.read() == number
        assert not is_readable(pipe.fd)
    finally:
        pipe.close()


@pytest.mark.parametrize("ends_at_hangup", [False, True])
def test_signals_that_a_parent_blocked_or_ignored_arrive(ends_at_hangup: bool) -> None:
    """A SIGHUP that the parent has ignored arrives only if it does not end the broker, as with nohup."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def child() -> list[int | None]:
        for number in (*numbers, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        reset_inherited(ends_at_hangup=ends_at_hangup)
        pipe = SignalPipe()
        for number in numbers:
            os.kill(os.getpid(), number)
        return [signal.getsignal(signal.SIGCHLD), *(pipe.read() for _ in numbers)]

    last = None if ends_at_hangup else signal.SIGHUP
    assert Forked(child).result() == [signal.SIG_DFL, signal.SIGTERM, signal.SIGINT, last]


def test_handlers_and_wakeup_descriptor_are_given_back() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    SignalPipe().close()
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_flood_of_signals_neither_blocks_nor_fails() -> None:
    pipe = SignalPipe()
    try:
        for _ in range(5000):
            signal.raise_signal(signal.SIGHUP)
        assert pipe.read() == signal.SIGHUP
    finally:
        pipe.close()


def test_end_of_a_process_makes_its_descriptor_readable() -> None:
    read_end, write_end = os.pipe()
    child = Forked(lambda: os.close(write_end) or os.read(read_end, 1))
    fd = watch_process(child.pid)
    assert fd is not None
    assert not is_readable(fd)
    os.close(write_end)
    child.result()
    assert is_readable(fd, 5)
    os.close(fd)
    os.close(read_end)


def test_process_that_has_ended_already_counts_as_ended() -> None:
    child = Forked(lambda: 0)
    child.result()
    fd = watch_process(child.pid)
    assert fd is not None
    assert is_readable(fd)
    os.close(fd)


def test_pid_0_has_no_process_watch() -> None:
    assert watch_process(0) is None
