"""The windowed rate: Kafka's numbers, by hand."""

from __future__ import annotations

import pytest

from kproc.broker.acceptor.rate import PacedRate, WindowedRate
from tests.support.cases import in_one_test

S = 1_000_000_000


def test_one_event_counts_over_window_minus_one_sample() -> None:
    rate = WindowedRate(11, S, 0)
    rate.record(1, 0)
    assert rate.per_second(0) == pytest.approx(1 / 10)
    assert rate.window_ns(0) == 10 * S


def test_window_grows_to_all_samples_and_no_further() -> None:
    rate = WindowedRate(11, S, 0)
    for second in range(30):
        rate.record(5, second * S)
        assert 10 * S <= rate.window_ns(second * S) <= 11 * S
    assert rate.per_second(29 * S) == pytest.approx(5.5)  # 11 samples over 10 s: the newest has just begun.
    assert rate.per_second(30 * S - 1) == pytest.approx(5.0)


def test_samples_older_than_the_window_do_not_count() -> None:
    rate = WindowedRate(2, S, 0)
    rate.record(100, 0)
    assert rate.per_second(int(1.9 * S)) > 0
    assert rate.per_second(2 * S) == 0


def test_events_can_be_taken_back() -> None:
    rate = WindowedRate(11, S, 0)
    rate.record(3, 0)
    rate.record(-3, 5 * S)
    assert rate.per_second(5 * S) == 0


def test_throttle_brings_the_rate_back_to_the_limit() -> None:
    rate = WindowedRate(11, S, 0)
    rate.record(100, 0)
    assert rate.throttle_ns(10, 0) == 0, "100 in 10 s are 10 a second"
    rate.record(1, 0)
    wait_ns = rate.throttle_ns(10, 0)
    assert wait_ns == pytest.approx(S / 10)
    assert rate.throttle_ns(0, 0) == 11 * S


def test_single_sample_never_divides_by_nothing() -> None:
    rate = WindowedRate(1, S, 0)
    rate.record(1, 0)
    assert rate.per_second(0) == pytest.approx(1000), "a millisecond is the least"


@in_one_test("limit", [3, 40, 700])
@in_one_test("samples", [2, 11])
def test_caller_that_waits_for_the_throttle_holds_the_limit(limit: int, samples: int) -> None:
    """Kafka's loop: record, wait for the throttle, take. In the long run that is the limit."""
    rate, now_ns, taken = WindowedRate(samples, S, 0), 0, 0
    while now_ns < 60 * S:
        rate.record(1, now_ns)
        now_ns += min(rate.throttle_ns(limit, now_ns), S)
        taken += now_ns >= 20 * S  # After the burst that the empty window allowed.
    assert taken / 40 == pytest.approx(limit, rel=0.1)


def granted(rate: PacedRate, limit: float, seconds: float, *, from_ns: int = 0) -> list[int]:
    """When events under steady pressure happen."""
    now_ns, times = from_ns, []
    while now_ns < from_ns + seconds * S:
        rate.record(1, now_ns)
        now_ns += rate.grant(limit, now_ns, S)
        times.append(now_ns)
    return times


def test_pressure_is_let_in_evenly_after_the_first_window() -> None:
    """Kafka's window lets 550 in within the first second, then one a second, and 550 again after eleven."""
    times = granted(PacedRate(11, S, 0), 50, 60)
    assert 500 <= sum(at < S for at in times) <= 551, "a burst from idle is as in Kafka"
    for second in range(13, 60):
        assert sum(second * S <= at < (second + 1) * S for at in times) in (49, 50, 51), second


def test_pace_is_over_when_the_pressure_is() -> None:
    rate = PacedRate(11, S, 0)
    granted(rate, 10, 30)
    later = 60 * S
    for _ in range(100):
        rate.record(1, later)
        assert rate.grant(10, later, S) == 0, "a burst from idle again"


def test_event_that_did_not_happen_does_not_delay_the_next() -> None:
    rate = PacedRate(2, S, 0)
    granted(rate, 10, 10)
    now_ns = 10 * S + S // 2
    rate.record(1, now_ns)
    first = rate.grant(10, now_ns, S)
    for _ in range(20):
        rate.uncount(now_ns)
        rate.record(1, now_ns)
        assert rate.grant(10, now_ns, S) == first


def test_paced_rate_holds_if_the_caller_wakes_late() -> None:
    """A busy host wakes the Acceptor later than it asked: the rate holds all the same."""
    rate, now_ns, taken = PacedRate(11, S, 0), 0, 0
    while now_ns < 60 * S:
        rate.record(1, now_ns)
        now_ns += rate.grant(50, now_ns, S)
        now_ns += 90_000_000 if taken % 10 == 0 else 0  # More than four times the spacing.
        taken += now_ns >= 20 * S
    assert taken / 40 == pytest.approx(50, rel=0.1)


def test_part_of_a_rate_is_paced_as_that_part() -> None:
    """Two who share a limit: each keeps to its half."""
    ours, theirs = PacedRate(11, S, 0), PacedRate(11, S, 0)
    due, counts = [0, 0], [0, 0]
    for now_ns in range(0, 60 * S, S // 200):
        for at, rate in enumerate((ours, theirs)):
            if now_ns >= due[at]:
                ours.record(1, now_ns)
                theirs.record(1, now_ns)
                due[at] = now_ns + rate.grant(40, now_ns, S, share=0.5)
                counts[at] += now_ns >= 20 * S
    assert sum(counts) / 40 == pytest.approx(40, rel=0.1)
    assert min(counts) / max(counts) > 0.8
