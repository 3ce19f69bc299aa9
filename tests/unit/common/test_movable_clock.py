"""kproc.common.movable_clock: time that tests advance and freeze, in all processes at once."""

from __future__ import annotations

import os
import time

import pytest

from kproc.common.clock import NS_PER_MS, NS_PER_S, SystemClock
from kproc.common.movable_clock import LEAD_NS_MAX, MovableClock, MovedDate

DAY_NS = 86_400 * NS_PER_S


def test_new_movable_clock_shows_the_host_time() -> None:
    clock = MovableClock(SystemClock())
    before_ns = time.monotonic_ns()
    assert before_ns <= clock.now_ns() <= clock.host_ns()
    assert abs(clock.wall_ms() - time.time_ns() // NS_PER_MS) < 1000
    assert (clock.is_frozen, clock.lead_ns) == (False, 0), "the lead is exact"


def test_advance_moves_both_times_and_not_the_host_time() -> None:
    clock = MovableClock(SystemClock())
    dates = MovedDate(clock)
    wall_ms = clock.wall_ms()
    clock.advance(DAY_NS)
    clock.advance(DAY_NS)
    assert clock.now_ns() - time.monotonic_ns() > 1.9 * DAY_NS
    assert wall_ms + 2 * 86_400_000 <= clock.wall_ms() <= dates.wall_ms()
    assert abs(clock.host_ns() - time.monotonic_ns()) < DAY_NS
    assert abs(dates.now_ns() - time.monotonic_ns()) < DAY_NS


def test_frozen_clock_stands_still_and_continues_there() -> None:
    clock = MovableClock(SystemClock())
    clock.advance(DAY_NS)
    clock.freeze()
    at_ns, at_ms = clock.now_ns(), clock.wall_ms()
    begun_ns = time.monotonic_ns()
    while time.monotonic_ns() - begun_ns < 3 * NS_PER_MS:
        assert (clock.now_ns(), clock.wall_ms()) == (at_ns, at_ms)
    clock.freeze()  # Nothing changes.
    clock.advance(5 * NS_PER_MS)
    assert (clock.now_ns(), clock.wall_ms()) == (at_ns + 5 * NS_PER_MS, at_ms + 5)
    assert clock.is_frozen
    clock.unfreeze()
    clock.unfreeze()
    assert not clock.is_frozen
    assert at_ns + 5 * NS_PER_MS <= clock.now_ns() < at_ns + NS_PER_S * 60


def test_movable_clock_never_runs_backwards() -> None:
    clock = MovableClock(SystemClock())
    readings = []
    for _ in range(300):
        for move in (clock.freeze, clock.unfreeze, lambda: clock.advance(1)):
            readings.append(clock.now_ns())
            move()
    assert readings == sorted(readings)


def test_forked_process_sees_the_moved_time_at_once() -> None:
    clock = MovableClock(SystemClock())
    readable, writable = os.pipe()
    asks, asked = os.pipe()
    if not (pid := os.fork()):
        os.read(asks, 1)
        os.write(writable, str(clock.now_ns()).encode())
        os._exit(0)
    clock.advance(DAY_NS)
    clock.freeze()
    os.write(asked, b"?")
    assert int(os.read(readable, 100)) == clock.now_ns()
    os.waitpid(pid, 0)
    for fd in (readable, writable, asks, asked):
        os.close(fd)


def test_durations_out_of_range_are_rejected() -> None:
    clock = MovableClock(SystemClock())
    for duration_ns in (-1, LEAD_NS_MAX + DAY_NS):
        with pytest.raises(ValueError, match="time"):
            clock.advance(duration_ns)
    clock.advance(LEAD_NS_MAX - DAY_NS)
    assert clock.now_ns() < 1 << 62
    assert clock.lead_ns > LEAD_NS_MAX - 2 * DAY_NS
