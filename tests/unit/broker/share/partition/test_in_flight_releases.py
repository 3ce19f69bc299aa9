"""InFlightRecords in histories of Kafka's SharePartitionTest: acknowledgements, and the end of locks and sessions."""

from __future__ import annotations

from typing import Final

from kproc.common.errors import ErrorCode
from tests.support.share_histories import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    GAP,
    REJECT,
    RELEASE,
    Acknowledge,
    Acquire,
    EndLocks,
    EndSession,
    History,
    States,
    Step,
    check_histories,
    fives,
)

# -- acknowledge -----------------------------------------------------------------------------------------------------


def test_members_acknowledge_only_what_they_hold() -> None:
    strange = ErrorCode.INVALID_RECORD_STATE
    check_histories(
        {
            "subset of another member": History(
                [
                    Acquire([(5, 11)]),
                    Acknowledge([(5, 7, ACCEPT)]),
                    Acknowledge([(9, 11, ACCEPT)], by="bob", error=strange),
                ],
                8,
                12,
                [(8, 11, ACQUIRED, 1)],
            ),
            "one batch of another member": History(
                [
                    Acquire([(5, 9)]),
                    Acquire([(10, 14)], by="bob"),
                    Acquire([(15, 19)]),
                    Acknowledge([(5, 9, RELEASE), (10, 14, ACCEPT), (15, 19, ACCEPT)], error=strange),
                ],
                5,
                20,
                [(5, 19, ACQUIRED, 1)],
            ),
            "last offsets of another member": History(
                [
                    Acquire([(5, 9), (10, 14)]),
                    Acquire([(15, 19)], by="bob"),
                    Acknowledge([(5, 9, RELEASE), (10, 14, ACCEPT), (16, 18, ACCEPT)], error=strange),
                ],
                5,
                20,
                [(5, 19, ACQUIRED, 1)],
            ),
            "acquired again by another member": History(
                [
                    Acquire([(5, 9), (10, 21)]),
                    Acknowledge([(5, 11, RELEASE), (12, 13, GAP), (14, 15, RELEASE), (17, 20, RELEASE)]),
                    Acquire([(5, 9), (10, 21)], [(5, 11, 2), (14, 15, 2)], 9, is_exact=True, by="bob"),
                ],
                5,
                17,
                [
                    (5, 11, ACQUIRED, 2),
                    (12, 13, ARCHIVED, 1),
                    (14, 15, ACQUIRED, 2),
                    (16, 16, ACQUIRED, 1),
                    (17, 20, AVAILABLE, 1),
                    (21, 21, ACQUIRED, 1),
                ],
                2,
            ),
            "two members": History(
                [
                    Acquire([(0, 9)]),
                    Acquire([(10, 19)], by="bob"),
                    Acknowledge([(5, 9, RELEASE)]),
                    Acquire([(5, 9), (10, 19)], [(5, 9, 2)]),
                ],
                0,
                20,
            ),
            "two members take turns": History(
                [
                    Acquire([(0, 2)]),
                    Acknowledge([(0, 2, RELEASE)]),
                    Acquire([(0, 2)], [(0, 2, 2)], by="bob"),
                    Acquire([(3, 4)], [(3, 4, 1)]),
                    Acknowledge([(3, 4, RELEASE)]),
                ],
                0,
                3,
            ),
        }
    )


def test_records_are_archived_behind_their_last_delivery() -> None:
    log = fives(10, 3)
    released = [(13, 16, RELEASE), (17, 19, REJECT), (20, 24, RELEASE)]
    check_histories(
        {
            "batch": History(
                [Acquire([(5, 14)]), Acknowledge([(5, 14, RELEASE)])] * 2, 15, 15, [], 0, deliveries=2
            ),
            "subset": History(
                [
                    Acquire(log[:2]),
                    Acknowledge([(10, 12, ACCEPT), (13, 16, RELEASE), (17, 19, ACCEPT)]),
                    Acquire(log[:2], [(13, 16, 2)]),
                    Acknowledge([(13, 16, RELEASE)]),
                ],
                20,
                20,
                [],
                deliveries=2,
            ),
            "first records": History(
                [
                    Acquire([(0, 4)]),
                    Acknowledge([(0, 1, RELEASE)]),
                    Acquire([(0, 4)], [(0, 1, 2)]),
                    Acknowledge([(0, 4, RELEASE)]),
                ],
                2,
                2,
                [(2, 4, AVAILABLE, 1)],
                deliveries=2,
            ),
            "all records": History(
                [
                    Acquire(log),
                    Acknowledge([(10, 12, ACCEPT), *released]),
                    Acquire(log, [(13, 16, 2), (20, 24, 2)]),
                    Acknowledge([(13, 16, RELEASE), (20, 24, RELEASE)]),
                ],
                25,
                25,
                [],
                0,
                deliveries=2,
            ),
            "session that ends": History(
                [
                    Acquire(log),
                    Acknowledge([*released]),
                    Acquire(log, [(13, 16, 2), (20, 24, 2)]),
                    EndSession(),
                ],
                10,
                10,
                [(10, 12, AVAILABLE, 1), (13, 16, ARCHIVED, 2), (17, 19, ARCHIVED, 1), (20, 24, ARCHIVED, 2)],
                12,
                deliveries=2,
            ),
        }
    )


# -- the end of locks and sessions -----------------------------------------------------------------------------------

GAPS_OF_9: Final[list[int]] = [ACCEPT, ACCEPT, GAP, GAP, ACCEPT, GAP, ACCEPT, GAP, ACCEPT]
STATES_OF_9: Final = [
    (10, 11, ACKNOWLEDGED, 1),
    (12, 13, ARCHIVED, 1),
    (14, 14, ACKNOWLEDGED, 1),
    (15, 15, ARCHIVED, 1),
    (16, 16, ACKNOWLEDGED, 1),
    (17, 17, ARCHIVED, 1),
    (18, 18, ACKNOWLEDGED, 1),
]


def test_locks_and_sessions_end_with_kafkas_states() -> None:
    """One member holds all records, so that the end of its locks and of its session have the same effect."""
    strange = ErrorCode.INVALID_RECORD_STATE
    for end in (EndLocks(), EndSession()):
        check_histories(
            {
                "nothing": History([end], 0, 0, []),
                "one record": History([Acquire([(0, 0)]), end], 0, 0, [(0, 0, AVAILABLE, 1)], 0),
                "again": History(
                    [Acquire([(10, 14)]), end, Acquire([(10, 14)], [(10, 14, 2)]), end],
                    10,
                    10,
                    [(10, 14, AVAILABLE, 2)],
                    0,
                ),
                "two acquires": History(
                    [Acquire([(0, 4)]), Acquire([(0, 9)], [(5, 9, 1)]), end], 0, 0, [(0, 9, AVAILABLE, 1)], 0
                ),
                "part again": History(
                    [Acquire([(10, 17)]), end, Acquire([(10, 17)], [(10, 12, 2)], 3, is_exact=True), end],
                    10,
                    10,
                    [(10, 12, AVAILABLE, 2), (13, 17, AVAILABLE, 1)],
                    0,
                ),
                "released before": History(
                    [Acquire([(5, 14)]), Acknowledge([(5, 14, RELEASE)]), end],
                    5,
                    5,
                    [(5, 14, AVAILABLE, 1)],
                    0,
                ),
                # Kafka's count of finished records is 11, because it does not count the gaps.
                "gaps": History(
                    [
                        Acquire([(1, 2)]),
                        Acquire([(5, 6)]),
                        Acquire([(10, 18)]),
                        Acknowledge([(5, 18, ACCEPT)]),
                        end,
                    ],
                    1,
                    1,
                    [
                        (1, 2, AVAILABLE, 1),
                        (3, 4, ARCHIVED, 0),
                        (5, 6, ACKNOWLEDGED, 1),
                        (7, 9, ARCHIVED, 0),
                        (10, 18, ACKNOWLEDGED, 1),
                    ],
                    16,
                ),
                "gaps inside": History(
                    [
                        Acquire([(5, 6)]),
                        Acquire([(10, 20)]),
                        Acknowledge([(6, 18, [ACCEPT] * 4 + GAPS_OF_9)]),
                        end,
                    ],
                    5,
                    5,
                    [
                        (5, 5, AVAILABLE, 1),
                        (6, 6, ACKNOWLEDGED, 1),
                        (7, 9, ARCHIVED, 0),
                        *STATES_OF_9,
                        (19, 20, AVAILABLE, 1),
                    ],
                ),
                "acknowledged": History(
                    [Acquire([(5, 9)]), Acknowledge([(5, 6, RELEASE)]), Acknowledge([(8, 9, ACCEPT)]), end],
                    5,
                    5,
                    [(5, 7, AVAILABLE, 1), (8, 9, ACKNOWLEDGED, 1)],
                    2,
                ),
                "too late": History(
                    [
                        Acquire([(5, 9)]),
                        end,
                        Acknowledge([(5, 9, ACCEPT)], error=strange),
                        Acknowledge([(5, 9, REJECT)], error=strange),
                    ],
                    5,
                    5,
                    [(5, 9, AVAILABLE, 1)],
                    0,
                ),
                "last delivery of some": History(
                    [Acquire([(0, 9)]), end, Acquire([(0, 9)], [(0, 4, 2)], 5, is_exact=True), end],
                    5,
                    5,
                    [(5, 9, AVAILABLE, 1)],
                    0,
                    deliveries=2,
                ),
                "last delivery of all": History([Acquire([(0, 9)]), end] * 2, 10, 10, [], 0, deliveries=2),
                "last delivery behind others": History(
                    [
                        Acquire([(0, 9)]),
                        Acquire([(10, 14)]),
                        Acknowledge([(10, 14, RELEASE)]),
                        Acquire([(10, 14)], [(10, 14, 2)]),
                        end,
                    ],
                    0,
                    0,
                    [(0, 9, AVAILABLE, 1), (10, 14, ARCHIVED, 2)],
                    5,
                    deliveries=2,
                ),
            }
        )


def test_end_of_a_session_leaves_other_members_alone() -> None:
    gap: States = [(6, 9, ARCHIVED, 0)]
    rest: States = [*STATES_OF_9, (19, 20, AVAILABLE, 1)]
    one: list[Step] = [
        Acquire([(5, 5)], by="bob"),
        Acquire([(10, 20)]),
        Acknowledge([(10, 18, GAPS_OF_9)]),
        EndSession(),
    ]
    two: list[Step] = [Acquire([(5, 6)], by="bob"), *one[1:], Acknowledge([(5, 5, ACCEPT)], by="bob")]
    check_histories(
        {
            "held by another": History(one, 5, 19, [(5, 5, ACQUIRED, 1), *gap, *rest]),
            "both end": History([*one, EndSession("bob")], 5, 5, [(5, 5, AVAILABLE, 1), *gap, *rest]),
            "accepted before": History(
                [*two, EndSession("bob")], 6, 6, [(6, 6, AVAILABLE, 1), (7, 9, ARCHIVED, 0), *rest]
            ),
            "stranger": History(
                [Acquire([(5, 11)]), Acknowledge([(5, 7, ACCEPT)]), EndSession("bob")],
                8,
                12,
                [(8, 11, ACQUIRED, 1)],
                0,
            ),
        }
    )
