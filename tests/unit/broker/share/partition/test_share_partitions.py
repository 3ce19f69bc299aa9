"""The table of a Handler's share partitions: failed writes, replaced states, last sessions, the cost of one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.share.partition import group_settings, share_partitions
from kproc.broker.share.partition.messages import (
    OPENS_LATER,
    AcknowledgeBatch,
    AcknowledgeParts,
    AcknowledgeType,
    PartsAcknowledged,
    ShareHolder,
)
from kproc.broker.share.partition.owner import acknowledge_for_home
from kproc.broker.share.partition.share_partition import SharePartition
from kproc.broker.share.partition.share_partitions import IDLE_MS
from kproc.broker.share.state.messages import (
    PersistedState,
    RecordState,
    SharePartitionKey,
    StateBatch,
    state_key,
)
from kproc.common.errors import ErrorCode
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.share_partition_rig import ShareOwner

ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 1)
LOCK_MS = 30_000
ACCEPT_FIRST = AcknowledgeBatch(0, 0, [AcknowledgeType.ACCEPT])


def calls_of(monkeypatch: pytest.MonkeyPatch, name: str) -> list[SharePartition]:
    """The share partitions of which a method is called from now on."""
    calls: list[SharePartition] = []
    method = getattr(SharePartition, name)

    def counted(self: SharePartition, *arguments: Any) -> Any:
        calls.append(self)
        return (method.fget if isinstance(method, property) else method)(self, *arguments)

    replacement: Any = property(counted) if isinstance(method, property) else counted
    monkeypatch.setattr(SharePartition, name, replacement)
    return calls


# -- failed writes ---------------------------------------------------------------------------------------------


def test_lock_that_ended_during_failed_write_waits(owner: ShareOwner) -> None:
    """Otherwise the Handler would write, and log a warning, in every duty cycle."""
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    owner.states.errors = [int(ErrorCode.UNKNOWN_SERVER_ERROR)] * 20
    owner.rig.advance_ms(LOCK_MS + 200)
    assert len(owner.states.errors) == 19
    owner.rig.advance_ms(500)
    assert len(owner.states.errors) == 19
    owner.rig.advance_ms(600)
    assert len(owner.states.errors) == 18
    owner.states.errors = []
    owner.rig.advance_ms(1_100)
    assert owner.offsets(BOB) == [(0, 0, 2)]


@pytest.mark.parametrize("end", ["lock", "session"])
def test_changed_configs_apply_to_the_next_release(owner: ShareOwner, end: str) -> None:
    """The members of a group that hang or die send no request that would read its configs."""
    owner.load(ANN)
    owner.produce(1)
    assert owner.offsets(ANN) == [(0, 0, 1)]
    owner.configure(share_delivery_count_limit="2")
    owner.rig.advance_ms(LOCK_MS + 200)
    assert owner.offsets(ANN) == [(0, 0, 2)]
    owner.configure(share_delivery_count_limit="5")
    if end == "lock":
        owner.rig.advance_ms(LOCK_MS + 200)
    else:
        owner.release(ANN)
    assert owner.offsets(BOB) == [(0, 0, 3)]


def test_write_to_deleted_state_drops_the_share_partition(owner: ShareOwner) -> None:
    """The coordinator answers INVALID_REQUEST when the group, or its offsets of the topic, are deleted."""
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.states.errors = [int(ErrorCode.INVALID_REQUEST)]
    result = owner.acknowledge(ANN, ACCEPT_FIRST)
    assert result is not None
    assert result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(owner.shares) == 0
    owner.load(BOB)
    assert owner.offsets(BOB) == [(0, 1, 1)]


def test_dead_letter_whose_archiving_fails_is_found_again(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the record would stay in the window, and the window could not advance any more."""
    monkeypatch.setattr(group_settings, "share_version", lambda _image: 2)
    owner.configure(errors_deadletterqueue_topic_name="dlq.t")
    owner.rig.create_topic("dlq.t", errors_deadletterqueue_group_enable="true")
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    owner.states.errors = [0, int(ErrorCode.UNKNOWN_SERVER_ERROR)]
    owner.acknowledge(ANN, AcknowledgeBatch(0, 0, [AcknowledgeType.REJECT]))
    assert owner.state.batches == (StateBatch(0, 0, RecordState.ARCHIVING, 1),)
    assert len(owner.shares) == 0
    owner.load(ANN)
    assert owner.state.start_offset == 1
    assert owner.rig.open("dlq.t").log.state.end_offset == 1


# -- states that were replaced ---------------------------------------------------------------------------------


def test_recreated_group_reads_its_new_state(owner: ShareOwner) -> None:
    """The epochs of the new group begin where those of the old one began, so its owner is not fenced."""
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.release(ANN)
    assert len(owner.shares) == 0
    owner.states.states[state_key("g", owner.topic_id, 0)] = PersistedState(0, 0)
    owner.load(BOB)
    assert owner.offsets(BOB) == [(0, 1, 1)]


def test_share_partition_stays_until_its_last_session_ends(owner: ShareOwner) -> None:
    for member in (ANN, BOB):
        owner.load(member)
    owner.release(ANN)
    assert len(owner.shares) == 1
    owner.release(BOB)
    assert len(owner.shares) == 0
    assert len(owner.shares.uses) == 0


def test_state_with_unknown_record_state_is_an_error(owner: ShareOwner) -> None:
    owner.produce(3)
    name = state_key("g", owner.topic_id, 0)
    owner.states.states[name] = PersistedState(0, 0, 0, 0, (StateBatch(1, 1, 77, 1),))
    owner.load(ANN)
    (part,) = owner.acquire(ANN) or []
    assert part.error == ErrorCode.KAFKA_STORAGE_ERROR


# -- the cost of one step --------------------------------------------------------------------------------------


def test_end_of_session_visits_only_its_share_partitions(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection can have thousands of sessions, which end together."""
    owner.acquire(ANN, owner.part())
    owner.acquire(BOB, owner.part(index=1))
    calls = calls_of(monkeypatch, "release_holders")
    owner.release(ANN)
    assert [each.key.partition for each in calls] == [0]


def test_full_table_visits_few_share_partitions(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [SharePartitionKey(f"group-{number}", owner.topic_id, 0) for number in range(101)]
    for key in keys[:100]:
        owner.shares.get(key)
    monkeypatch.setattr(share_partitions, "PARTITIONS_MAX", 100)
    calls = calls_of(monkeypatch, "is_idle")
    owner.shares.get(keys[0])
    owner.shares.get(keys[100])
    assert len(calls) <= 16
    assert owner.shares.find(keys[0]) is not None
    assert owner.shares.find(keys[1]) is None


def test_many_changed_states_are_written_in_several_steps(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session with thousands of partitions can end, or lose its locks, at once."""
    monkeypatch.setattr(share_partitions, "PARTITIONS_AT_ONCE", 1)
    owner.produce(1)
    owner.produce(1, index=1)
    parts = owner.part(), owner.part(index=1)
    owner.acquire(ANN, *parts)
    owner.acquire(ANN, *parts)
    sends = owner.states.sends
    expired = calls_of(monkeypatch, "expire")
    owner.rig.advance_ms(LOCK_MS)
    assert len(expired) == 2
    owner.release(ANN)
    assert owner.states.sends == sends + 2
    assert [each.delivery_complete_count for each in owner.states.writes[-2:]] == [0, 0]


# -- the table -----------------------------------------------------------------------------------------------


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
    body = AcknowledgeParts(owner.services.image.version, ANN, [owner.acknowledge_part(ACCEPT_FIRST)])
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
    owner.acknowledge(ANN, ACCEPT_FIRST)
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
    owner.acknowledge(ANN, ACCEPT_FIRST)
    (part,) = owner.acquire(ANN, owner.part(index=1)) or []
    assert part.error == OPENS_LATER


def test_number_of_runs_is_limited(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.load(ANN)
    owner.produce(1, 1)
    owner.offsets(ANN, records_max=1)
    monkeypatch.setattr(share_partitions, "RUNS_MAX", 1)
    assert owner.offsets(BOB) == []
    owner.acknowledge(ANN, AcknowledgeBatch(0, 0, [AcknowledgeType.RELEASE]))
    assert owner.offsets(BOB, records_max=1) == [(0, 0, 2)]
