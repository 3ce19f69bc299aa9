"""InFlightRecords in histories of Kafka's SharePartitionTest: retention moves the start of the log."""

from __future__ import annotations

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
    LogStart,
    States,
    Step,
    check_histories,
    fives,
)

# -- the start of the log --------------------------------------------------------------------------------------------


def test_moved_log_start_gives_kafkas_states() -> None:
    """Kafka moves the start of the window behind finished records at the next acknowledgement, kproc at once."""
    seven, two = Acquire(fives(2, 7)), Acquire(fives(2, 2))
    four = Acquire([(11, 20), (21, 30), (31, 40), (41, 50)])
    behind: States = [(22, 26, AVAILABLE, 1), (27, 31, ARCHIVED, 1), (32, 36, ACQUIRED, 1)]
    rejected = [(2, 6, RELEASE), (12, 16, REJECT), (22, 26, RELEASE), (27, 31, REJECT)]
    released = [(11, 20, RELEASE), (31, 40, RELEASE)]
    gaps = [RELEASE] * 5 + [GAP] * 3 + [RELEASE]
    held: States = [(20, 21, ACQUIRED, 1)]
    check_histories(
        {
            "empty window": History([LogStart(0), LogStart(5)], 5, 5, []),
            "batches": History(
                [
                    seven,
                    Acknowledge([(2, 6, ACCEPT), (12, 16, RELEASE), (22, 26, RELEASE), (27, 31, REJECT)]),
                    LogStart(20),
                ],
                20,
                22,
                [*held, *behind],
                5,
            ),
            "archived batches": History(
                [seven, Acknowledge([*rejected]), LogStart(20)], 20, 22, [*held, *behind], 5
            ),
            "archived records": History(
                [seven, Acknowledge([*rejected[:2], (19, 21, REJECT), *rejected[2:]]), LogStart(20)],
                22,
                22,
                behind,
                5,
            ),
            "all available batches": History(
                [four, Acknowledge([*released]), LogStart(41), Acknowledge([(21, 30, RELEASE)]), EndLocks()],
                41,
                41,
                [(41, 50, AVAILABLE, 1)],
                0,
            ),
            "all available offsets": History(
                [four, Acknowledge([*released]), LogStart(36), Acknowledge([(21, 30, RELEASE)])],
                36,
                36,
                [(36, 40, AVAILABLE, 1), (41, 50, ACQUIRED, 1)],
                0,
            ),
            "accepted offsets": History(
                [two, Acknowledge([(4, 8, ACCEPT)]), LogStart(5)], 9, 12, [(9, 11, ACQUIRED, 1)]
            ),
            "twice inside of batches": History(
                [two, LogStart(4), LogStart(8)], 8, 12, [(8, 11, ACQUIRED, 1)]
            ),
            "to a batch": History([two, LogStart(4), LogStart(7)], 7, 12, [(7, 11, ACQUIRED, 1)]),
            "to an accepted batch": History(
                [two, LogStart(4), Acknowledge([(7, 8, ACCEPT)]), LogStart(7)], 9, 12, [(9, 11, ACQUIRED, 1)]
            ),
            "to a released batch": History(
                [two, LogStart(4), Acknowledge([(7, 8, RELEASE)]), LogStart(7)],
                7,
                7,
                [(7, 8, AVAILABLE, 1), (9, 11, ACQUIRED, 1)],
            ),
            "to the last offset": History(
                [two, Acknowledge([(7, 8, RELEASE)]), LogStart(11)], 11, 12, [(11, 11, ACQUIRED, 1)]
            ),
            "to the last offset, released": History(
                [two, Acknowledge([(7, 8, RELEASE), (11, 11, RELEASE)]), LogStart(11)],
                11,
                11,
                [(11, 11, AVAILABLE, 1)],
            ),
            "to the end": History([two, Acknowledge([(7, 8, RELEASE)]), LogStart(12)], 12, 12, []),
            "behind the end": History([two, LogStart(14)], 14, 14, []),
            "into a gap": History(
                [Acquire([(2, 6)]), Acquire([(10, 14)]), Acquire([(20, 24)]), LogStart(18)],
                20,
                25,
                [(20, 24, ACQUIRED, 1)],
            ),
            "behind a gap": History(
                [Acquire([(2, 6)]), Acquire([(10, 14)]), Acknowledge([(10, 14, RELEASE)]), LogStart(10)],
                10,
                10,
                [(10, 14, AVAILABLE, 1)],
            ),
            "behind acknowledged gaps": History(
                [
                    Acquire([(5, 6)]),
                    Acquire([(10, 18)]),
                    Acknowledge([(5, 6, RELEASE), (10, 18, [*gaps])]),
                    LogStart(18),
                ],
                18,
                18,
                [(18, 18, AVAILABLE, 1)],
            ),
        }
    )


def test_records_below_the_log_start_end_without_effect() -> None:
    loaded: States = [(11, 20, AVAILABLE, 1), (21, 30, AVAILABLE, 1)]
    again = Acquire([(10, 20)], [(11, 20, 2)])
    behind: States = [(16, 20, AVAILABLE, 2), (21, 30, AVAILABLE, 1)]
    many: list[Step] = [
        Acquire(fives(5, 2)),
        Acquire([(15, 19)], by="bob"),
        Acquire(fives(20, 4)),
        Acknowledge([(6, 7, ACCEPT), (8, 8, RELEASE), (25, 29, RELEASE), (35, 37, RELEASE)]),
        LogStart(24),
    ]
    for end in (EndLocks(), EndSession()):
        check_histories(
            {
                "batch": History(
                    [again, LogStart(21), Acknowledge([(11, 20, RELEASE)]), end],
                    21,
                    21,
                    loaded[1:],
                    0,
                    begins=11,
                    loaded=loaded,
                ),
                "offsets": History([again, LogStart(16), end], 16, 16, behind, 0, begins=11, loaded=loaded),
                "released offsets": History(
                    [again, LogStart(16), Acknowledge([(11, 20, RELEASE)]), end],
                    16,
                    16,
                    behind,
                    0,
                    begins=11,
                    loaded=loaded,
                ),
                "many batches": History([*many, end], 24, 24, [(24, 39, AVAILABLE, 1)], 0),
                "start of a batch": History(
                    [Acquire(fives(5, 2)), LogStart(10), end], 10, 10, [(10, 14, AVAILABLE, 1)], 0
                ),
                "middle of a batch": History(
                    [Acquire(fives(5, 2)), LogStart(11), end], 11, 11, [(11, 14, AVAILABLE, 1)], 0
                ),
                "accepted records": History(
                    [Acquire(fives(5, 2)), Acknowledge([(12, 13, ACCEPT)]), LogStart(11), end],
                    11,
                    11,
                    [(11, 11, AVAILABLE, 1), (12, 13, ACKNOWLEDGED, 1), (14, 14, AVAILABLE, 1)],
                    2,
                ),
            }
        )


def test_acknowledgements_across_the_log_start_count_above_it() -> None:
    check_histories(
        {
            "batch and offsets": History(
                [
                    Acquire([(2, 6)]),
                    Acquire([(10, 14)]),
                    LogStart(12),
                    Acknowledge([(2, 6, RELEASE), (10, 14, RELEASE)]),
                ],
                12,
                12,
                [(12, 14, AVAILABLE, 1)],
                0,
            ),
            "one batch": History(
                [
                    *(Acquire([each]) for each in ((2, 6), (10, 14), (20, 24))),
                    LogStart(14),
                    Acknowledge([(2, 14, ACCEPT)]),
                ],
                20,
                25,
                [(20, 24, ACQUIRED, 1)],
            ),
            "after the end of the locks": History(
                [
                    Acquire([(2, 6)]),
                    LogStart(7),
                    EndLocks(),
                    Acquire([(10, 14)]),
                    Acknowledge([(2, 14, RELEASE)]),
                ],
                10,
                10,
                [(10, 14, AVAILABLE, 1)],
                0,
            ),
            "several batches after the end of the locks": History(
                [
                    Acquire([(1, 2)]),
                    LogStart(3),
                    EndLocks(),
                    Acquire([(3, 4)]),
                    Acquire([(5, 7)]),
                    Acknowledge([(1, 7, RELEASE)]),
                ],
                3,
                3,
                [(3, 7, AVAILABLE, 1)],
                0,
            ),
        }
    )
