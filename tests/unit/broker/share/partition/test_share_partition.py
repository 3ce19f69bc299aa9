"""A share partition: how it begins, and how its changes are persisted, over a real log in a real Handler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.share.partition import share_partitions
from kproc.broker.share.partition.messages import (
    OPENS_LATER,
    AcknowledgeBatch,
    ShareHolder,
)
from kproc.broker.share.state.messages import PersistedState, RecordState, StateBatch, state_key
from kproc.common.errors import ErrorCode
from tests.support.handler_rig import HandlerRig
from tests.support.logs import batch
from tests.support.share_partition_rig import ShareOwner, all_of

ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 1)


# -- begin ---------------------------------------------------------------------------------------------------


def test_first_acquire_reads_state_and_persists_start(owner: ShareOwner) -> None:
    owner.produce(3)
    owner.states.holds = True
    (part,) = owner.acquire(ANN) or []
    assert part.error == OPENS_LATER
    watch = owner.watch()
    owner.states.release()
    assert watch == []
    owner.rig.settle()
    owner.states.release()
    owner.rig.settle()
    assert len(watch) == 1
    assert owner.state.start_offset == 0
    owner.states.holds = False
    assert owner.offsets(ANN) == [(0, 2, 1)]


@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", 0), ("latest", 2), ("by_duration:PT10S", 1), ("by_duration:PT1S", 2)]
)
def test_new_group_begins_by_its_auto_offset_reset(
    start: Callable[..., HandlerRig], reset: str, first: int
) -> None:
    owner = ShareOwner(start(), earliest=False)
    owner.configure(share_auto_offset_reset=reset)
    now_ms = owner.rig.clock.wall_ms()
    owned = owner.rig.open("t")
    for age_ms in (60_000, 5_000):
        owned.log.append([batch(b"v", timestamp=now_ms - age_ms)])
    owned.after_append()
    owner.load(ANN)
    owner.produce(1)
    assert owner.offsets(ANN) == [(first, 2, 1)]


def test_state_of_a_former_owner_is_continued(owner: ShareOwner) -> None:
    owner.produce(10)
    batches = (
        StateBatch(3, 4, RecordState.ACKNOWLEDGED, 1),
        StateBatch(5, 5, RecordState.AVAILABLE, 2),
        StateBatch(7, 7, RecordState.ACKNOWLEDGED, 1),
    )
    name = state_key("g", owner.topic_id, 0)
    owner.states.states[name] = PersistedState(4, 0, 2, 3, batches)
    owner.load(ANN)
    assert owner.offsets(ANN) == [(2, 2, 1), (5, 5, 3), (6, 6, 1), (8, 9, 1)]


def test_states_behind_the_end_of_the_log_are_discarded(owner: ShareOwner) -> None:
    """A power loss can take records of acks=1 that were delivered. Other records get their offsets."""
    owner.produce(2)
    name = state_key("g", owner.topic_id, 0)
    batches = (StateBatch(1, 5, RecordState.AVAILABLE, 4),)
    owner.states.states[name] = PersistedState(0, 0, 1, 0, batches)
    owner.load(ANN)
    owner.produce(2)
    assert owner.offsets(ANN, records_max=1) == [(1, 1, 5)]
    assert owner.offsets(ANN) == [(2, 3, 1)]


def test_start_behind_the_end_of_the_log_moves_back(owner: ShareOwner) -> None:
    owner.produce(2)
    owner.states.states[state_key("g", owner.topic_id, 0)] = PersistedState(0, 0, 9)
    owner.load(ANN)
    owner.produce(1)
    assert owner.offsets(ANN) == [(2, 2, 1)]


@pytest.mark.parametrize(
    ("start_offset", "batches"),
    [(9, ()), (1, (StateBatch(1, 5, RecordState.ACKNOWLEDGED, 2), StateBatch(6, 8, RecordState.AVAILABLE, 1)))],
)
def test_new_records_at_lost_offsets_survive_a_reload(
    owner: ShareOwner, start_offset: int, batches: tuple[StateBatch, ...]
) -> None:
    """The start offset and the states of lost records must not apply to the records that got their offsets."""
    owner.produce(2)
    owner.states.states[state_key("g", owner.topic_id, 0)] = PersistedState(0, 0, start_offset, 0, batches)
    owner.load(ANN)
    owner.produce(2)
    assert owner.offsets(ANN) == [(2, 3, 1)]
    # Nobody uses the share partition any more, so it leaves the memory.
    owner.release(ANN)
    owner.load(BOB)
    assert owner.offsets(BOB) == [(2, 3, 2)]
    owner.acknowledge(BOB, all_of(2, 2))
    owner.release(BOB)
    owner.load(ANN)
    assert owner.offsets(ANN) == [(3, 3, 3)]


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_appends_do_not_hide_lost_records(owner: ShareOwner, error: ErrorCode) -> None:
    """Records are written while the state is read, and after the write that replaces the state has failed."""
    owner.produce(2)
    owner.states.states[state_key("g", owner.topic_id, 0)] = PersistedState(0, 0, 9, 0, ())
    owner.states.holds = True
    owner.load(ANN)
    owner.produce(5)
    owner.states.holds = False
    owner.states.errors = [0, int(error)]
    owner.states.release()
    owner.rig.settle()
    owner.produce(5)
    owner.rig.advance_ms(1_100)
    owner.rig.settle()
    assert owner.offsets(ANN) == [(2, 11, 1)]
    assert [write.replaces for write in owner.states.writes][:1] == [True]


def test_read_error_is_answered_and_read_again_later(owner: ShareOwner) -> None:
    owner.produce(1)
    owner.states.errors = [int(ErrorCode.UNKNOWN_SERVER_ERROR)]
    owner.load(ANN)
    (part,) = owner.acquire(ANN) or []
    assert part.error == ErrorCode.UNKNOWN_SERVER_ERROR
    owner.rig.advance_ms(1_100)
    owner.load(ANN)
    assert owner.offsets(ANN) == [(0, 0, 1)]


def test_first_offset_error_is_answered_unchanged(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka also passes on the error of its look-up, after which clients try again."""

    def fail(_services: object, _name: str, _parts: object, on_done: Callable[[list[dict[str, int]]], None]) -> None:
        on_done([{"error_code": int(ErrorCode.OFFSET_NOT_AVAILABLE), "offset": -1}])

    monkeypatch.setattr(share_partitions, "gather", fail)
    owner.load(ANN)
    (part,) = owner.acquire(ANN) or []
    assert part.error == ErrorCode.OFFSET_NOT_AVAILABLE


def test_missing_state_is_read_again_while_its_group_loads(owner: ShareOwner) -> None:
    """The group's coordinator is not available: __consumer_offsets does not exist here."""
    owner.produce(1)
    owner.states.errors = [int(ErrorCode.INVALID_REQUEST)]
    owner.load(ANN)
    assert owner.offsets(ANN) == [(0, 0, 1)]


def test_missing_state_is_an_error_if_its_group_never_loads(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_partitions, "RETRIES_NS", 0)
    owner.states.errors = [int(ErrorCode.INVALID_REQUEST)]
    owner.load(ANN)
    (part,) = owner.acquire(ANN) or []
    assert part.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


# -- acknowledge ---------------------------------------------------------------------------------------------


def test_acknowledgements_are_answered_when_they_are_persisted(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(4)
    owner.offsets(ANN)
    owner.states.holds = True
    assert owner.acknowledge(ANN, all_of(0, 1)) is None
    again = owner.acknowledge(ANN, all_of(1, 1))
    assert again is not None
    assert again.error == ErrorCode.INVALID_RECORD_STATE
    owner.states.release()
    owner.rig.settle()
    assert owner.state.start_offset == 2


def test_changes_that_come_during_a_write_are_one_write(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(10)
    owner.offsets(ANN)
    owner.states.holds = True
    for offset in range(10):
        owner.acknowledge(ANN, all_of(offset, offset))
    assert len(owner.states.held) == 1
    owner.states.release()
    owner.rig.settle()
    assert len(owner.states.held) == 1
    owner.states.release()
    assert owner.state.start_offset == 10
    assert [write.batches for write in owner.states.writes[1:]] == [(), ()]


def test_failed_write_is_rolled_back(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.states.errors = [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    result = owner.acknowledge(ANN, all_of(0, 1))
    assert result is not None
    assert result.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    result = owner.acknowledge(ANN, all_of(0, 1))
    assert result is not None
    assert result.error == 0


def test_fenced_write_reads_the_state_again(owner: ShareOwner) -> None:
    """AlterShareGroupOffsets has moved the start to 1."""
    owner.load(ANN)
    owner.produce(3)
    owner.offsets(ANN)
    owner.states.states[state_key("g", owner.topic_id, 0)] = PersistedState(1, 0, 1)
    result = owner.acknowledge(ANN, all_of(0, 2))
    assert result is not None
    assert result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    owner.load(ANN)
    assert owner.offsets(ANN) == [(1, 2, 1)]


def test_only_the_session_that_holds_a_record_acknowledges_it(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(3)
    owner.offsets(ANN)
    for stranger in (BOB, ShareHolder("g", "ann", 3, 0)):
        result = owner.acknowledge(stranger, all_of(0, 0))
        assert result is not None
        assert result.error == ErrorCode.INVALID_RECORD_STATE


def test_unknown_share_partition_has_no_records_to_acknowledge(owner: ShareOwner) -> None:
    """Kafka answers so for a share partition that it has not loaded, or could not."""
    result = owner.acknowledge(ANN, all_of(0, 0))
    assert result is not None
    assert result.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(owner.shares) == 0


@pytest.mark.parametrize(
    "batches",
    [
        [AcknowledgeBatch(0, 1, [1]), AcknowledgeBatch(1, 2, [1])],
        [AcknowledgeBatch(2, 3, [1])],
    ],
)
def test_invalid_acknowledgements_change_nothing(owner: ShareOwner, batches: list[AcknowledgeBatch]) -> None:
    owner.load(ANN)
    owner.produce(3)
    owner.offsets(ANN)
    result = owner.acknowledge(ANN, *batches)
    assert result is not None
    assert result.error == ErrorCode.INVALID_REQUEST
    good = owner.acknowledge(ANN, all_of(0, 2))
    assert good is not None
    assert good.error == 0


def test_records_are_acquired_while_acknowledgements_wait(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.produce(2)
    owner.states.holds = True
    assert owner.acknowledge(ANN, all_of(0, 1)) is None
    assert owner.offsets(ANN) == [(2, 3, 1)]
    owner.states.release()
    assert owner.offsets(BOB) == []
