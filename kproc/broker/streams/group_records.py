"""The records that changes of a streams group write: of members that join, return or leave, of its epoch and target.

These functions do not change the group. The group appends the records, and its state applies them (state.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kproc.broker.coordinator.member_phase import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.streams.messages import StreamsHeartbeat
from kproc.broker.streams.records import (
    StreamsGroupEpoch,
    StreamsMember,
    StreamsRecord,
    StreamsRecordType,
    StreamsTargetEpoch,
)
from kproc.broker.streams.state import StreamsGroupMember, StreamsGroupState
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks
from kproc.broker.streams.topology import Topology


def member_records(
    state: StreamsGroupState,
    known: StreamsGroupMember | None,
    request: StreamsHeartbeat,
    topology: Topology,
    metadata: StreamsMember,
) -> Iterator[StreamsRecord]:
    """Yield the records of a member's heartbeat. `known`: the member, or the static member that it replaces."""
    group_id, member_id = state.group_id, request.member_id
    if state.topology is None:
        yield RecordKey(StreamsRecordType.TOPOLOGY, group_id), topology
    if known is not None and known.member_id != member_id:
        yield from _successor_records(state, known, member_id)
    if known is None or metadata != known.metadata:
        yield RecordKey(StreamsRecordType.MEMBER, group_id, member_id), metadata


def _successor_records(
    state: StreamsGroupState, member: StreamsGroupMember, member_id: str
) -> Iterator[StreamsRecord]:
    """Yield records that replace a static member that is away by its successor, without a rebalance."""
    group_id = state.group_id
    successor = msgspec.structs.replace(member.state, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    yield from state.member_tombstones([member.member_id])
    yield RecordKey(StreamsRecordType.MEMBER, group_id, member_id), member.metadata
    yield RecordKey(StreamsRecordType.MEMBER_TARGET, group_id, member_id), state.target_of(member.member_id)
    yield RecordKey(StreamsRecordType.MEMBER_STATE, group_id, member_id), successor


def absence_of_member(group_id: str, member: StreamsGroupMember) -> StreamsRecord:
    """Return the record of a static member that leaves and will return.

    The member keeps its tasks until it returns or its session ends. The record has a negative epoch, so that commits of
    the absent member are rejected.
    """
    owned = member.state.owned
    state = msgspec.structs.replace(
        member.state,
        epoch=STATIC_LEAVE_EPOCH,
        owned=OwnedTasks(dict.fromkeys(owned.active, 0), owned.standby, owned.warmup),
        pending_revocation=OwnedTasks(),
    )
    return RecordKey(StreamsRecordType.MEMBER_STATE, group_id, member.member_id), state


def removal_records(
    state: StreamsGroupState, members: Iterable[StreamsGroupMember]
) -> Iterator[StreamsRecord]:
    """Yield the records that remove members, and the record that raises the group's epoch."""
    yield from state.member_tombstones(member.member_id for member in members)
    yield raised_epoch(state.group_id, state.epoch)


def target_records(
    state: StreamsGroupState, targets: Mapping[str, MemberTasks], target_epoch: StreamsTargetEpoch
) -> Iterator[StreamsRecord]:
    """Yield the records of a computed target: of each present member whose target is new, and of the target's epoch."""
    for member_id, target in targets.items():
        is_new = member_id not in state.targets or target != state.target_of(member_id)
        if member_id in state.members and is_new:
            yield RecordKey(StreamsRecordType.MEMBER_TARGET, state.group_id, member_id), target
    yield RecordKey(StreamsRecordType.TARGET, state.group_id), target_epoch


def raised_epoch(group_id: str, values: StreamsGroupEpoch) -> StreamsRecord:
    """Return the record of the group's next epoch. Its other fields are those of `values`."""
    # As in Kafka, a new group is at epoch 1, and its first member raises it to 2.
    epoch = msgspec.structs.replace(values, epoch=max(values.epoch, 1) + 1)
    return RecordKey(StreamsRecordType.GROUP, group_id), epoch
