"""Conversion of groups between the classic and the consumer protocol while their members work (KIP-848).

A group becomes a consumer group when the first member of the consumer protocol joins it, and a classic group when the
last one leaves. In both directions members keep their partitions until the rebalance that follows.
"""

from __future__ import annotations

from collections.abc import Iterable

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.classic.members import Member
from kproc.broker.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from kproc.broker.group.consumer.embedded import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kproc.broker.group.consumer.records import (
    ConsumerRecord,
    ConsumerRecordType,
    GroupEpoch,
    MemberState,
    MemberTarget,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.broker.group.consumer.topics import TopicView
from kproc.broker.group.records import GroupSnapshot, MemberSnapshot
from kproc.common.errors import ErrorCode, KafkaError, ProtocolError


def upgrade_records(
    group_id: str, generation: int, members: Iterable[Member], topics: TopicView, wall_ms: int
) -> list[ConsumerRecord]:
    """Return the records of a consumer group with the members of a classic one and their partitions.

    Raises GROUP_ID_NOT_FOUND if a member does not speak the consumer protocol inside the classic one.
    """

    def key(record_type: ConsumerRecordType, name: str = "") -> RecordKey:
        return RecordKey(record_type, group_id, name)

    records: list[ConsumerRecord] = []
    names: set[str] = set()
    for member in members:
        try:
            subscription = decode_subscription(member.protocols[0][1])
            owned = topics.by_id(decode_assignment(member.assignment))
        except ProtocolError as error:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Cannot upgrade classic group {group_id} to consumer group because the embedded consumer protocol is "
                "malformed.",
            ) from error
        metadata = subscription.metadata_of(member)
        names.update(metadata.topic_names)
        epochs = {topic_id: dict.fromkeys(numbers, generation) for topic_id, numbers in owned.items()}
        records += [
            (key(ConsumerRecordType.MEMBER, member.member_id), metadata),
            (key(ConsumerRecordType.MEMBER_TARGET, member.member_id), MemberTarget(owned)),
            (
                key(ConsumerRecordType.MEMBER_STATE, member.member_id),
                MemberState(generation, generation, owned=epochs),
            ),
        ]
    return [
        (key(ConsumerRecordType.GROUP), GroupEpoch(generation, topics.metadata_hash(names))),
        *records,
        (key(ConsumerRecordType.TARGET), TargetEpoch(generation, wall_ms)),
    ]


def can_downgrade(state: ConsumerGroupState, size_max: int) -> bool:
    """Return True if a group has members, all of the classic protocol, and not more than `size_max`."""
    return 0 < len(state.members) <= size_max and all(
        member.classic is not None for member in state.members.values()
    )


def downgrade_snapshot(state: ConsumerGroupState, topics: TopicView, wall_ms: int) -> GroupSnapshot:
    """Return the record of a classic group with the members of a consumer group, all of which are classic ones."""
    protocols = {
        member.member_id: member.classic for member in state.members.values() if member.classic is not None
    }
    common = set.intersection(*({name for name, _ in each.protocols} for each in protocols.values()))
    first = next(iter(protocols.values()))
    protocol_name = next(name for name, _ in first.protocols if name in common)
    members = []
    for member_id, classic in protocols.items():
        metadata = state.members[member_id].metadata
        assert metadata is not None
        subscription = dict(classic.protocols)[protocol_name]
        target = topics.by_name(state.target_of(member_id))
        members.append(
            MemberSnapshot(
                member_id=member_id,
                group_instance_id=metadata.instance_id,
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                rebalance_timeout_ms=metadata.rebalance_timeout_ms,
                session_timeout_ms=classic.session_timeout_ms,
                subscription=subscription,
                assignment=encode_assignment(decode_subscription(subscription).version, target),
            )
        )
    return GroupSnapshot(
        group_id=state.group_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=state.epoch.epoch,
        protocol_name=protocol_name,
        leader=next(iter(protocols)),
        current_state_timestamp_ms=wall_ms,
        members=tuple(members),
    )
