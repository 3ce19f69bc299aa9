"""`kproc time`: durations, and the line with the broker's date."""

from __future__ import annotations

import pytest

from kproc.cli.broker_time import _words, parse_duration
from kproc.cli.failure import Failure


def test_durations_are_sums_of_numbers_with_units() -> None:
    assert [parse_duration(each) for each in ("8d", "1h30m", "45s", "5ms", "1d1ms")] == [
        691_200_000, 5_400_000, 45_000, 5, 86_400_001,
    ]  # fmt: skip
    for wrong in ("", "1", "-1h", "1.5h", "1h ", "h", "1w"):
        with pytest.raises(Failure, match="is no duration: give numbers with the units d, h, m, s or ms"):
            parse_duration(wrong)
    with pytest.raises(Failure, match="40000d is longer than 100 years"):
        parse_duration("40000d")


def test_date_of_the_broker_has_its_lead_and_state() -> None:
    row = {"now_ms": 1_000, "lead_ms": 0, "is_frozen": False}
    assert _words(row) == _words(row | {"lead_ms": -1}) == "1970-01-01 00:00:01.000 UTC, not moved"
    for lead_ms, is_frozen, words in (
        (5_400_000, True, "90m ahead of the host's time, frozen"),
        (-5_000, False, "5s behind the host's time"),
        (-1, True, "less than 1s from the host's time, frozen"),
        (5, False, "less than 1s from the host's time"),
    ):
        assert _words(row | {"lead_ms": lead_ms, "is_frozen": is_frozen}).endswith(f" UTC, {words}")
