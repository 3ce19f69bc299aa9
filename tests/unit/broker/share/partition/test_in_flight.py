"""InFlightRecords and WantedRecords: which records a member gets, and what a call costs."""

from __future__ import annotations

import pytest

from kproc.broker.share.partition.in_flight import WINDOW_MAX, InFlightRecords, Rules
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.partition.wanted_records import WantedRecords
from kproc.broker.share.state.messages import RecordState, StateBatch
from tests.support.bytecodes import count_bytecodes

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 0)
HERE = "test_in_flight.py"
Acquired = list[tuple[int, int, int]]


def acquire(
    records: InFlightRecords, batches: list[tuple[int, int]], holder: ShareHolder = ANN, records_max: int = 500
) -> Acquired:
    wanted = WantedRecords(holder, records_max, 0, 1_000)
    offset = records.next_fetch_offset()
    assert offset is not None
    left = [batch for batch in batches if batch[1] >= offset]
    found = wanted.acquire(records, offset, left) if left else []
    return [(each.first, each.last, each.delivery_count) for each in found]


def settle(records: InFlightRecords, first: int, last: int, kind: int, holder: ShareHolder = ANN) -> None:
    batches = [AcknowledgeBatch(first, last, [kind])]
    records.commit(records.acknowledge(holder, batches, renewed_until_ms=0))


def sizes_until_given_up(count: int, limit: int) -> list[int]:
    """The sizes of the deliveries of one batch whose records are all released, again and again."""
    records = InFlightRecords(0, Rules(limit, 4_000))
    sizes = []
    while True:
        found = acquire(records, [(0, count - 1)])
        if not found:
            return sizes
        sizes.append(sum(last - first + 1 for first, last, _ in found))
        for first, last, _ in found:
            settle(records, first, last, RELEASE)


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [
        # Each record is delivered `limit` times: whole batches at first, halves from the middle on, alone at last.
        (8, 5, [8, 8, 8, 4, 1, 1, 1, 1, 4, 1, 1, 1, 1]),
        (8, 4, [8, 8, 4, 1, 1, 1, 1, 4, 1, 1, 1, 1]),
        (3, 2, [3, 3]),
        (16, 6, [16, 16, 16, 8, 4] + [1] * 4 + [4] + [1] * 4 + [8, 4] + [1] * 4 + [4] + [1] * 4),
    ],
)
def test_deliveries_get_smaller_near_the_limit(count: int, limit: int, expected: list[int]) -> None:
    sizes = sizes_until_given_up(count, limit)
    assert sizes == expected
    assert sum(sizes) == count * limit


def test_records_near_the_limit_come_without_others() -> None:
    records = InFlightRecords(
        0,
        Rules(5, 4_000),
        [StateBatch(0, 1, RecordState.AVAILABLE, 1), StateBatch(2, 5, RecordState.AVAILABLE, 3)],
    )
    log = [(0, 9)]
    assert acquire(records, log) == [(0, 1, 2)]
    assert acquire(records, log) == [(2, 3, 4)]
    assert acquire(records, log) == [(4, 5, 4)]
    assert acquire(records, log) == [(6, 9, 1)]


def test_window_does_not_grow_beyond_what_a_state_can_hold() -> None:
    """The last batch may exceed share.partition.max.record.locks, and a batch can have 100,000 records and more."""
    records = InFlightRecords(0, Rules(5, 2_000))
    batch = [(0, 99_999)]
    assert acquire(records, batch) == [(0, WINDOW_MAX - 1, 1)]
    assert records.next_fetch_offset() is None
    settle(records, 0, 39_000, ACCEPT)
    assert acquire(records, batch) == [(WINDOW_MAX, 39_000 + WINDOW_MAX, 1)]


def test_gaps_between_persisted_batches_are_delivered() -> None:
    """A former owner had delivered them, and nobody had settled them."""
    records = InFlightRecords(5, Rules(5, 4_000), [StateBatch(8, 9, RecordState.ACKNOWLEDGED, 1)])
    assert acquire(records, [(0, 6), (7, 20)]) == [(5, 7, 1), (10, 20, 1)]


def test_acknowledgement_across_a_gap_skips_it() -> None:
    """Compaction has removed the offsets 2 to 4."""
    records = InFlightRecords(0, Rules(5, 4_000))
    acquire(records, [(0, 1)])
    assert acquire(records, [(5, 6)]) == [(5, 6, 1)]
    settle(records, 1, 5, ACCEPT)
    assert records.states()[-1] == StateBatch(6, 6, RecordState.ACQUIRED, 1)
    settle(records, 0, 0, ACCEPT)
    assert records.start_offset == 6


def full_window(count: int) -> InFlightRecords:
    """A window in which every record is a run of its own."""
    records = InFlightRecords(0, Rules(5, 4_000))
    for offset in range(count):
        acquire(records, [(offset, offset)], (ANN, BOB)[offset % 2], 1)
    assert records.run_count == count
    return records


def test_cost_of_an_acknowledgement_hardly_grows_with_the_window() -> None:
    costs = []
    for count in (20, 2_000):
        records = full_window(count)
        costs.append(count_bytecodes(lambda: settle(records, 0, 0, ACCEPT), unless_in=HERE))  # noqa: B023
    assert costs[1] < costs[0] + 50
    assert costs[0] < 1_000


def test_cost_of_typical_calls_is_small() -> None:
    """A member acquires 500 records of one batch, and accepts them with a type for each."""
    records = full_window(1_000)
    log = [(1_000, 1_499)]
    assert count_bytecodes(lambda: acquire(records, log), unless_in=HERE) < 1_200
    batches = [AcknowledgeBatch(1_000, 1_499, [ACCEPT] * 500)]
    changes = []
    begin = count_bytecodes(
        lambda: changes.append(records.acknowledge(ANN, batches, renewed_until_ms=0)), unless_in=HERE
    )
    assert begin < 600
    assert count_bytecodes(lambda: records.to_persist(changes), unless_in=HERE) < 500
    assert count_bytecodes(lambda: records.commit(changes[0]), unless_in=HERE) < 500


def test_accepted_records_cost_nothing() -> None:
    records = InFlightRecords(0, Rules(5, 4_000))
    for first in range(0, 100_000, 500):
        acquire(records, [(first, first + 499)])
        settle(records, first, first + 499, ACCEPT)
    assert records.run_count == 0
    assert records.start_offset == 100_000
