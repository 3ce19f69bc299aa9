"""StopSignals: the first signal, the second one, and one before the queries run."""

from __future__ import annotations

import os
import signal

import pytest

from kproc.pipeline.stop_signals import Stopped, StopSignals


def test_first_signal_is_counted_and_second_stops_at_once() -> None:
    stops: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(lambda: stops.append(1)) as signals:
        signals.is_running = True
        os.kill(os.getpid(), signal.SIGTERM)
        signals.wait(60)
        assert (signals.count, stops) == (1, [])
        os.kill(os.getpid(), signal.SIGINT)
        assert (signals.count, stops) == (2, [1])
    assert signal.getsignal(signal.SIGTERM) == before


def test_signal_before_the_queries_run_raises_stopped() -> None:
    with StopSignals(lambda: None) as signals, pytest.raises(Stopped):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.count == 1
