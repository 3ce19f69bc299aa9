"""Lines that clients can bring about: so many a second, and how many there were more."""

from __future__ import annotations

import logging

import pytest

from kproc.common.log_rate import LogRate

SECOND_NS = 1_000_000_000
logger = logging.getLogger("kproc.test")


def test_suppressed_lines_are_counted_at_next_line_or_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rate = LogRate(logger, "and %d more")
    assert [rate.has_room(SECOND_NS) for _ in range(12)] == [True] * 10 + [False] * 2
    rate.report_suppressed(2 * SECOND_NS - 1)
    assert caplog.messages == [], "the second is not over"
    rate.report_suppressed(2 * SECOND_NS)
    rate.report_suppressed(3 * SECOND_NS)
    assert caplog.messages == ["and 2 more"]
    assert [rate.has_room(4 * SECOND_NS) for _ in range(11)] == [True] * 10 + [False]
    assert rate.has_room(5 * SECOND_NS)
    assert caplog.messages == ["and 2 more", "and 1 more"]
    rate.report_suppressed(9 * SECOND_NS)
    assert caplog.messages == ["and 2 more", "and 1 more"], "nothing was too much"
