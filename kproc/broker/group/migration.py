"""Conversion of groups between the classic and the consumer protocol while their members work (KIP-848).

A group becomes a consumer group when the first member of the consumer protocol joins it, and a classic group when the
last one leaves or is replaced by a static one of the classic protocol. In both directions members keep their partitions
until the rebalance that follows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from kproc.broker.group.consumer.embedded import (
    NamedPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from kproc.broker.group.consumer.records import (
    ConsumerRecord,
    ConsumerRecordType,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState, ConsumerMember
from kproc.broker.group.consumer.topics import TopicView
from kproc.broker.group.records import GroupSnapshot, MemberSnapshot
from kproc.common.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.group.classic.members import Member


def check_upgrade(group: ClassicGroup, config: Config) -> None:
    """Raise GROUP_ID_NOT_FOUND if a classic group with members may not become a consumer group."""
    if config.group_consumer_migration_policy not in ("bidirectional", "upgrade"):
        raise _not_upgraded(group.group_id, "online upgrade is disabled")
    # Groups of Kafka Connect have another type. Their assignments mean connectors, so the coordinator could
    # not assign.
    if group.roster.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _not_upgraded(group.group_id, "the group does not use the consumer embedded protocol")
    # A conversion must not remove members, so a group above the limit stays classic.
    if group.member_count > config.group_consumer_max_size:
        raise _not_upgraded(
            group.group_id,
            f"the group has more than {config.group_consumer_max_size} members (group.consumer.max.size)",
        )


def _not_upgraded(group_id: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group_id} to consumer group because {reason}.",
    )


def upgrade_records(group: ClassicGroup, topics: TopicView, wall_ms: int) -> list[ConsumerRecord]:
    """Return the records of a consumer group with the members of a classic one and their partitions.

    Raises GROUP_ID_NOT_FOUND if a member does not speak the consumer protocol inside the classic one, or if its
    assignment has user data of its assignor. These would be lost, and an application such as Kafka Streams needs them.
    As in Kafka, this includes groups whose leader uses librdkafka's cooperative-sticky, although nobody reads its data.
    """
    # The generation becomes the epoch of the group and of its members, because classic members continue to send it in
    # their Heartbeats and OffsetCommits until they join again.
    group_id, generation = group.group_id, group.generation

    def key(record_type: ConsumerRecordType, name: str = "") -> RecordKey:
        return RecordKey(record_type, group_id, name)

    records: list[ConsumerRecord] = []
    names: set[str] = set()
    for member in group.roster.members.values():
        metadata, partitions = _decode_member(group, member)
        owned = topics.by_id(partitions)
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


def _decode_member(group: ClassicGroup, member: Member) -> tuple[MemberMetadata, NamedPartitions]:
    """Return the subscription of a classic member, and its partitions by topic.

    Raises GROUP_ID_NOT_FOUND in the cases of `upgrade_records`.
    """
    try:
        # Before the first rebalance has ended, no protocol is chosen. Use the one that the member prefers.
        protocol = member.metadata(group.state.protocol_name) or member.protocols[0][1]
        subscription = decode_subscription(protocol)
        assignment = decode_assignment(member.assignment)
    except ProtocolError as error:
        raise _not_upgraded(group.group_id, "the embedded consumer protocol is malformed") from error
    if assignment.user_data:
        raise _not_upgraded(
            group.group_id,
            "its assignor adds user data to the assignments, as librdkafka's cooperative-sticky does; let all members"
            " use the assignor range first",
        )
    return subscription.metadata_of(member), assignment.partitions


def can_downgrade(members: Collection[ConsumerMember], config: Config) -> bool:
    """Return True if a consumer group with these members may become a classic group.

    All of them must use the classic protocol, and group.max.size and group.consumer.migration.policy must allow it.
    """
    if config.group_consumer_migration_policy not in ("bidirectional", "downgrade"):
        return False
    # Each protocol has its own limit of members. Above that of classic groups the group stays what it is, because a
    # conversion must not remove members.
    return 0 < len(members) <= config.group_max_size and all(member.classic is not None for member in members)


def downgrade_snapshot(
    state: ConsumerGroupState, topics: TopicView, generation: int, wall_ms: int
) -> GroupSnapshot:
    """Return the record of a classic group with the members of a consumer group. All of them must be classic ones."""
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
                assignment=encode_assignment(subscription_version(subscription), target),
            )
        )
    return GroupSnapshot(
        group_id=state.group_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=generation,
        protocol_name=protocol_name,
        # Any member may lead, because only a rebalance has work for a leader.
        leader=next(iter(protocols)),
        current_state_timestamp_ms=wall_ms,
        members=tuple(members),
    )
