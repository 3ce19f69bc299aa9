"""WantedRecords: which records a member gets, with the numbers of Kafka's SharePartitionTest (KIP-932, KIP-1206)."""

from __future__ import annotations

import pytest

from kproc.broker.share.partition.in_flight import InFlightRecords, Rules
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.partition.wanted_records import WantedRecords
from kproc.broker.share.state.messages import RecordState, StateBatch
from kproc.common.errors import ErrorCode, KafkaError

AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 0)
LOCK_MS = 1_000
Offsets = list[tuple[int, int]]
Acquired = list[tuple[int, int, int]]


def window(start: int, *batches: StateBatch, limit: int = 5) -> InFlightRecords:
    return InFlightRecords(start, Rules(limit, 4_000), batches)


def acquire(
    records: InFlightRecords,
    log: Offsets,
    records_max: int = 500,
    *,
    holder: ShareHolder = ANN,
    is_exact: bool = False,
    aborted: Offsets = (),
) -> Acquired:
    """Acquire from the batches of a log. Return (first, last, delivery count) of each range."""
    offset = records.next_fetch_offset()
    assert offset is not None
    left = [batch for batch in log if batch[1] >= offset]
    if not left:
        return []
    wanted = WantedRecords(holder, records_max, 0, LOCK_MS, is_exact)
    found = wanted.acquire(records, offset, left, aborted)
    return [(each.first, each.last, each.delivery_count) for each in found]


def settle(
    records: InFlightRecords,
    first: int,
    last: int,
    kind: int = AcknowledgeType.RELEASE,
    holder: ShareHolder = ANN,
) -> None:
    batches = [AcknowledgeBatch(first, last, [kind])]
    records.commit(records.acknowledge(holder, batches, renewed_until_ms=0))


# -- records that were delivered before --------------------------------------------------------------------------


def test_records_near_the_limit_wait_for_their_own_turn() -> None:
    records = window(
        5,
        StateBatch(15, 19, AVAILABLE, 2),
        StateBatch(20, 22, ARCHIVED, 3),
        StateBatch(26, 30, AVAILABLE, 3),
    )
    log = [(7, 19), (20, 27)]
    assert acquire(records, log) == [(7, 14, 1), (15, 19, 3), (23, 25, 1)]
    assert acquire(records, log) == [(26, 27, 4)]


def test_each_delivery_near_the_limit_halves_the_batch() -> None:
    records = window(5, StateBatch(15, 34, AVAILABLE, 4), limit=7)
    log = [(15, 34)]
    assert acquire(records, log) == [(15, 24, 5)]
    records.commit(records.expire(LOCK_MS))
    assert acquire(records, log) == [(15, 19, 6)]
    records.commit(records.expire(LOCK_MS))
    assert [acquire(records, log) for _ in range(5)] == [[(each, each, 7)] for each in range(15, 20)]
    assert acquire(records, log) == [(20, 24, 6)]
    assert acquire(records, log) == [(25, 34, 5)]


def test_record_at_its_last_delivery_comes_alone() -> None:
    records = window(15, StateBatch(15, 16, AVAILABLE, 3), StateBatch(17, 17, AVAILABLE, 4))
    log = [(15, 34)]
    # Kafka, whose batch is 15 to 34, delivers 15 and 16 together here.
    assert acquire(records, log) == [(15, 15, 4)]
    assert acquire(records, log) == [(16, 16, 4)]
    assert acquire(records, log) == [(17, 17, 5)]
    assert acquire(records, log) == [(18, 34, 1)]


def test_held_record_near_the_limit_delays_no_others() -> None:
    records = window(15, StateBatch(15, 19, AVAILABLE, 1))
    log = [(15, 19)]
    assert acquire(records, log) == [(15, 19, 2)]
    settle(records, 15, 15)
    assert acquire(records, log) == [(15, 15, 3)]
    settle(records, 16, 19)
    assert acquire(records, log) == [(16, 19, 3)]


def test_pending_release_delays_no_other_records() -> None:
    records = window(15, StateBatch(15, 19, AVAILABLE, 1), StateBatch(20, 29, AVAILABLE, 2))
    log = [(15, 19), (20, 29)]
    assert acquire(records, log) == [(15, 19, 2), (20, 29, 3)]
    change = records.acknowledge(
        ANN, [AcknowledgeBatch(20, 24, [AcknowledgeType.RELEASE])], renewed_until_ms=0
    )
    settle(records, 15, 19)
    assert acquire(records, log) == [(15, 19, 3)]
    records.commit(change)
    assert acquire(records, log) == [(20, 24, 4)]


@pytest.mark.parametrize(("limit", "expected"), [(2, []), (10, [(5, 14, 3)])])
def test_changed_delivery_limit_counts_from_next_release(limit: int, expected: Acquired) -> None:
    records = window(5, limit=4)
    log = [(5, 14)]
    acquire(records, log)
    settle(records, 5, 14)
    assert acquire(records, log) == [(5, 14, 2)]
    records.rules = Rules(limit, 4_000)
    settle(records, 5, 14)
    assert acquire(records, log) == expected


# -- record_limit (KIP-1206) ---------------------------------------------------------------------------------------


def test_exact_acquire_divides_a_batch() -> None:
    records = window(0)
    assert acquire(records, [(0, 9)], 5, is_exact=True) == [(0, 4, 1)]
    assert records.next_fetch_offset() == 5
    assert acquire(records, [(0, 9)], 5, is_exact=True, holder=BOB) == [(5, 9, 1)]
    assert records.next_fetch_offset() == 10


def test_exact_acquire_crosses_batches() -> None:
    records = window(10)
    log = [(10, 14), (15, 29), (30, 44)]
    assert acquire(records, log, 10, is_exact=True) == [(10, 19, 1)]
    assert acquire(records, log, 40, is_exact=True) == [(20, 44, 1)]


def test_exact_acquire_continues_with_released_records() -> None:
    records = window(0)
    log = [(0, 4), (5, 19)]
    assert acquire(records, log, 2, is_exact=True) == [(0, 1, 1)]
    settle(records, 1, 1)
    assert acquire(records, log, 3, is_exact=True) == [(1, 1, 2), (2, 3, 1)]
    records.commit(records.expire(LOCK_MS))
    assert acquire(records, log, 2, is_exact=True) == [(0, 0, 2), (1, 1, 3)]


@pytest.mark.parametrize(
    ("log", "count", "expected", "next_offset"),
    [
        pytest.param(
            [(16, 35), (36, 60)], 20, [(16, 20, 1), (31, 40, 1), (51, 55, 1)], 56, id="gap at the start"
        ),
        pytest.param([(11, 20), (21, 35), (41, 60)], 15, [(11, 20, 1), (31, 35, 1)], 36, id="gap in between"),
    ],
)
def test_exact_acquire_counts_no_gaps(log: Offsets, count: int, expected: Acquired, next_offset: int) -> None:
    """The state has gaps that nobody has settled, and compaction has removed batches of the log."""
    records = window(11, StateBatch(21, 30, ACKNOWLEDGED, 2), StateBatch(41, 50, ARCHIVED, 1))
    assert acquire(records, log, count, is_exact=True) == expected
    assert records.next_fetch_offset() == next_offset


def test_exact_acquire_begins_at_the_moved_start() -> None:
    records = window(5, StateBatch(5, 99, AVAILABLE, 1))
    log = [(0, 99)]
    assert acquire(records, log, 10, is_exact=True) == [(5, 14, 2)]
    settle(records, 5, 14, AcknowledgeType.ACCEPT)
    assert records.start_offset == 15
    assert acquire(records, log, 10, is_exact=True) == [(15, 24, 2)]


def test_members_acquire_in_both_modes() -> None:
    records = window(10)
    log = [(10, 14), (15, 29), (30, 44)]
    assert acquire(records, log, 10) == [(10, 29, 1)]
    settle(records, 10, 14)
    settle(records, 15, 20, AcknowledgeType.ACCEPT)
    settle(records, 21, 22)
    settle(records, 23, 28, AcknowledgeType.ACCEPT)
    assert acquire(records, log, 2, holder=BOB, is_exact=True) == [(10, 11, 2)]
    assert acquire(records, log, 10) == [(12, 14, 2), (21, 22, 2), (30, 44, 1)]
    assert records.next_fetch_offset() == 45


def test_gaps_inside_an_exact_acquire_are_archived_and_released() -> None:
    """Compaction has removed 12, 13, 15 and 17 to 19. The member knows that of offsets that it has read."""
    records = window(5)
    log = [(5, 6), (10, 20)]
    assert acquire(records, log, 2, is_exact=True) == [(5, 6, 1)]
    assert acquire(records, log, 5, is_exact=True) == [(10, 14, 1)]
    gap = 0
    batches = [AcknowledgeBatch(10, 12, [AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT, gap])]
    records.commit(records.acknowledge(ANN, batches, renewed_until_ms=0))
    records.commit(records.release_holders(lambda holder: holder == ANN))
    assert acquire(records, log, 20, is_exact=True) == [(5, 6, 2), (13, 14, 2), (15, 20, 1)]


# -- aborted transactions ------------------------------------------------------------------------------------------


def test_batches_of_aborted_transactions_are_archived() -> None:
    records = window(0)
    log = [(0, 8), (9, 9), (10, 18), (19, 19), (20, 28), (29, 29)]
    assert acquire(records, log, aborted=[(10, 18)]) == [(0, 9, 1), (19, 29, 1)]
    start, finished, _batches = records.to_persist([[]])
    assert (start, finished) == (0, 9)


# -- locks and failed writes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "expected"), [(2, []), (4, [(0, 1, 3)])])
def test_lock_that_ends_during_a_failed_write_counts_then(limit: int, expected: Acquired) -> None:
    """The member has accepted, and the write of that fails after the lock has ended."""
    records = window(0, StateBatch(0, 4, AVAILABLE, 1), limit=limit)
    assert acquire(records, [(0, 4)]) == [(0, 4, 2)]
    change = records.acknowledge(ANN, [AcknowledgeBatch(0, 4, [AcknowledgeType.ACCEPT])], renewed_until_ms=0)
    assert not records.expire(LOCK_MS)
    records.roll_back(change)
    records.commit(records.expire(LOCK_MS))
    assert acquire(records, [(0, 4)]) == expected


def test_failed_write_brings_no_deleted_records_back() -> None:
    records = window(2)
    log = [(2, 6), (7, 11)]
    acquire(records, log)
    changes = [
        records.acknowledge(ANN, [AcknowledgeBatch(first, last, [kind])], renewed_until_ms=0)
        for first, last, kind in ((2, 6, AcknowledgeType.RELEASE), (7, 11, AcknowledgeType.ACCEPT))
    ]
    records.discard_below(7)
    for change in changes:
        records.roll_back(change)
    assert (records.start_offset, records.next_fetch_offset()) == (7, 12)
    records.commit(records.expire(LOCK_MS))
    assert acquire(records, log) == [(7, 11, 2)]


def test_moved_log_start_gives_up_records_that_are_held() -> None:
    records = window(0, limit=2)
    log = [(0, 4), (5, 9)]
    assert acquire(records, log) == [(0, 9, 1)]
    for offset in (1, 3, 5, 7):
        settle(records, offset, offset, AcknowledgeType.ACCEPT)
    records.discard_below(6)
    assert (records.start_offset, records.next_fetch_offset()) == (6, 10)
    records.commit(records.expire(LOCK_MS))
    assert acquire(records, log) == [(6, 6, 2), (8, 9, 2)]


@pytest.mark.parametrize("log_start", [0, 5])
def test_renewed_records_end_at_their_new_time(log_start: int) -> None:
    records = window(0)
    log = [(0, 9)]
    acquire(records, log)
    kinds = [AcknowledgeType.RENEW, AcknowledgeType.ACCEPT] * 5
    change = records.acknowledge(ANN, [AcknowledgeBatch(0, 9, kinds)], renewed_until_ms=3 * LOCK_MS)
    records.commit(change)
    records.discard_below(log_start)
    assert not records.expire(2 * LOCK_MS)
    records.commit(records.expire(3 * LOCK_MS))
    expected = [(each, each, 2) for each in (0, 2, 4, 6, 8) if each >= log_start]
    assert acquire(records, log) == expected


def test_expired_record_cannot_be_renewed() -> None:
    records = window(0)
    acquire(records, [(0, 0)])
    records.commit(records.expire(LOCK_MS))
    renew = [AcknowledgeBatch(0, 0, [AcknowledgeType.RENEW])]
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.INVALID_RECORD_STATE):
        records.acknowledge(ANN, renew, renewed_until_ms=3 * LOCK_MS)


def test_end_of_a_session_releases_only_its_own_records() -> None:
    records = window(5)
    log = [(5, 14)]
    acquire(records, log)
    settle(records, 5, 6, AcknowledgeType.ACCEPT)
    settle(records, 10, 12)
    assert acquire(records, log, holder=BOB) == [(10, 12, 2)]
    records.commit(records.release_holders(lambda holder: holder == ANN))
    assert records.next_fetch_offset() == 7
    assert acquire(records, log, holder=BOB) == [(7, 9, 2), (13, 14, 2)]
