"""Idempotent producers: Kafka's rules as a table."""

from __future__ import annotations

import pytest

from kproc.broker.storage.producer_state import SEQUENCE_MAX, ProducerTable
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test

PID = 77


def take(table: ProducerTable, epoch: int, first: int, count: int = 1, *, offset: int = 0) -> str:
    """What happens to one batch of a client, which is recorded if it is new."""
    last = (first + count - 1) & SEQUENCE_MAX
    try:
        mark = table.admit(PID, epoch, first, last, transactional=False)
    except KafkaError as error:
        return error.code.name
    if mark is not None:
        return f"duplicate of {mark[1] - mark[2]}..{mark[1]}"
    table.record(PID, epoch, (last, offset + count - 1, count - 1, 1000), transactional=False, heard_ms=0)
    return "new"


# (epoch, first sequence, count) -> outcome, in order; offsets go up by 100 with each batch.
STORIES = {
    "in order": [((0, 0, 3), "new"), ((0, 3, 1), "new"), ((0, 4, 2), "new")],
    "an unknown producer may begin anywhere": [((3, 41, 1), "new"), ((3, 42, 1), "new")],
    "without an epoch any number will do": [
        ((-1, 0, 1), "new"), ((-1, 0, 1), "duplicate of 0..0"), ((-1, 0, 2), "new"), ((-1, 7, 1), "new"),
    ],
    "the first epoch of one without any may begin anywhere": [((-1, 0, 1), "new"), ((0, 41, 1), "new")],
    "a gap": [((0, 0, 1), "new"), ((0, 2, 1), "OUT_OF_ORDER_SEQUENCE_NUMBER"), ((0, 1, 1), "new")],
    "a duplicate": [((0, 0, 3), "new"), ((0, 0, 3), "duplicate of 0..2")],
    "the fifth last is known": [
        *[((0, n, 1), "new") for n in range(5)],
        ((0, 0, 1), "duplicate of 0..0"), ((0, 4, 1), "duplicate of 400..400"),
    ],
    "the sixth last is not": [
        *[((0, n, 1), "new") for n in range(6)], ((0, 0, 1), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ],
    "a part of a batch is no duplicate": [((0, 0, 3), "new"), ((0, 0, 2), "OUT_OF_ORDER_SEQUENCE_NUMBER")],
    "the sequence wraps": [
        ((0, SEQUENCE_MAX - 1, 1), "new"), ((0, SEQUENCE_MAX, 1), "new"), ((0, 0, 1), "new"),
    ],
    "a batch over the wrap": [
        ((0, SEQUENCE_MAX - 1, 4), "new"), ((0, SEQUENCE_MAX - 1, 4), "duplicate of 0..3"),
        ((0, 2, 1), "new"),
    ],
    "an older epoch": [((5, 0, 1), "new"), ((4, 1, 1), "INVALID_PRODUCER_EPOCH")],
    "a new epoch begins at 0": [
        ((5, 0, 1), "new"), ((6, 1, 1), "OUT_OF_ORDER_SEQUENCE_NUMBER"), ((6, 0, 1), "new"),
    ],
    "a new epoch has no old duplicates": [
        ((5, 0, 1), "new"), ((6, 0, 1), "new"), ((6, 0, 1), "duplicate of 100..100"),
    ],
}  # fmt: skip


@in_one_test("name", STORIES)
def test_sequence(name: str) -> None:
    table = ProducerTable()
    outcomes = [take(table, *sent, offset=100 * n) for n, (sent, _) in enumerate(STORIES[name])]
    assert outcomes == [expected for _, expected in STORIES[name]]


def test_restore_puts_back_what_a_failed_append_changed() -> None:
    table = ProducerTable()
    take(table, 0, 0)
    before = table.get(PID)
    table.record(PID, 0, (1, 1, 0, 5), transactional=True, heard_ms=5)
    assert table.first_open_offset == 1
    table.restore(PID, before)
    assert (table.get(PID), table.first_open_offset) == (before, None)
    table.restore(PID, None)
    assert len(table) == 0


def test_marker_ends_transaction_and_names_aborted_range() -> None:
    table = ProducerTable()
    table.record(1, 0, (0, 10, 0, 5), transactional=True, heard_ms=5)
    table.record(2, 0, (0, 12, 0, 5), transactional=True, heard_ms=5)
    assert table.first_open_offset == 10
    aborted = table.record_marker(1, 0, 3, offset=15, timestamp=9, is_abort=True)
    assert aborted == (1, 10, 15, 12)
    assert table.first_open_offset == 12
    assert table.record_marker(2, 0, 3, offset=16, timestamp=9, is_abort=False) is None
    assert table.first_open_offset is None
    assert table.record_marker(2, 0, 3, offset=17, timestamp=9, is_abort=True) is None  # Nothing was open.


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "code"),
    [
        (4, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (5, 3, None),
        (6, 9, None),
    ],
)
def test_a_marker_of_the_past_is_refused(epoch: int, coordinator_epoch: int, code: ErrorCode | None) -> None:
    table = ProducerTable()
    table.record_marker(1, 5, 3, offset=1, timestamp=1, is_abort=False)
    if code is None:
        table.check_epoch(1, epoch, coordinator_epoch)
        return
    with pytest.raises(KafkaError) as caught:
        table.check_epoch(1, epoch, coordinator_epoch)
    assert caught.value.code == code


def test_a_marker_of_a_new_epoch_asks_for_sequence_0() -> None:
    table = ProducerTable()
    take(table, 0, 0)
    table.record_marker(PID, 1, 0, offset=1, timestamp=1, is_abort=False)
    assert take(table, 1, 1) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert take(table, 1, 0) == "new"


def test_idle_producers_expire_unless_in_transaction() -> None:
    table = ProducerTable()
    table.record(1, 0, (0, 0, 0, 9999), transactional=False, heard_ms=1000)
    table.record(2, 0, (0, 1, 0, 0), transactional=False, heard_ms=1001)
    table.record(3, 0, (0, 2, 0, 0), transactional=True, heard_ms=0)
    assert table.expire(2000, 1000) == 1
    assert [entry.producer_id for entry in table.entries()] == [2, 3]


def test_an_export_keeps_all_five_batches() -> None:
    table = ProducerTable()
    for sequence in range(8):
        take(table, 0, sequence, offset=sequence)
    copy = ProducerTable.from_export(table.export(), 8)
    assert copy.entries() == table.entries()
    assert take(copy, 0, 3) == "duplicate of 3..3"
