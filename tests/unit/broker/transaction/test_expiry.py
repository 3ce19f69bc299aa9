"""expiry.py: transactions whose timeout is over, and unused transactional ids."""

from __future__ import annotations

from kproc.broker.transaction.records import decode_record, encode_key
from kproc.common.errors import ErrorCode
from tests.support.coordinators import run_steps
from tests.support.transaction_rig import ABORT, NAME, TIMEOUT_MS, CoordinatorRig

NONE = int(ErrorCode.NONE)


def sweep(rig: CoordinatorRig) -> None:
    rig.coordinator.start_sweep()
    run_steps(rig.coordinator)


def test_timed_out_transaction_is_aborted_with_raised_epoch() -> None:
    for version, code in ((1, ErrorCode.PRODUCER_FENCED), (2, NONE)):
        rig = CoordinatorRig(version=version)
        producer = rig.ongoing(version=version)
        rig.pass_ms(TIMEOUT_MS)
        assert rig.word == "Ongoing"
        rig.pass_ms(10_000)
        assert {marker.epoch for _, marker in rig.take_markers()} == {1}
        rig.pass_ms(100_000)
        assert (rig.word, rig.state().epoch) == ("CompleteAbort", 1)
        # A producer of the newer kind lives on.
        assert [each.error_code for each in rig.end(producer, ABORT, version=version)] == [code]
        assert not rig.sent


def test_timeout_ends_transaction_after_clock_was_set_back() -> None:
    rig = CoordinatorRig()
    rig.ongoing()
    rig.clock.set_wall_ms(rig.clock.wall_ms() - 3_600_000)
    rig.pass_ms(TIMEOUT_MS)
    assert rig.word == "Ongoing"
    rig.pass_ms(10_000)
    assert rig.word == "PrepareAbort"


def test_a_failed_abort_after_the_timeout_raises_the_epoch_once() -> None:
    for version in (1, 2):
        rig = CoordinatorRig(version=version)
        rig.ongoing(version=version)
        rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
        rig.pass_ms(TIMEOUT_MS + 30_000)
        rig.log.error = ErrorCode.NONE
        rig.pass_ms(10_000)
        assert (rig.word, rig.state().epoch) == ("PrepareAbort", 1)


def test_transaction_timed_out_while_unloaded_is_aborted_once() -> None:
    rig = CoordinatorRig()
    rig.ongoing()
    rig.clock.advance_ms(TIMEOUT_MS * 2)
    rig.restart(rig.log.records)
    rig.pass_ms(10_000)
    rig.restart(rig.log.records)
    rig.take_markers()
    rig.pass_ms(60_000)
    states = [decode_record(key, value)[1] for key, value in rig.log.records]
    words = [each.state.word for each in states if each is not None]
    assert words == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]
    assert rig.state().epoch == 1


def test_unused_ids_are_forgotten_and_ongoing_ones_never() -> None:
    rig = CoordinatorRig(transactional_id_expiration_ms=1_000, transaction_max_timeout_ms=10_000_000)
    rig.producer()
    other = rig.init(name="other", timeout_ms=10_000_000)[0]
    rig.add(other, name="other")
    rig.clock.advance_ms(999)
    sweep(rig)
    assert len(list(rig.coordinator.overviews())) == 2
    rig.clock.advance_ms(1)
    sweep(rig)
    assert [each.transactional_id for each in rig.coordinator.overviews()] == ["other"]
    assert rig.log.records[-1] == (encode_key(NAME), None)
    # Its next producer has a new id.
    assert rig.producer().producer_id not in (other.producer_id, other.producer_id - 1)


def test_an_id_whose_tombstone_could_not_be_written_is_kept() -> None:
    rig = CoordinatorRig(transactional_id_expiration_ms=1_000)
    producer = rig.producer()
    rig.clock.advance_ms(1_000)
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    sweep(rig)
    rig.log.error = ErrorCode.NONE
    assert rig.add(producer) == [NONE]
