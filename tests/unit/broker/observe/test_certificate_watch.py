"""Certificates that end: problems within 30 days, a line of the log at once and each day."""

from __future__ import annotations

import logging

import pytest

from kproc.broker.observe.certificate_watch import CertificateWatch
from kproc.common.clock import ManualClock
from tests.support.cases import in_one_test

LOGGER = logging.getLogger("kproc.test")
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


def watch_with(left_ms: int) -> tuple[ManualClock, CertificateWatch]:
    """A watch of one certificate that ends in `left_ms`."""
    clock = ManualClock(wall_ms=NOW_MS)
    watch = CertificateWatch(clock)
    watch.use({"SSL": {"subject": "CN=kproc", "expires_ms": NOW_MS + left_ms}})
    return clock, watch


@in_one_test(
    ("left_ms", "problem"),
    [
        (31 * DAY_MS, None),
        (30 * DAY_MS, None),
        (30 * DAY_MS - 1, "ends in 29 days, at 2023-12-14 22:13 UTC: renew it and send SIGHUP"),
        (DAY_MS, "ends in 1 day, at 2023-11-15 22:13 UTC: renew it and send SIGHUP"),
        (DAY_MS - 1, "ends in less than a day, at 2023-11-15 22:13 UTC: renew it and send SIGHUP"),
        (0, "ended at 2023-11-14 22:13 UTC, and clients reject it: renew it and send SIGHUP"),
    ],
)
def test_certificate_that_ends_within_30_days_is_a_problem(left_ms: int, problem: str | None) -> None:
    _, watch = watch_with(left_ms)
    expected = [] if problem is None else [f"the certificate chain of listener SSL (CN=kproc) {problem}"]
    assert watch.problems() == expected
    assert watch.describe() == {"SSL": {"subject": "CN=kproc", "expires_ms": NOW_MS + left_ms}}


def test_only_a_certificate_that_has_ended_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    clock, watch = watch_with(0)
    soon = {"subject": "CN=b", "expires_ms": NOW_MS + DAY_MS}
    watch.use({**watch.describe(), "EXTERNAL": soon})
    watch.log_problems(LOGGER, clock.now_ns())
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_problem_is_logged_at_once_daily_and_after_a_renewal(caplog: pytest.LogCaptureFixture) -> None:
    clock, watch = watch_with(31 * DAY_MS)

    def logged_after(ms: int) -> list[str]:
        caplog.clear()
        clock.advance_ms(ms)
        watch.log_problems(LOGGER, clock.now_ns())
        return [record.levelname for record in caplog.records]

    assert logged_after(0) == []
    assert logged_after(DAY_MS) == [], "30 days are left"
    assert logged_after(DAY_MS) == ["WARNING"]
    assert logged_after(DAY_MS - 1) == []
    assert logged_after(1) == ["WARNING"]
    watch.use({"SSL": {"subject": "CN=kproc", "expires_ms": clock.wall_ms() + DAY_MS}})
    assert logged_after(0) == ["WARNING"], "another certificate is looked at at once"
    assert logged_after(DAY_MS) == ["ERROR"]
    watch.use({"SSL": {"subject": "CN=kproc", "expires_ms": clock.wall_ms() + 90 * DAY_MS}})
    assert logged_after(0) == []
