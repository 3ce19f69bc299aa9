"""The records that changes of a consumer group write: of members that are replaced or absent, and of its target.

These functions do not change the group. The group appends the records, and its state applies them (state.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from kproc.broker.coordinator.member_phase import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.group.consumer.records import (
    ConsumerRecord,
    ConsumerRecordType,
    MemberTarget,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState, ConsumerMember


def successor_records(
    state: ConsumerGroupState, member: ConsumerMember, member_id: str
) -> Iterator[ConsumerRecord]:
    """Yield records that replace a static member by its successor `member_id`, without a rebalance."""
    group_id, target = state.group_id, state.target_of(member.member_id)
    successor = msgspec.structs.replace(member.state, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    yield from state.member_tombstones([member.member_id])
    yield RecordKey(ConsumerRecordType.MEMBER, group_id, member_id), member.metadata
    yield RecordKey(ConsumerRecordType.MEMBER_TARGET, group_id, member_id), MemberTarget(target)
    yield RecordKey(ConsumerRecordType.MEMBER_STATE, group_id, member_id), successor


def absence_of_member(group_id: str, member: ConsumerMember) -> ConsumerRecord:
    """Return the record of a static member that leaves and will return.

    The member keeps its partitions until it returns or its session ends.
    """
    owned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.state.owned.items()}
    state = msgspec.structs.replace(
        member.state, epoch=STATIC_LEAVE_EPOCH, owned=owned, pending_revocation={}
    )
    return RecordKey(ConsumerRecordType.MEMBER_STATE, group_id, member.member_id), state


def target_records(
    state: ConsumerGroupState, targets: Mapping[str, Assignment], target_epoch: TargetEpoch
) -> Iterator[ConsumerRecord]:
    """Yield the records of a computed target: of each present member whose target has changed, and of the epoch."""
    for member_id, target in targets.items():
        if member_id in state.members and target != state.target_of(member_id):
            yield RecordKey(ConsumerRecordType.MEMBER_TARGET, state.group_id, member_id), MemberTarget(target)
    yield RecordKey(ConsumerRecordType.TARGET, state.group_id), target_epoch
