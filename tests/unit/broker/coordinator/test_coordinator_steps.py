"""Work on all groups or transactional ids of a coordinator, in steps: no duty cycle runs more than a few ms of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from kproc.broker.calls.calls import FromImage
from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.rules import Write
from kproc.broker.coordinator.shard import ShardState
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.group.messages import CommitRequest, SyncRequest
from kproc.broker.group.records import (
    CommittedOffset,
    GroupSnapshot,
    MemberSnapshot,
    OffsetKey,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from kproc.broker.handler.handler_figures import handle_call
from kproc.broker.observe.broker_figures import HandlerFigures
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.records import encode_key, encode_value
from kproc.broker.transaction.state import State, Transaction
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.bytecodes import count_bytecodes
from tests.support.coordinators import run_steps
from tests.support.counters import runtime
from tests.support.group_coordinator_rig import Rig
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.large_request_clients import STEP_BYTECODES_MAX

Start = Callable[..., HandlerRig]
GROUPS = 600
MEMBERS = 3_000
IDS = 1_000
SESSION_MS = 10_000
GROUP_PARTITION = GROUP_METADATA_TOPIC, 0
RETENTION = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1_000_000}


def snapshot(group_id: str, member_count: int, now_ms: int) -> GroupSnapshot:
    members = tuple(
        MemberSnapshot(
            member_id=f"m{at}",
            group_instance_id=None,
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=SESSION_MS,
            session_timeout_ms=SESSION_MS,
            subscription=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff",
            assignment=b"a",
        )
        for at in range(member_count)
    )
    return GroupSnapshot(
        group_id=group_id,
        protocol_type="consumer",
        generation=1,
        protocol_name="range",
        leader=members[0].member_id if members else None,
        current_state_timestamp_ms=now_ms,
        members=members,
    )


def offset(rig: HandlerRig, topic: str) -> bytes:
    found = rig.cluster.image.topic(topic)
    assert found is not None
    value = CommittedOffset(offset=5, commit_timestamp_ms=rig.clock.wall_ms(), topic_id=found.topic_id)
    return encode_offset_value(value)


def coordinator(rig: HandlerRig) -> GroupCoordinator:
    found = runtime(rig).by_topic[GROUP_METADATA_TOPIC].coordinator(0)
    assert isinstance(found, GroupCoordinator)
    return found


def with_groups(
    start: Start, *, member_counts: list[int], settings: dict[str, Any] | None = None
) -> HandlerRig:
    """A Handler whose log has groups with an offset of each of two topics. Their coordinator is not loaded."""
    rig = start(settings=settings or {})
    for name in ("t", "u", GROUP_METADATA_TOPIC):
        rig.create_topic(name)
    coordinator(rig)
    now_ms = rig.clock.wall_ms()
    records: list[tuple[bytes, bytes | None]] = []
    for at, member_count in enumerate(member_counts):
        group_id = f"g{at}"
        records.append(
            (encode_group_key(group_id), encode_group_value(snapshot(group_id, member_count, now_ms)))
        )
        records += (
            (encode_offset_key(OffsetKey(group_id, topic, 0)), offset(rig, topic)) for topic in ("t", "u")
        )
    log = coordinator(rig)._log
    for first in range(0, len(records), 100):
        log.write(Write(records[first : first + 100], lambda _code: None))
        log.flush()  # A batch is read in one step.
    runtime(rig).release(GROUP_PARTITION)
    rig.settle()
    return rig


def load(rig: HandlerRig) -> None:
    runtime(rig)._try_at(GROUP_PARTITION, 0)
    rig.handler()._due.press()


def is_busy(rig: HandlerRig) -> bool:
    return bool(runtime(rig)._busy) or runtime(rig).has_steps


def costs_of_cycles(rig: HandlerRig, is_unfinished: Callable[[HandlerRig], bool] = is_busy) -> list[int]:
    """Run duty cycles until the coordinators are idle. Return the bytecodes of each."""
    costs: list[int] = []
    while is_unfinished(rig) or len(costs) < 2:
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
        rig._take_controller_calls()
        rig.clock.advance_ms(1)
        assert len(costs) < 2_000, "it does not end"
    return costs


def bounded(costs: list[int]) -> bool:
    """True for work that needed several steps, none of which was too long for other clients."""
    assert sum(costs) > STEP_BYTECODES_MAX, "too little work to need steps"
    return max(costs) < STEP_BYTECODES_MAX


@pytest.mark.long
def test_work_on_many_groups_is_divided_into_steps(start: Start) -> None:
    rig = with_groups(start, member_counts=[1] * GROUPS, settings=RETENTION)
    load(rig)
    assert bounded(costs_of_cycles(rig))
    loaded = coordinator(rig)
    assert len(loaded) == GROUPS
    assert len(loaded.offsets) == 2 * GROUPS

    rig.delete_topic("t")
    costs = costs_of_cycles(rig)
    assert len(loaded.offsets) == GROUPS
    assert max(costs) < STEP_BYTECODES_MAX

    rig.clock.advance_ms(SESSION_MS)  # All sessions end in the same ms.
    rig.handler()._due.press()

    def has_members(_rig: HandlerRig) -> bool:
        return any(members for _, _, _, members in loaded.sizes())

    assert bounded(costs_of_cycles(rig, has_members))

    rig.clock.advance_ms(70_000)
    runtime(rig)._start_sweep(GROUP_METADATA_TOPIC)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig))
    assert (len(loaded), len(loaded.offsets)) == (0, 0)


@pytest.mark.long
def test_work_on_many_transactional_ids_is_divided(start: Start) -> None:
    rig = start(settings={"transactional.id.expiration.ms": 60_000})
    rig.controller_serves |= {"raise_leader_epochs", "allocate_producer_ids"}
    rig.create_topic(TRANSACTION_STATE_TOPIC)
    rig.settle()
    runtime(rig).load_eagerly()
    with pytest.raises(KafkaError):
        runtime(rig).by_topic[TRANSACTION_STATE_TOPIC].coordinator(0)
    rig.settle()
    found = runtime(rig).by_topic[TRANSACTION_STATE_TOPIC].coordinator(0)
    assert isinstance(found, TransactionCoordinator)
    now_ms = rig.clock.wall_ms()
    idle = Transaction(producer_id=7, epoch=0, timeout_ms=1_000, updated_ms=now_ms)
    ongoing = msgspec.structs.replace(
        idle, state=State.ONGOING, started_ms=now_ms, partitions=frozenset({("t", 0)})
    )
    for at in range(IDS):
        state = encode_value(ongoing if at % 2 else idle, 1)
        found._log.write(Write([(encode_key(f"id{at}"), state)], lambda _code: None))
        found._log.flush()
    runtime(rig).release((TRANSACTION_STATE_TOPIC, 0))
    rig.settle()
    runtime(rig).load_eagerly()
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig))
    (loaded,) = runtime(rig).loaded(TRANSACTION_STATE_TOPIC)
    assert sum(loaded.state_counts) == IDS
    rig.clock.advance_ms(20_000)  # The time of the next check of timeouts.
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig))
    assert loaded.state_counts[State.ONGOING] == 0
    rig.clock.advance_ms(60_000)
    loaded.start_sweep()
    runtime(rig)._stepping.add(loaded)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig))


@pytest.mark.long
def test_resignation_of_many_groups_is_divided_into_steps(start: Start) -> None:
    rig = with_groups(start, member_counts=[3] * GROUPS)
    load(rig)
    rig.settle()
    runtime(rig).release(GROUP_PARTITION)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig))
    assert len(runtime(rig)._deadlines) == 0


@pytest.mark.long
def test_load_of_a_large_group_restores_its_members_in_steps(start: Start) -> None:
    """The record itself is decoded in one step."""
    rig = with_groups(start, member_counts=[MEMBERS], settings={"group.max.size": 10_000})
    load(rig)
    costs = costs_of_cycles(rig)
    assert list(coordinator(rig).sizes()) == [("g0", "classic", "Stable", MEMBERS)]
    assert sorted(costs)[-2] < STEP_BYTECODES_MAX


def test_requests_wait_until_the_last_step_of_a_load(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = with_groups(start, member_counts=[1, 1, 1])
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    load(rig)
    (shard,) = (each for key, each in runtime(rig)._shards.items() if key == GROUP_PARTITION)
    while shard.state is not ShardState.READY:
        with pytest.raises(KafkaError) as raised:
            coordinator(rig)
        assert raised.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        rig.handler()._due.press()
        rig.handler().do_work(0)
        assert shard.state is ShardState.READY or rig.handler().next_deadline_ms() == 0
    assert [state for _, _, state, _ in coordinator(rig).sizes()] == ["Stable"] * 3


def test_sessions_of_restored_members_start_at_the_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members cannot send heartbeats before the load has ended."""
    rig = with_groups(start, member_counts=[1, 1, 1])
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 20)
    load(rig)
    (shard,) = (each for key, each in runtime(rig)._shards.items() if key == GROUP_PARTITION)
    while not (shard.log is not None and shard.log.is_replayed):
        rig.handler()._due.press()
        rig.handler().do_work(0)
    rig.clock.advance_ms(SESSION_MS)
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 10_000)
    rig.settle()
    rig.advance_ms(SESSION_MS - 1)
    assert [members for _, _, _, members in coordinator(rig).sizes()] == [1, 1, 1]
    rig.advance_ms(1)
    assert [members for _, _, _, members in coordinator(rig).sizes()] == [0, 0, 0]


def test_topic_deleted_during_a_load_takes_its_offsets_along(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load has checked the offsets of the first groups already, and the topic's name is in use again."""
    rig = with_groups(start, member_counts=[1, 1, 1])
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    load(rig)
    (shard,) = (each for key, each in runtime(rig)._shards.items() if key == GROUP_PARTITION)
    while not (shard.log is not None and len(shard.log.coordinator) == 3 and shard.log.is_replayed):
        rig.handler()._due.press()
        rig.handler().do_work(0)
    for _ in range(3):
        rig.handler()._due.press()
        rig.handler().do_work(0)
    assert shard.state is ShardState.LOADING
    rig.delete_topic("t")
    rig.create_topic("t")
    rig.settle()
    offsets = coordinator(rig).offsets
    assert [offsets.get(f"g{at}", "t", 0) for at in range(3)] == [None] * 3
    assert len(offsets) == 3


def test_offsets_of_a_deleted_topic_are_hidden_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for at in range(3):
        rig.commit(7, group=f"g{at}")
    rig.log.sync()
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    rig.delete_topic("t", new_id=bytes(15) + b"n")
    rig.coordinator.topics_deleted(rig.known_topics())
    assert [rig.offset(group=f"g{at}") for at in range(3)] == [None] * 3
    assert len(rig.coordinator.offsets) == 3, "no step has run"
    rig.commit(9, group="g2")
    run_steps(rig.coordinator)
    rig.log.sync()
    rig.make()
    assert [rig.offset(group=f"g{at}") for at in range(3)] == [None, None, 9]


def test_resignation_answers_each_group_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer and no finished write changes a group that has not had its step."""
    rig = Rig()
    answers = [rig.join(group=f"g{at}") for at in range(3)]
    (leader,) = answers[1]
    synced: list[Any] = []
    request = SyncRequest(member_id=leader.member_id, generation=1, assignments=((leader.member_id, b"a"),))
    rig.coordinator.sync("g1", request, synced.append)
    waiting = [rig.join(group=f"g{at}") for at in (0, 2)]
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    rig.coordinator.resign()
    before = len(rig.log.records)
    rig.log.sync()
    rig.pass_ms(60_000)
    assert synced == []
    assert not any(waiting)
    run_steps(rig.coordinator)
    assert [each[0].error_code for each in waiting] == [ErrorCode.NOT_COORDINATOR] * 2
    assert [each.error_code for each in synced] == [ErrorCode.NOT_COORDINATOR]
    assert (len(rig.log.records), len(rig.deadlines)) == (before, 0)


def test_handler_is_drained_after_the_last_coordinator_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = with_groups(start, member_counts=[1, 1, 1])
    load(rig)
    rig.settle()
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    handler = rig.handler()
    handler.drain()
    handler.do_work(0)
    assert not handler.is_drained()
    assert handler.next_deadline_ms() == 0
    rig.settle()
    assert handler.is_drained()


@pytest.mark.long
def test_end_of_a_large_group_is_divided_into_steps(start: Start) -> None:
    """All members miss the same deadline; then the coordinator resigns with as many members."""
    rig = with_groups(start, member_counts=[MEMBERS], settings={"group.max.size": 10_000})
    load(rig)
    rig.settle()
    runtime(rig).release(GROUP_PARTITION)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig))
    load(rig)
    rig.settle()
    loaded = coordinator(rig)
    rig.clock.advance_ms(SESSION_MS)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig, lambda _rig: list(loaded.sizes()) != [("g0", "classic", "Empty", 0)]))


def with_offsets(start: Start, count: int) -> tuple[HandlerRig, GroupCoordinator]:
    """A Handler with one group that has many offsets, and its coordinator."""
    rig = start(settings=RETENTION)
    rig.create_topic(GROUP_METADATA_TOPIC)
    found = coordinator(rig)
    for topic in ("t", "u"):
        for first in range(0, count // 2, 100):
            commit(rig, "g", topic, range(first, first + 100))
    assert len(found.offsets) == count
    return rig, found


def commit(rig: HandlerRig, group_id: str, topic: str, partitions: Iterable[int]) -> list[int]:
    codes: list[int] = []
    now_ms = rig.clock.wall_ms()
    offsets = [
        (OffsetKey(group_id, topic, number), CommittedOffset(offset=5, commit_timestamp_ms=now_ms))
        for number in partitions
    ]
    request = CommitRequest(
        group_id=group_id,
        member_id="",
        group_instance_id=None,
        generation=-1,
        knows_unknown_group=True,
        offsets=offsets,
    )
    coordinator(rig).offset_requests.commit(request, codes.append)
    coordinator(rig)._log.flush()
    rig.settle()
    return codes


@pytest.mark.long
@pytest.mark.parametrize("way", ["delete", "sweep"])
def test_removal_of_one_group_with_many_offsets_is_divided(start: Start, way: str) -> None:
    rig, found = with_offsets(start, 3_000)
    codes: list[int] = []
    if way == "delete":
        found.deletion.delete("g", codes.append)
    else:
        rig.clock.advance_ms(70_000)
        runtime(rig)._start_sweep(GROUP_METADATA_TOPIC)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig, lambda _rig: bool(len(found))))
    assert (len(found), len(found.offsets)) == (0, 0)
    assert codes == ([0] if way == "delete" else [])


@pytest.mark.long
def test_metrics_of_many_groups_are_collected_in_steps(start: Start) -> None:
    rig = with_groups(start, member_counts=[1] * (2 * GROUPS))
    load(rig)
    rig.settle()
    services = parts_of(rig.handler()).services
    replies: list[HandlerFigures] = []
    handle_call(services, FromImage(0), replies.append)
    rig.handler()._due.press()
    assert bounded(costs_of_cycles(rig, lambda _rig: not replies))
    (figures,) = replies
    assert len(figures.groups) == 2 * GROUPS
    assert all((each.state, each.members) == ("Stable", 1) for each in figures.groups)
