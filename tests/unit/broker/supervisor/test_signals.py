"""Signals and ends of processes as readable descriptors; everything is given back."""

from __future__ import annotations

import os
import select
import signal

from kproc.broker.supervisor.signals import SignalPipe, watch_process
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
