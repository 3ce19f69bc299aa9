"""Utilisation: the share of its time that a role worked, and the roles that so much work needs."""

from __future__ import annotations

from kproc.broker.metrics.utilisation import busy_between, roles_wanted, work_of
from tests.support.cases import in_one_test


def look(beat: int, slept: int) -> dict[str, int]:
    return {"heartbeat_ns": beat, "slept_ns": slept}


@in_one_test(
    ("now", "busy"),
    [
        (look(1100, 600), 0.0),
        (look(1100, 525), 0.75),
        (look(1100, 500), 1.0),
        (look(1100, 700), 0.0),  # The sleep may be stored before the beat.
        (look(1000, 500), None),
    ],
)
def test_busy_is_the_time_between_two_beats_that_was_not_slept(
    now: dict[str, int], busy: float | None
) -> None:
    assert busy_between(look(1000, 500), now) == busy


def test_waiting_for_cpu_is_idle_but_half_of_busy_is_work() -> None:
    assert work_of(0.8, None) == 0.8
    assert work_of(0.8, 0.6) == 0.6
    assert work_of(0.8, 0.1) == 0.4
    assert work_of(0.8, 0.9) == 0.8


def test_there_is_always_one_role_and_an_exact_fit_is_enough() -> None:
    assert [roles_wanted(work, 0.7) for work in (0.0, 0.7, 1.4, 1.41)] == [1, 1, 2, 3]
