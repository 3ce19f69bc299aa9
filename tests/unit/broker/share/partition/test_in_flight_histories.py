"""InFlightRecords in histories of Kafka's SharePartitionTest, with its numbers: loaded states and acquires."""

from __future__ import annotations

from typing import Final

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
    Counts,
    EndSession,
    History,
    LogStart,
    Ranges,
    States,
    Step,
    check_histories,
)

# -- loaded states -------------------------------------------------------------------------------------------------

IN_PARTS: Final = [(15, 18, AVAILABLE, 2), (20, 22, ARCHIVED, 2), (26, 30, AVAILABLE, 1)]
TWO_GAPS: Final = [(21, 30, ACKNOWLEDGED, 2), (41, 50, ARCHIVED, 1)]
FOUR_GAPS: Final = [
    (21, 30, ACKNOWLEDGED, 2),
    (41, 50, AVAILABLE, 1),
    (61, 70, ARCHIVED, 1),
    (81, 90, AVAILABLE, 1),
]


def test_window_of_a_loaded_state_begins_as_in_kafka() -> None:
    settled = [(233, 233, ARCHIVED, 1), *((each, each, ACKNOWLEDGED, 1) for each in range(234, 734))]
    plain: States = [(5, 10, AVAILABLE, 2), (11, 15, ARCHIVED, 3)]
    check_histories(
        {
            "plain": History([], 5, 5, plain, finished=5, begins=5, loaded=plain),
            "empty": History([], 10, 10, [], begins=10),
            "gap at the beginning": History(
                [], 10, 10, finished=16, begins=10, loaded=[(15, 20, ACKNOWLEDGED, 2), (21, 30, ARCHIVED, 3)]
            ),
            "two gaps": History(
                [], 10, 10, finished=17, begins=10, loaded=[(15, 20, ACKNOWLEDGED, 2), (30, 40, ARCHIVED, 3)]
            ),
            "gap later": History(
                [], 21, 21, finished=11, begins=15, loaded=[(15, 20, ACKNOWLEDGED, 2), (30, 40, ARCHIVED, 3)]
            ),
            "no gap": History(
                [],
                31,
                31,
                [],
                finished=0,
                begins=15,
                loaded=[(15, 20, ACKNOWLEDGED, 2), (21, 30, ARCHIVED, 3)],
            ),
            "nothing available": History([], 734, 734, [], finished=0, begins=233, loaded=settled),
        }
    )


def test_loaded_state_with_parts_is_acquired_as_in_kafka() -> None:
    all_parts = [(10, 14, 1), (15, 18, 3), (19, 19, 1), (23, 25, 1), (26, 30, 2), (31, 49, 1)]
    small = [(5, 6), (8, 8), (10, 11), (13, 18), (19, 21), (22, 30), (31, 49)]
    histories = {
        "limits": [
            Acquire([(10, 49)], all_parts[:1], 1),
            Acquire([(10, 49)], all_parts[1:5], 10),
            Acquire([(10, 49)], all_parts[5:], 1),
        ],
        "no limit": [Acquire([(10, 49)], all_parts)],
    }
    check_histories(
        {name: History(steps, 10, 50, begins=10, loaded=IN_PARTS) for name, steps in histories.items()}
    )
    check_histories(
        {
            "log ends in a part": History(
                [Acquire([(12, 27)], [(12, 14, 1), *all_parts[1:4], (26, 27, 2)])],
                12,
                28,
                begins=10,
                loaded=IN_PARTS,
            ),
            "batch begins before the start": History(
                [Acquire([(6, 21)], all_parts[:3])], 10, 23, begins=10, loaded=IN_PARTS
            ),
            "small batches": History(
                [
                    Acquire(small, [(5, 6, 1)], 1),
                    Acquire(small, [(8, 11, 1)], 3),
                    Acquire(small, [(13, 14, 1), *all_parts[1:4]], 8),
                    Acquire(small, all_parts[4:], 10),
                ],
                5,
                50,
                begins=5,
                loaded=IN_PARTS,
            ),
            "small batches end in a part": History(
                [Acquire([(7, 8), (10, 11), (13, 18), (20, 27)], [(7, 14, 1), *all_parts[1:4], (26, 27, 2)])],
                7,
                28,
                begins=5,
                loaded=IN_PARTS,
            ),
            "small batches begin before the start": History(
                [Acquire([(3, 4), (6, 6), (8, 11), (13, 22)], all_parts[:3])],
                10,
                23,
                begins=10,
                loaded=IN_PARTS,
            ),
            "moved start": History(
                [Acquire([(0, 9)], [(5, 9, 1)], 10, is_exact=True)],
                5,
                10,
                begins=5,
                loaded=[(15, 20, ARCHIVED, 1)],
            ),
        }
    )


def test_gaps_of_a_loaded_state_are_acquired_as_in_kafka() -> None:
    first_done: States = [(11, 20, ACKNOWLEDGED, 2), (31, 40, ARCHIVED, 1)]
    then_done: States = [(21, 30, ACKNOWLEDGED, 2), (31, 40, ARCHIVED, 1)]
    then_free: States = [(21, 30, AVAILABLE, 2), (31, 40, ARCHIVED, 1)]
    first_free: States = [(11, 20, AVAILABLE, 2), (31, 40, ARCHIVED, 1)]
    both_free: States = [(11, 20, AVAILABLE, 2), (31, 40, AVAILABLE, 1)]
    ends_before: States = [(21, 30, AVAILABLE, 2), (41, 50, ACKNOWLEDGED, 1), (61, 70, ARCHIVED, 1)]
    four = [(11, 20, 1), (31, 40, 1), (41, 50, 2), (51, 60, 1)]
    # (loaded states, log, limit, acquired, start, next offset, finished)
    cases: list[tuple[States, Ranges, int, Counts, int, int, int]] = [
        (then_done, [(11, 15)], 500, [(11, 15, 1)], 11, 16, 20),
        (then_done, [(11, 25)], 500, [(11, 20, 1)], 11, 41, 20),
        (then_free, [(11, 25)], 500, [(11, 20, 1), (21, 25, 3)], 11, 26, 10),
        (first_free, [(11, 25)], 500, [(11, 20, 3), (21, 25, 1)], 11, 26, 10),
        (FOUR_GAPS, [(11, 85)], 500, [*four, (71, 80, 1), (81, 85, 2)], 11, 86, 20),
        (ends_before, [(11, 30)], 500, [(11, 20, 1), (21, 30, 3)], 11, 31, 20),
        (FOUR_GAPS, [(11, 75)], 500, [*four, (71, 75, 1)], 11, 76, 20),
        (first_done, [(21, 23), (24, 26), (27, 28)], 6, [(21, 26, 1)], 21, 27, 10),
        (then_free, [(11, 20), (21, 30)], 8, [(11, 20, 1)], 11, 21, 10),
        (both_free, [(11, 20), (21, 40)], 8, [(11, 20, 3)], 11, 21, 0),
        # The log has gaps of its own. Kafka moves the start only at the next acknowledgement.
        (TWO_GAPS, [(21, 35), (36, 60)], 500, [(31, 40, 1), (51, 60, 1)], 31, 61, 10),
        (TWO_GAPS, [(16, 35), (36, 60)], 500, [(16, 20, 1), (31, 40, 1), (51, 60, 1)], 16, 61, 20),
        (TWO_GAPS, [(11, 20), (21, 35), (41, 60)], 500, [(11, 20, 1), (31, 40, 1), (51, 60, 1)], 11, 61, 20),
    ]
    for number, (loaded, log, limit, acquired, start, next_offset, finished) in enumerate(cases):
        steps: list[Step] = [Acquire(log, acquired, limit)]
        history = History(steps, start, next_offset, finished=finished, begins=11, loaded=loaded)
        check_histories({f"case {number}": history})
    natural = [Acquire([(10, 20), (30, 50)], [(10, 14, 1), (21, 29, 1), (41, 50, 1)])]
    later = [Acquire([(21, 35)], [(21, 30, 1)]), Acquire([(41, 55)], [(41, 55, 1)])]
    check_histories(
        {
            "natural gap": History(
                [*natural], 10, 51, begins=10, loaded=[(15, 20, ACKNOWLEDGED, 2), (30, 40, ARCHIVED, 1)]
            ),
            "records behind the gaps": History([*later], 21, 56, begins=11, loaded=first_done),
            "start stops at a gap": History(
                [Acquire([(11, 20)], [(11, 20, 3)]), Acknowledge([(11, 20, ACCEPT)])],
                21,
                21,
                finished=10,
                begins=11,
                loaded=first_free,
            ),
        }
    )


# -- acquire ---------------------------------------------------------------------------------------------------------


def test_limits_of_an_acquire_count_whole_batches() -> None:
    three = [(10, 14), (15, 29), (30, 44)]
    sizes = [(2, 6), (10, 14), (15, 21), (22, 27)]
    check_histories(
        {
            "limit": History(
                [Acquire([(0, 4)], [(0, 4, 1)], 10), Acquire([(0, 24)], [(5, 24, 1)], 10)], 0, 25
            ),
            "limit inside a batch": History([Acquire(three, [(10, 29, 1)], 10)], 10, 30),
            "size below a batch": History([Acquire([(0, 4)], [(0, 4, 1)], 10, size=2)], 0, 5),
            "size and batches": History([Acquire(sizes, [(2, 27, 1)], 100, size=5)], 2, 28),
            "size and limit": History(
                [Acquire([(0, 4), (5, 19), (20, 34)], [(0, 19, 1)], 10, size=2)], 0, 20
            ),
            "start inside the batch": History(
                [LogStart(8), Acquire([(5, 14)], [(8, 14, 1)], 100, size=5)], 8, 15
            ),
            "start inside the first batch": History(
                [LogStart(4), Acquire([(2, 9), (10, 16)], [(4, 16, 1)], 100, size=5)], 4, 17
            ),
            "start inside the second batch": History(
                [LogStart(12), Acquire([(2, 9), (10, 16)], [(12, 16, 1)], 100, size=5)], 12, 17
            ),
        }
    )


def test_limit_of_locks_counts_whole_batches() -> None:
    four = [(10, 14), (15, 24), (25, 29), (30, 32)]
    check_histories(
        {
            "new batch": History(
                [Acquire([(0, 9)], [(0, 9, 1)]), Acquire(four, [(10, 24, 1)]), Acquire([(25, 34)], [])],
                0,
                None,
                locks=20,
            ),
            "released last offset": History(
                [
                    Acquire(four, [(10, 29, 1)]),
                    Acknowledge([(15, 19, RELEASE)]),
                    Acquire(four, [(15, 19, 2)]),
                    Acknowledge([(29, 29, RELEASE)]),
                    Acquire(four, [(29, 29, 2)]),
                ],
                10,
                None,
                locks=20,
            ),
            "released batch": History(
                [
                    Acquire([(0, 4)]),
                    Acquire([(5, 14)]),
                    Acquire([(15, 24)], [(15, 24, 1)]),
                    Acknowledge([(5, 14, RELEASE)]),
                    Acquire([(5, 14), (15, 24), (25, 29)], [(5, 14, 2)]),
                ],
                0,
                None,
                locks=20,
            ),
            "released batch and one record more": History(
                [
                    *(Acquire([each]) for each in ((0, 4), (5, 9), (10, 14), (15, 24))),
                    Acknowledge([(5, 9, RELEASE)]),
                    Acquire([(5, 9), (10, 14), (15, 24), (25, 29)], [(5, 9, 2)], 6),
                ],
                0,
                None,
                locks=20,
            ),
        }
    )


def test_settled_records_make_room_for_others() -> None:
    two = [Acquire([(0, 14)]), Acquire([(15, 29)], [(15, 29, 1)])]
    large = [Acquire([(0, 149)]), Acquire([(150, 249)], [(150, 249, 1)])]
    whole = [Acquire([(0, 249)], [(0, 249, 1)])]
    check_histories(
        {
            "accepted": History([*whole, Acknowledge([(0, 249, ACCEPT)])], 250, 250, [], 0),
            "rejected": History([*whole, Acknowledge([(0, 249, REJECT)])], 250, 250, [], 0),
            "released": History(
                [*whole, Acknowledge([(0, 249, RELEASE)])], 0, 0, [(0, 249, AVAILABLE, 1)], 0
            ),
            "below the limit": History([*large[:1]], 0, 150),
            "at the limit": History([*large], 0, None),
            "all accepted": History([*large, Acknowledge([(0, 249, ACCEPT)])], 250, 250),
            "some released": History([*large, Acknowledge([(0, 89, RELEASE)])], 0, 0),
            "some rejected": History([*large, Acknowledge([(0, 89, REJECT)])], 90, 250),
            "some accepted": History([*large, Acknowledge([(0, 89, ACCEPT)])], 90, 250),
            "part of a batch": History([*two, Acknowledge([(0, 12, ACCEPT)])], 13, 30, finished=0, locks=20),
            "a batch": History([*two, Acknowledge([(0, 14, REJECT)])], 15, 30, finished=0, locks=20),
            "in between": History([*two, Acknowledge([(10, 14, REJECT)])], 0, None, finished=5, locks=20),
            "all": History([*two, Acknowledge([(0, 29, ACCEPT)])], 30, 30, finished=0, locks=20),
            "several times": History(
                [
                    Acquire([(0, 19), (20, 39), (40, 59)]),
                    Acknowledge([(0, 19, ACCEPT)]),
                    Acquire([(60, 79)], [(60, 79, 1)]),
                    Acknowledge([(20, 49, ACCEPT)]),
                    Acquire([(80, 179)], [(80, 179, 1)]),
                    Acquire([(180, 199)], []),
                    Acknowledge([(50, 179, REJECT)]),
                    Acquire([(180, 199)], [(180, 199, 1)]),
                ],
                180,
                200,
                [(180, 199, ACQUIRED, 1)],
                0,
                locks=100,
            ),
        }
    )


def test_compacted_batches_are_archived_and_passed_over() -> None:
    three = [(0, 4), (5, 19), (20, 34)]
    stale: States = [(11, 20, AVAILABLE, 1), (21, 30, AVAILABLE, 1)]
    check_histories(
        {
            "stale batch": History([Acquire([(21, 30)], [(21, 30, 2)])], 21, 31, begins=11, loaded=stale),
            "stale offsets": History([Acquire([(16, 30)], [(16, 30, 2)])], 16, 31, begins=11, loaded=stale),
            "removed in between": History(
                [
                    Acquire(three),
                    *(Acquire([each]) for each in ((40, 44), (45, 49), (50, 64))),
                    EndSession(),
                    Acquire([(0, 4), (20, 34), (40, 44), (50, 63)], [(0, 34, 2), (40, 63, 2)]),
                ],
                0,
                64,
            ),
            "removed batch": History(
                [
                    Acquire([(0, 4), (5, 9), (10, 24)]),
                    EndSession(),
                    Acquire([(5, 9)], [(5, 9, 2)]),
                    EndSession(),
                ],
                5,
                5,
                [(5, 9, AVAILABLE, 2), (10, 24, AVAILABLE, 1)],
                0,
            ),
            "removed rest of a batch": History(
                [
                    Acquire([(5, 9), (10, 24)]),
                    Acknowledge([(5, 7, ACCEPT)]),
                    EndSession(),
                    Acquire([(10, 24)], [(10, 24, 2)]),
                    EndSession(),
                ],
                10,
                10,
                [(10, 24, AVAILABLE, 2)],
                0,
            ),
            "removed beginning of an acquire": History(
                [Acquire(three), EndSession(), Acquire([(5, 9)], [(5, 9, 2)]), EndSession()],
                5,
                5,
                [(5, 9, AVAILABLE, 2), (10, 34, AVAILABLE, 1)],
                0,
            ),
            "batch without its first records": History(
                [
                    Acquire([(5, 16)]),
                    Acknowledge([(5, 9, GAP), (10, 11, ACCEPT), (12, 14, REJECT), (15, 16, RELEASE)]),
                ],
                15,
                15,
                [(15, 16, AVAILABLE, 1)],
                0,
            ),
        }
    )


def test_aborted_batches_divide_what_is_acquired() -> None:
    log = [(10, 14), (15, 19), (20, 34), (50, 57), (58, 67), (70, 74)]
    aborted = [(10, 14), (58, 67), (70, 74)]
    check_histories(
        {
            "batches": History([Acquire(log, [(15, 57, 1), (68, 69, 1)], size=10, aborted=aborted)], 15, 75),
            "inside a range": History(
                [Acquire([(0, 19)], [(0, 7, 1), (9, 17, 1), (19, 19, 1)], aborted=[(8, 8), (18, 18)])], 0, 20
            ),
        }
    )
