"""CleanedTransactions: compaction of aborted, committed and open transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.validate import COORDINATOR
from kproc.wire.record_batch import HAS_DELETE_HORIZON, TRANSACTIONAL
from kproc.wire.transaction_marker import ControlType, encode_end_transaction
from tests.support.compacted_log import ClosingRig, batches_of, contents, keyed
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, LogRig, append_one

DAY_MS = 86_400_000
COMPACT = frozenset({"compact"})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    config = LogConfig(segment_bytes=300, cleanup_policy=COMPACT, index_interval_bytes=100)
    with ExitStack() as stack:
        yield ClosingRig(tmp_path / "t-0", config=config, stack=stack)


def roll(log: Log) -> None:
    """Seal what is there: the active segment is never compacted."""
    log.state.roll(log.state.end_offset, NOW_MS)


# -- transactions


def marker(outcome: ControlType, producer_id: int = 9, epoch: int = 0) -> memoryview:
    return memoryview(
        encode_end_transaction(
            outcome,
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
        )
    )


def in_transaction(sequence: int, *pairs: tuple[str, str | None], producer_id: int = 9) -> memoryview:
    return keyed(
        *pairs, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, flags=TRANSACTIONAL
    )


def end(log: Log, outcome: ControlType, producer_id: int = 9) -> None:
    append_one(log, marker(outcome, producer_id), origin=COORDINATOR)


def test_aborted_records_go_and_count_for_nothing(rig: LogRig) -> None:
    rig.config = LogConfig(cleanup_policy=COMPACT)
    log = rig.open()
    append_one(log, keyed(("a", "kept")))
    append_one(log, in_transaction(0, ("a", "aborted"), ("b", "aborted")))
    end(log, ControlType.ABORT)
    append_one(log, in_transaction(2, ("c", "committed")))
    end(log, ControlType.COMMIT)
    append_one(log, keyed(("d", "1")))
    roll(log)
    done = compact(rig, log)
    kept = [(h.base_offset, h.is_control, h.record_count) for h in batches_of(log)]
    assert kept == [(0, False, 1), (3, True, 1), (4, False, 1), (5, True, 1), (6, False, 1)]
    assert len(log.reader.aborted_transactions(0, 7)) == 1, "the marker is there, so readers are told of it"
    # The next pass finds nothing of it any more: the marker gets its horizon, and goes after that.
    append_one(log, keyed(("e", "1")))
    roll(log)
    done = compact(rig, log, checkpoint=done.end_offset)
    abort = next(h for h in batches_of(log) if h.base_offset == 3)
    assert abort.attributes & HAS_DELETE_HORIZON
    assert abort.base_timestamp == NOW_MS + DAY_MS
    assert log.reader.aborted_transactions(0, 7) == []
    rig.clock.advance_ms(DAY_MS)
    append_one(log, keyed(("f", "1")))
    roll(log)
    compact(rig, log, checkpoint=done.end_offset)
    assert [h.base_offset for h in batches_of(log)] == [0, 4, 5, 6, 7, 8]


def test_a_commit_marker_goes_when_all_of_its_transaction_has(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, in_transaction(0, ("a", "1")))
    end(log, ControlType.COMMIT)
    append_one(log, in_transaction(1, ("b", "1")))
    end(log, ControlType.COMMIT)
    append_one(log, keyed(("a", "2")))
    roll(log)
    done = compact(rig, log)
    assert [(h.base_offset, h.is_control) for h in batches_of(log)] == [
        (1, True),
        (2, False),
        (3, True),
        (4, False),
    ]
    rig.clock.advance_ms(DAY_MS)
    for _ in range(2):
        append_one(log, keyed(("a", "2")))
        roll(log)
        done = compact(rig, log, checkpoint=done.end_offset)
        rig.clock.advance_ms(DAY_MS)
    assert [h.base_offset for h in batches_of(log)][:2] == [2, 3]


def test_an_open_transaction_is_not_touched(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    append_one(log, keyed(("a", "2")))
    roll(log)
    append_one(log, in_transaction(0, ("a", "3")))
    roll(log)
    append_one(log, keyed(("a", "4")))
    roll(log)
    assert compact(rig, log).end_offset == 2
    assert [offset for offset, _, _ in contents(log)] == [1, 2, 3]


def test_abort_before_dirty_section_affects_no_later_ones(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, in_transaction(0, ("a", "aborted")))
    end(log, ControlType.ABORT)
    roll(log)
    done = compact(rig, log)
    append_one(log, in_transaction(1, ("a", "1"), ("b", "1")))
    end(log, ControlType.COMMIT)
    append_one(log, in_transaction(3, ("a", "2")))
    end(log, ControlType.COMMIT)
    roll(log)
    compact(rig, log, checkpoint=done.end_offset)
    assert [(k, v) for _, k, v in contents(log) if v in (b"1", b"2", b"aborted")] == [
        (b"b", b"1"),
        (b"a", b"2"),
    ]
