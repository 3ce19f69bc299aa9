"""Leader epochs: assignment, truncation, and the answers of OffsetsForLeaderEpoch."""

from __future__ import annotations

from kproc.broker.storage.leader_epochs import LeaderEpochs
from tests.support.cases import in_one_test

ENTRIES = [(2, 0), (4, 10), (7, 20)]


@in_one_test(
    ("asked", "answer"),
    [
        (-1, (-1, -1)), (0, (0, 0)), (2, (2, 10)), (3, (2, 10)),
        (4, (4, 20)), (6, (4, 20)), (7, (7, 33)), (8, (-1, -1)),
    ],
)  # fmt: skip
def test_end_of_an_epoch(asked: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs(ENTRIES).find_end_offset(asked, log_end=33) == answer


def test_without_entries_nothing_is_known() -> None:
    assert LeaderEpochs().find_end_offset(0, log_end=5) == (-1, -1)
    assert LeaderEpochs().latest == -1


@in_one_test(
    ("epoch", "start", "expected"),
    [
        (7, 25, ENTRIES),  # known
        (8, 25, [*ENTRIES, (8, 25)]),
        (8, 20, [(2, 0), (4, 10), (8, 20)]),  # 7 wrote nothing
        (8, 10, [(2, 0), (8, 10)]),
        (3, 30, [(2, 0), (3, 30)]),  # goes back: what is newer was not
        (8, 0, [(8, 0)]),
    ],
)
def test_assign(epoch: int, start: int, expected: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert epochs.assign(epoch, start) == (expected != ENTRIES)
    assert epochs.entries() == expected


def test_truncation_at_both_ends() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert not epochs.truncate_from(21)
    assert epochs.truncate_from(20)
    assert epochs.entries() == ENTRIES[:2]
    epochs = LeaderEpochs(ENTRIES)
    assert not epochs.truncate_to(0)
    assert epochs.truncate_to(12)
    assert epochs.entries() == [(4, 12), (7, 20)]
    assert epochs.truncate_to(20)
    assert epochs.entries() == [(7, 20)]


def test_epoch_of_an_offset() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10)])
    assert [epochs.epoch_of(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 2, 2, 4, 4]
