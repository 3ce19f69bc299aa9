"""`kproc consume`: messages for a user at a terminal, and when they appear."""

from __future__ import annotations

from datetime import UTC, datetime

from kproc.cli import consume
from kproc.cli.record_reader import OffsetRange


def test_start_beyond_the_end_is_reported() -> None:
    at_end = {("t", 0): 5, ("t", 1): 7}
    span = OffsetRange(at_end, at_end, beyond=at_end)
    shown = consume._start_beyond_end("9", 9, span, follow=False)
    assert (
        shown == "--from 9 is beyond the end of t-1 (offset 7) and of 1 more partition: nothing is read there"
    )
    span = OffsetRange({("t", 0): 5}, {("t", 0): 5}, beyond={("t", 0): 5})
    shown = consume._start_beyond_end("9", 9, span, follow=True)
    assert shown == "--from 9 is beyond the end of t-0 (offset 5): reading begins at the end"


def test_time_after_some_partitions_last_record_is_no_problem() -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    span = OffsetRange({("t", 0): 5, ("t", 1): 2}, {("t", 0): 5, ("t", 1): 7}, beyond={("t", 0): 5})
    assert consume._start_beyond_end("x", time, span, follow=False) is None
    span = OffsetRange({("t", 0): 5, ("t", 1): 0}, {("t", 0): 5, ("t", 1): 0}, beyond={("t", 0): 5})
    assert consume._start_beyond_end("x", time, span, follow=False) is not None
