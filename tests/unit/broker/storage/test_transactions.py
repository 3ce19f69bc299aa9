"""Transactions in one log: which batches begin one, and which markers end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kproc.broker.storage.log import AppendResult, Log, LogConfig
from kproc.broker.storage.producer_state import EPOCH_MAX, ProducerTable, Verification
from kproc.broker.storage.validate import TRANSACTION
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all, sequenced

PID = 9
VERIFIED = LogConfig(takes_transactions=False, verifies_transactions=True)
IN_ORDER, NEW_EPOCH = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", VERIFIED)


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    log = rig.open()
    yield log
    log.close()


def begin(log: Log, sequence: int = 0, *, epoch: int = 0, owns_epoch: bool = True) -> Verification:
    return log.state.producers.start_verification(PID, epoch, sequence, owns_epoch=owns_epoch, now_ms=NOW_MS)


def send(log: Log, sequence: int = 0, *, epoch: int = 0, guard: Verification | None = None) -> int:
    """One record of the producer's transaction; the error code. With a guard, as its coordinator has confirmed it."""
    if guard is not None:
        guard.is_confirmed = True
    code = append_one(
        log, sequenced(PID, sequence, epoch=epoch, flags=TRANSACTIONAL), origin=TRANSACTION
    ).error_code
    if guard is not None:
        guard.is_confirmed = False
        if not code:
            log.state.producers.finish_verification(PID)
    return code


def end(
    log: Log, epoch: int = 0, *, coordinator_epoch: int = 0, is_commit: bool = True, version: int = 0
) -> AppendResult:
    return log.appender.append_marker(
        PID, epoch, coordinator_epoch, is_commit=is_commit, transaction_version=version
    )


def test_transaction_begins_only_when_coordinator_confirmed(log: Log) -> None:
    assert send(log) == ErrorCode.INVALID_TXN_STATE
    guard = begin(log)
    assert send(log) == ErrorCode.INVALID_TXN_STATE
    assert send(log, guard=guard) == ErrorCode.NONE
    assert send(log, 1) == ErrorCode.NONE  # It is open now.
    assert log.state.last_stable_offset == 0


def test_new_epoch_does_not_continue_old_transaction(log: Log) -> None:
    assert send(log, guard=begin(log)) == ErrorCode.NONE
    assert send(log, epoch=1) == ErrorCode.INVALID_TXN_STATE
    assert send(log, epoch=1, guard=begin(log, epoch=1)) == ErrorCode.NONE


def test_without_verification_the_first_batch_begins_it(rig: LogRig) -> None:
    rig.config = LogConfig(takes_transactions=False)
    log = rig.open()
    assert send(log) == ErrorCode.NONE
    log.close()


def test_non_transactional_batch_in_open_transaction_is_rejected(log: Log) -> None:
    assert send(log, guard=begin(log)) == ErrorCode.NONE
    nameless = append_one(log, sequenced(PID, 1, flags=TRANSACTIONAL))
    assert nameless.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_marker_ends_guard_so_late_confirmation_is_void(log: Log) -> None:
    guard = begin(log, owns_epoch=False)
    assert end(log).error_code == ErrorCode.NONE
    assert not log.state.producers.is_verifying(PID, guard)
    assert send(log, guard=guard) == ErrorCode.INVALID_TXN_STATE
    again = begin(log)
    assert again is not guard
    assert send(log, guard=guard) == ErrorCode.INVALID_TXN_STATE
    assert send(log, guard=again) == ErrorCode.NONE


def test_marker_without_room_ends_no_guard(rig: LogRig) -> None:
    """A failed write takes back all of its effect: the batch that waits for its coordinator may still begin."""
    rig.fs = fs = FailingFs()
    log = rig.open()
    guard = begin(log, owns_epoch=False)
    fs.fail_write()
    assert end(log).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.state.producers.is_verifying(PID, guard)
    assert send(log, guard=guard) == ErrorCode.NONE
    log.close()


def test_late_marker_keeps_guard_of_next_own_epoch(
    log: Log,
) -> None:
    assert send(log, guard=begin(log)) == ErrorCode.NONE
    guard = begin(log, epoch=1)
    assert end(log, 1, version=2).error_code == ErrorCode.NONE
    assert send(log, epoch=1, guard=guard) == ErrorCode.NONE
    guard = begin(log, epoch=2)
    assert end(log, 3, version=2).error_code == ErrorCode.NONE
    assert not log.state.producers.is_verifying(PID, guard)
    assert send(log, epoch=2, guard=guard) == NEW_EPOCH


def test_a_guard_is_forgotten_like_an_idle_producer(log: Log) -> None:
    guard = begin(log)
    log.state.expire_producers(NOW_MS + log.state.config.producer_id_expiration_ms - 1)
    assert log.state.producers.is_verifying(PID, guard)
    log.state.expire_producers(NOW_MS + log.state.config.producer_id_expiration_ms)
    assert not log.state.producers.is_verifying(PID, guard)


def test_a_guard_is_no_part_of_what_the_next_owner_gets(log: Log) -> None:
    begin(log)
    assert log.export_state()["producers"] == []


def test_older_epoch_precedes_missing_transaction_error(log: Log) -> None:
    assert end(log, 5).error_code == ErrorCode.NONE
    assert send(log, epoch=4) == NEW_EPOCH
    assert send(log, epoch=5) == ErrorCode.INVALID_TXN_STATE


def test_a_batch_of_a_transaction_that_has_ended_is_still_known(log: Log) -> None:
    assert send(log, guard=begin(log)) == ErrorCode.NONE
    end(log)
    again = append_one(log, sequenced(PID, 0, flags=TRANSACTIONAL), origin=TRANSACTION)
    assert (again.error_code, again.base_offset, again.is_duplicate) == (ErrorCode.NONE, 0, True)


def test_batch_behind_failed_one_does_not_precede_it(log: Log) -> None:
    """Producers do not raise the epoch here, so nothing else is known of the sequence."""
    begin(log, 4, owns_epoch=False)
    begin(log, 3, owns_epoch=False)
    guard = begin(log, 4, owns_epoch=False)
    assert send(log, 4, guard=guard) == IN_ORDER
    assert send(log, 3, guard=guard) == ErrorCode.NONE


def test_a_transaction_with_an_epoch_of_its_own_begins_at_0(log: Log) -> None:
    assert send(log, 1, guard=begin(log, 1)) == IN_ORDER
    assert send(log, 0, guard=begin(log, 0)) == ErrorCode.NONE
    assert end(log, 1, version=2).error_code == ErrorCode.NONE
    guard = begin(log, 1, epoch=1)
    assert send(log, 1, epoch=1, guard=guard) == IN_ORDER  # The marker has left no batch of this epoch.


def test_a_new_epoch_forgets_the_lowest_sequence_of_the_old_one(log: Log) -> None:
    begin(log, 0, owns_epoch=False)
    guard = begin(log, 7, epoch=1, owns_epoch=False)
    assert (guard.epoch, guard.lowest_sequence) == (1, 7)
    begin(log, 3, epoch=0, owns_epoch=False)
    assert (guard.epoch, guard.lowest_sequence) == (1, 7)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("epoch", [4, 5, 6, EPOCH_MAX])
@pytest.mark.parametrize("known", [5, EPOCH_MAX])
def test_which_epochs_end_a_transaction(
    log: Log, version: int, is_open: bool, epoch: int, known: int
) -> None:
    """The strict rule is that of KIP-1228: a late marker of the transaction before has the epoch of this one."""
    if is_open:
        assert send(log, epoch=known, guard=begin(log, epoch=known)) == ErrorCode.NONE
    else:
        assert end(log, known).error_code == ErrorCode.NONE
    is_strict = version == 2 and is_open and known != EPOCH_MAX
    expected = ErrorCode.NONE if epoch > known or (epoch == known and not is_strict) else NEW_EPOCH
    result = end(log, epoch, version=version)
    assert result.error_code == expected
    assert bool(log.state.producers.first_open_offset is not None) == (is_open and expected != ErrorCode.NONE)


def test_an_older_coordinator_ends_nothing(log: Log) -> None:
    assert send(log, guard=begin(log)) == ErrorCode.NONE
    assert end(log, 1, coordinator_epoch=3, version=2).error_code == ErrorCode.NONE
    assert send(log, epoch=1, guard=begin(log, epoch=1)) == ErrorCode.NONE
    late = end(log, 2, coordinator_epoch=2, version=2)
    assert late.error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.state.last_stable_offset == 2


def test_markers_survive_a_crash(rig: LogRig) -> None:
    log = rig.open()
    send(log, guard=begin(log))
    append_one(log, batch("between"))
    end(log, 1, coordinator_epoch=7, is_commit=False, version=2)
    send(log, epoch=1, guard=begin(log, epoch=1))
    before, aborted = log.state.producers.entries(), log.reader.aborted_transactions(0, 4)
    log.close(clean=False)
    log = rig.open()
    (entry,) = log.state.producers.entries()
    assert [replace(entry, last_timestamp=NOW_MS)] == before  # Heard at the time of the file.
    assert log.reader.aborted_transactions(0, 4) == aborted
    assert len(aborted) == 1
    assert log.state.last_stable_offset == 3
    assert [value for _, value in read_all(log)][1] == b"between"
    log.close()


def test_replayed_markers_leave_no_guard() -> None:
    table = ProducerTable()
    guard = table.start_verification(PID, 0, 0, owns_epoch=True, now_ms=0)
    table.record_marker(PID, 1, 0, offset=1, timestamp=1, is_abort=True)
    assert not table.is_verifying(PID, guard)


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_without_space_ends_nothing_and_is_resendable(rig: LogRig, *, is_commit: bool) -> None:
    rig.fs = fs = FailingFs()
    log = rig.open()
    assert send(log, guard=begin(log)) == ErrorCode.NONE
    before = log.state.producers.entries()
    fs.fail_write(after_bytes=10)
    assert end(log, 1, is_commit=is_commit, version=2).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.state.producers.entries(), log.state.last_stable_offset, log.state.end_offset) == (
        before,
        0,
        1,
    )
    assert not log.state.is_offline
    fs.heal()
    assert end(log, 1, is_commit=is_commit, version=2).error_code == ErrorCode.NONE
    assert (log.state.last_stable_offset, len(log.reader.aborted_transactions(0, 2))) == (2, not is_commit)
    log.close()
