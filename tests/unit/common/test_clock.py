"""kproc.common.clock: the two clocks that everything else is given."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from kproc.common.clock import NS_PER_MS, ManualClock, SystemClock


def test_system_clock_never_runs_backwards():
    clock = SystemClock()
    readings = [clock.now_ns() for _ in range(1000)]
    assert readings == sorted(readings)


def test_system_clock_is_comparable_between_processes():
    clock = SystemClock()
    before_ns = clock.now_ns()
    code = "from kproc.common.clock import SystemClock; print(SystemClock().now_ns())"
    there_ns = int(subprocess.check_output([sys.executable, "-c", code]))
    assert before_ns < there_ns < clock.now_ns()


def test_wall_time_is_in_milliseconds():
    assert abs(SystemClock().wall_ms() - time.time() * 1000) < 1000


def test_manual_clock_moves_both_hands_together():
    clock = ManualClock(now_ns=5, wall_ms=1_000)
    clock.advance_ns(3 * NS_PER_MS)
    assert clock.now_ns() == 5 + 3 * NS_PER_MS
    assert clock.wall_ms() == 1_003
    clock.advance_ms(7)
    assert clock.wall_ms() == 1_010


def test_manual_clock_refuses_to_run_backwards():
    with pytest.raises(AssertionError):
        ManualClock().advance_ns(-1)


def test_a_date_set_back_does_not_move_monotonic_time():
    clock = ManualClock(now_ns=10, wall_ms=5_000)
    clock.set_wall_ms(2_000)
    assert (clock.now_ns(), clock.wall_ms()) == (10, 2_000)
    clock.advance_ms(1)
    assert clock.wall_ms() == 2_001
