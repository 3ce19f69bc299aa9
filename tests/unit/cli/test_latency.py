"""`kproc latency`: how long it measures, and what it rejects."""

from __future__ import annotations

import pytest

from kproc.cli import latency
from tests.support.command_line import call_kproc, refused


class Times:
    """A probe of scripted times, which Ctrl-C ends."""

    name = "scripted"

    def __init__(self, *times_ns: int) -> None:
        self._times = iter(times_ns)

    def prepare(self) -> None:
        pass

    def measure(self) -> int:
        time_ns = next(self._times, None)
        if time_ns is None:
            raise KeyboardInterrupt
        return time_ns


def test_measurement_ends_after_the_count() -> None:
    times, _, is_interrupted = latency._sample(Times(3, 4, 5, 6), 60.0, 3, 0.0)
    assert (times.count, times.largest_ns, is_interrupted) == (3, 5, False)


def test_measurement_ends_when_its_time_is_over() -> None:
    times, took_s, _ = latency._sample(Times(3, 4, 5), 0.03, None, 0.02)
    assert times.count == 2
    assert took_s < 1


def test_ctrl_c_keeps_the_times_so_far() -> None:
    times, _, is_interrupted = latency._sample(Times(3, 4), 60.0, None, 0.0)
    assert (times.count, is_interrupted) == (2, True)


def test_client_alone_takes_less_than_a_millisecond() -> None:
    own = latency.client_alone(50)
    assert own.count == 50
    assert 0 < own.quantile_ns(0.5) < 1_000_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--produce", "a", "--end-to-end", "b"), "exclude each other"),
        (("--produce", "a", "--acks", "0"), "--acks 0"),
    ],
)
def test_options_that_measure_nothing_are_rejected(capsys, arguments, said) -> None:
    assert said in refused(call_kproc(capsys, "latency", *arguments), code=2)
