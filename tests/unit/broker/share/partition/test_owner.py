"""Calls to the owner of share partitions: acquire, acknowledge, watch, release, over a real log in a real Handler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.share.partition import share_partitions
from kproc.broker.share.partition.messages import (
    OPENS_LATER,
    AcknowledgeBatch,
    AcknowledgeParts,
    AcknowledgeType,
    PartsAcknowledged,
    ShareHolder,
)
from kproc.broker.share.partition.owner import acknowledge_for_home
from kproc.broker.share.partition.share_partitions import IDLE_MS
from kproc.broker.share.state.messages import PersistedState, RecordState, StateBatch, state_key
from kproc.broker.storage.validate import CONFIRMED
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.logs import append_one, batch, sequenced
from tests.support.share_partition_rig import ShareOwner

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 1)
LOCK_MS = 30_000


@pytest.fixture
def owner(start: Callable[..., HandlerRig]) -> ShareOwner:
    return ShareOwner(start())


def all_of(first: int, last: int, kind: int = ACCEPT) -> AcknowledgeBatch:
    return AcknowledgeBatch(first, last, [kind])


# -- begin -----------------------------------------------------------------------------------------------------


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


def test_read_error_is_answered_and_read_again_later(owner: ShareOwner) -> None:
    owner.produce(1)
    owner.states.errors = [int(ErrorCode.UNKNOWN_SERVER_ERROR)]
    owner.load(ANN)
    (part,) = owner.acquire(ANN) or []
    assert part.error == ErrorCode.UNKNOWN_SERVER_ERROR
    owner.rig.advance_ms(1_100)
    owner.load(ANN)
    assert owner.offsets(ANN) == [(0, 0, 1)]


# -- acquire ---------------------------------------------------------------------------------------------------


def test_records_leave_as_ranges_of_whole_batches(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(3, 3, 3)
    (part,) = owner.acquire(ANN, records_max=4) or []
    assert [(each.first, each.last) for each in part.acquired] == [(0, 5)]
    log = owner.rig.open("t").log
    (whole,) = log.read(0, 1 << 20).ranges
    (sent,) = part.ranges
    assert (sent.path, sent.position, sent.length) == (whole.path, 0, whole.length // 3 * 2)
    assert part.bytes == sent.length


def test_record_limit_mode_acquires_exactly(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(5, 5)
    assert owner.offsets(ANN, records_max=7, is_exact=True) == [(0, 6, 1)]
    assert owner.offsets(BOB, records_max=7, is_exact=True) == [(7, 9, 1)]


def test_batch_size_divides_at_ends_of_batches(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2, 2, 2, 2)
    assert owner.offsets(ANN, batch_size=3) == [(0, 3, 1), (4, 7, 1)]


def test_limit_of_bytes_allows_the_first_batch(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(1, 1, value=b"x" * 500)
    assert owner.offsets(ANN, bytes_max=1, can_exceed=False) == []
    assert owner.offsets(ANN, bytes_max=1) == [(0, 0, 1)]


def test_parts_of_a_call_share_its_limits(owner: ShareOwner) -> None:
    parts = [owner.part(), owner.part(index=1)]
    owner.acquire(ANN, *parts)
    owner.produce(3)
    owner.produce(3, index=1)
    found = owner.acquire(ANN, *parts, records_max=4) or []
    assert [part.record_count for part in found] == [3, 3]
    assert owner.acquire(ANN, *parts) == [type(found[0])(), type(found[0])()]


def test_no_more_records_than_locks_are_in_flight(owner: ShareOwner) -> None:
    owner.configure(share_partition_max_record_locks="100")
    owner.load(ANN)
    owner.produce(*[1] * 250)
    assert owner.offsets(ANN) == [(0, 99, 1)]
    assert owner.offsets(BOB) == []
    watch = owner.watch()
    assert watch == []
    owner.acknowledge(ANN, all_of(0, 9))
    assert len(watch) == 1
    assert owner.offsets(BOB) == [(100, 109, 1)]


def test_gap_of_a_compacted_log_is_skipped(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(1)
    assert owner.offsets(ANN) == [(0, 0, 1)]
    log = owner.rig.open("t").log
    log.state.end_offset += 5  # As if compaction had removed five records.
    owner.produce(1)
    assert owner.offsets(ANN) == [(6, 6, 1)]
    owner.acknowledge(ANN, all_of(0, 0), all_of(6, 6))
    assert owner.state.start_offset == 7


def test_records_below_the_log_start_are_given_up(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(10)
    assert owner.offsets(ANN) == [(0, 9, 1)]
    log = owner.rig.open("t").log
    log.retention.advance_start(6)
    owner.load(ANN)
    assert owner.acknowledge(ANN, all_of(0, 7)) is not None
    assert owner.state.start_offset == 8


def test_aborted_records_are_not_for_read_committed(start: Callable[..., HandlerRig]) -> None:
    owner = ShareOwner(start(settings={"transaction.partition.verification.enable": "false"}))
    owner.configure(share_isolation_level="read_committed")
    owner.load(ANN)
    log = owner.rig.open("t").log
    # The marker of the abort is delivered, as Kafka delivers it. Clients answer that it is no record.
    for sequence, is_commit, before in ((0, False, []), (3, True, [(3, 3, 1)])):
        append_one(log, sequenced(7, sequence, count=3, flags=TRANSACTIONAL), origin=CONFIRMED)
        assert owner.offsets(ANN) == before
        log.appender.append_marker(7, 0, 0, is_commit=is_commit, transaction_version=0)
    assert owner.offsets(ANN) == [(4, 7, 1)]
    owner.acknowledge(ANN, all_of(3, 7))
    assert owner.state.start_offset == 8


# -- acknowledge -----------------------------------------------------------------------------------------------


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
        [AcknowledgeBatch(0, 1, [9])],
        [AcknowledgeBatch(0, 2, [1, 1])],
        [AcknowledgeBatch(1, 0, [1])],
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


# -- release ---------------------------------------------------------------------------------------------------


def test_released_records_are_delivered_again_up_to_the_limit(owner: ShareOwner) -> None:
    owner.configure(share_delivery_count_limit="2")
    owner.load(ANN)
    owner.produce(1)
    for count in (1, 2):
        assert owner.offsets(ANN) == [(0, 0, count)]
        owner.acknowledge(ANN, all_of(0, 0, RELEASE))
    assert owner.offsets(ANN) == []
    assert owner.state.start_offset == 1


def test_lock_ends_after_its_duration(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    watch = owner.watch(wait_ms=60_000)
    owner.rig.advance_ms(LOCK_MS - 200)
    assert watch == []
    owner.rig.advance_ms(300)
    assert len(watch) == 1
    assert owner.state.batches == (
        StateBatch(0, 0, RecordState.AVAILABLE, 1),
        StateBatch(1, 1, RecordState.AVAILABLE, 1),
    )
    assert owner.offsets(BOB) == [(0, 1, 2)]


def test_renewed_lock_lasts_longer(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.rig.advance_ms(20_000)
    writes = len(owner.states.writes)
    owner.acknowledge(ANN, all_of(1, 1, RENEW))
    assert len(owner.states.writes) == writes
    owner.rig.advance_ms(LOCK_MS - 10_000)
    assert owner.offsets(BOB) == [(0, 0, 2)]


def test_renewal_can_be_disabled_for_a_group(owner: ShareOwner) -> None:
    owner.configure(share_renew_acknowledge_enable="false")
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    result = owner.acknowledge(ANN, all_of(0, 0, RENEW))
    assert result is not None
    assert result.error == ErrorCode.INVALID_REQUEST


def test_end_of_a_session_releases_its_records(owner: ShareOwner) -> None:
    """The delivery counts, because a record that ends its consumers must reach the limit."""
    owner.load(ANN)
    owner.produce(2)
    assert owner.offsets(ANN, records_max=2) == [(0, 1, 1)]
    owner.release(ShareHolder("g", "ann", 7, 0))  # Another session of the member.
    assert owner.offsets(BOB) == []
    owner.release(ANN)
    assert owner.offsets(BOB) == [(0, 1, 2)]


def test_death_of_a_home_releases_its_sessions(start: Callable[..., HandlerRig]) -> None:
    rig = start(handlers=2)
    owner = ShareOwner(rig)
    index = next(index for index in (0, 1) if rig.owner("t", index) == 0)
    part = owner.part(index=index)
    owner.acquire(BOB, part)
    owner.produce(2, index=index)
    (found,) = owner.acquire(BOB, part) or []
    assert found.record_count == 2
    rig.kill(1)
    rig.settle()
    (found,) = owner.acquire(ANN, part) or []
    assert [(each.first, each.last, each.delivery_count) for each in found.acquired] == [(0, 1, 2)]


# -- watch -----------------------------------------------------------------------------------------------------


def test_watch_ends_at_an_append_and_at_its_deadline(owner: ShareOwner) -> None:
    owner.load(ANN)
    watch = owner.watch()
    owner.produce(1)
    assert [each is not None and each.is_expired for each in watch] == [False]
    owner.offsets(ANN)
    watch = owner.watch()
    owner.rig.advance_ms(501)
    assert [each is not None and each.is_expired for each in watch] == [True]


def test_watch_waits_for_so_many_bytes(owner: ShareOwner) -> None:
    owner.load(ANN)
    watch = owner.watch(bytes_min=300)
    owner.produce(1, value=b"x" * 100)
    assert watch == []
    owner.produce(1, value=b"x" * 100)
    assert len(watch) == 1


# -- the table -------------------------------------------------------------------------------------------------


def test_share_partition_leaves_with_its_owner_and_its_topic(start: Callable[..., HandlerRig]) -> None:
    rig = start(handlers=2)
    owner = ShareOwner(rig)
    for index in (0, 1):
        owner.acquire(ANN, owner.part(index=index))
    assert len(owner.shares) == sum(rig.owner("t", index) == 0 for index in (0, 1))
    foreign = next(index for index in (0, 1) if rig.owner("t", index) == 1)
    (part,) = owner.acquire(ANN, owner.part(index=foreign)) or []
    assert part.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.delete_topic("t")
    assert len(owner.shares) == 0
    (part,) = owner.acquire(ANN) or []
    assert part.error == ErrorCode.UNKNOWN_TOPIC_ID


def test_acknowledgement_fails_when_the_topic_is_deleted(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    owner.states.holds = True
    replies: list[PartsAcknowledged | None] = []
    body = AcknowledgeParts(owner.services.image.version, ANN, [owner.acknowledge_part(all_of(0, 0))])
    acknowledge_for_home(owner.services, body, replies.append)
    owner.rig.settle()
    assert replies == []
    owner.rig.delete_topic("t")
    owner.states.release()
    (reply,) = replies
    assert reply is not None
    assert reply.parts[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(owner.shares) == 0


def test_idle_share_partition_leaves_the_memory(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    owner.rig.advance_ms(IDLE_MS // 2)
    owner.load(ANN)
    assert owner.offsets(ANN) == [(0, 0, 2)]
    owner.acknowledge(ANN, all_of(0, 0))
    for _ in range(3):
        owner.rig.advance_ms(IDLE_MS // 2)
    assert len(owner.shares) == 0
    assert len(parts_of(owner.rig.handler()).purgatory) == 0


def test_number_of_share_partitions_is_limited(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_partitions, "PARTITIONS_MAX", 1)
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    (part,) = owner.acquire(ANN, owner.part(index=1)) or []
    assert part.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    owner.acknowledge(ANN, all_of(0, 0))
    (part,) = owner.acquire(ANN, owner.part(index=1)) or []
    assert part.error == OPENS_LATER


def test_number_of_runs_is_limited(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.load(ANN)
    owner.produce(1, 1)
    owner.offsets(ANN, records_max=1)
    monkeypatch.setattr(share_partitions, "RUNS_MAX", 1)
    assert owner.offsets(BOB) == []
    owner.acknowledge(ANN, all_of(0, 0, RELEASE))
    assert owner.offsets(BOB, records_max=1) == [(0, 0, 2)]


def test_settings_of_made_up_groups_are_bounded(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_partitions, "PARTITIONS_MAX", 10)
    for number in range(100):
        owner.shares.settings_of(f"group-{number}")
    assert len(owner.shares._settings) <= 10
