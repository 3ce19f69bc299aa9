"""The judge of a share group's deliveries allows what a death explains, and finds what nothing explains."""

from __future__ import annotations

from tests.support.cases import in_one_test
from tests.support.share_deliveries import Disturbances, History, Place, dead_letter_problems

LOCK_MS = 15_000
PLACE: Place = ("jobs", 0, 7)
OTHER: Place = ("jobs", 0, 8)
# Member 1 gets the record at 100,000 ms, member 2 half a second later.
REPEATED = ((1, "d 100000 jobs 0 7 7 1 a ACCEPT"), (2, "d 100500 jobs 0 7 7 2 a ACCEPT"))


@in_one_test(
    ("deaths", "roles", "is_allowed"),
    [
        ([], [], False),
        # The test noticed the death of member 1 only after member 2 had got the record.
        ([(100_400, 101_900, 1)], [], True),
        ([(97_000, 99_000, 3)], [], False),
        ([(100_600, 100_700, 1)], [], False),
        ([], [(98_000, 99_000)], True),
        ([], [(80_000, 81_000)], False),
    ],
)
def test_repeated_delivery_needs_a_death_between(
    deaths: list[tuple[int, int, int]], roles: list[tuple[int, int]], is_allowed: bool
) -> None:
    history = History()
    for member, line in REPEATED:
        history.add(member, line)
    problems = list(history.problems(LOCK_MS, Disturbances(deaths, roles, set())))
    assert bool(problems) is not is_allowed, problems


@in_one_test(
    ("letters", "word"),
    [
        ({PLACE: [1_000]}, None),
        ({PLACE: [1_000, 3_000]}, "more than one dead letter"),
        ({PLACE: [1_000], OTHER: [1_000]}, "another record"),
    ],
)
def test_no_record_has_a_second_dead_letter(letters: dict[Place, list[int]], word: str | None) -> None:
    problems = list(dead_letter_problems(letters, {PLACE}))
    assert [word in problem for problem in problems] == ([] if word is None else [True])
