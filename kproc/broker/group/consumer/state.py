"""ConsumerGroupState: the state of one consumer group, built from its records (KIP-848). Only records change it.

The coordinator applies each record when it is in the log. A load replays only the last record of each key, in any
order, and no tombstones. A replay can therefore meet a member's state before its subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from sys import getsizeof
from typing import Final

from kproc.broker.coordinator.member_deadlines import TimedMember
from kproc.broker.coordinator.member_memory import (
    HeldMemory,
    MemberMemory,
    SubscriptionContent,
)
from kproc.broker.coordinator.memory_limit import CountedMemory
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.recorded_states import RecordedState
from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.group.consumer.messages import DescribedConsumer, DescribedConsumerGroup
from kproc.broker.group.consumer.records import (
    ClassicProtocols,
    ConsumerRecordType,
    ConsumerRecordValue,
    ExpressionTopics,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    OwnedPartitions,
    TargetEpoch,
    plain,
)
from kproc.broker.group.consumer.subscriptions import Subscriptions

_NO_TARGET: Final[Assignment] = {}
# As in Kafka, a group and its target begin at epoch 1. So no target is computed for a first member without a
# subscription. Otherwise the interval between assignments would delay the target of its later subscription.
_FIRST_TARGET_EPOCH: Final = TargetEpoch(1)


class ConsumerMember(TimedMember):
    """One member: the values of its records of types 5 (metadata) and 8 (state), and its deadlines."""

    __slots__ = ("held", "metadata", "state")

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.metadata: MemberMetadata | None = None  # None only while the log is replayed.
        self.held: HeldMemory[SubscriptionContent] | None = None  # Counts the memory of the member.
        self.state = MemberState(0)

    @property
    def classic(self) -> ClassicProtocols | None:
        """The protocols of a member of the classic protocol. None for a member of the consumer protocol."""
        return None if self.metadata is None else self.metadata.classic


class ConsumerGroupState(RecordedState[ConsumerMember, Assignment]):
    """The epochs, members, assignments and expressions of one group."""

    record_types = ConsumerRecordType
    member_type = ConsumerMember
    no_target = _NO_TARGET
    epoch: GroupEpoch
    target_epoch: TargetEpoch

    __slots__ = (
        "_expression_memory",
        "_group_memory",
        "expressions",
        "member_memory",
        "owners",
        "subscriptions",
    )

    def __init__(self, group_id: str, member_memory: MemberMemory | None = None) -> None:
        super().__init__(group_id)
        self.member_memory = MemberMemory() if member_memory is None else member_memory
        self.epoch = GroupEpoch(0)
        self.target_epoch = _FIRST_TARGET_EPOCH
        self.expressions: dict[str, ExpressionTopics] = {}
        self._expression_memory = CountedMemory(self.member_memory.limit)
        self._group_memory: CountedMemory | None = self.member_memory.hold_group(group_id)
        self.owners: dict[
            tuple[bytes, int], str
        ] = {}  # Owned partitions, also those that wait for a revocation.
        self.subscriptions = Subscriptions()

    def describe(self, assignor: str) -> DescribedConsumerGroup:
        """Return the group for ConsumerGroupDescribe. `assignor` is the name of its server-side assignor."""
        return DescribedConsumerGroup(
            group_id=self.group_id,
            state=self.state_name,
            group_epoch=self.epoch.epoch,
            assignment_epoch=self.target_epoch.epoch,
            assignor=assignor,
            members=tuple(map(self._describe_member, self.members.values())),
        )

    def _describe_member(self, member: ConsumerMember) -> DescribedConsumer:
        metadata = member.metadata
        assert metadata is not None
        return DescribedConsumer(
            member_id=member.member_id,
            instance_id=metadata.instance_id,
            rack_id=metadata.rack_id,
            member_epoch=member.state.epoch,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            topic_names=metadata.topic_names,
            topic_regex=metadata.topic_regex,
            assignment=plain(member.state.owned),
            target=self.target_of(member.member_id),
            is_classic=member.classic is not None,
        )

    @property
    def is_classic(self) -> bool:
        """True if all members use the classic protocol."""
        return all(member.classic is not None for member in self.members.values())

    @property
    def is_target_stale(self) -> bool:
        """True if the target assignment is that of an older epoch of the group."""
        return self.epoch.epoch > self.target_epoch.epoch

    def drop_incomplete_members(self) -> None:
        for member in list(self.members.values()):
            if member.metadata is None:
                self._set_state(member, MemberState(0))
                del self.members[member.member_id]

    def can_get_more(self, member: ConsumerMember) -> bool:
        """Return True if a partition of the member's target has no owner now."""
        return any(
            (topic_id, partition) not in self.owners
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
        )

    def subscribed_names(self) -> frozenset[str]:
        """Return the names of all topics to which members subscribe. Some of them may not exist."""
        return self.subscriptions.names(self.expressions)

    def names_of(self, metadata: MemberMetadata) -> frozenset[str]:
        """Return the names of the topics to which a member subscribes. An expression without a match has none."""
        topics = self.expressions.get(metadata.topic_regex or "")
        if topics is None:
            return frozenset(metadata.topic_names)
        # A union would copy the topics of the expression, of which there can be 10,000.
        return topics.topic_names.union(metadata.topic_names) if metadata.topic_names else topics.topic_names

    def record_keys(self) -> Iterator[RecordKey]:
        yield from super().record_keys()
        for expression in self.expressions:
            yield RecordKey(ConsumerRecordType.EXPRESSION, self.group_id, expression)
        yield RecordKey(ConsumerRecordType.GROUP, self.group_id)

    # -- records -----------------------------------------------------------------------------------------------

    def apply(self, key: RecordKey, value: ConsumerRecordValue | None) -> None:
        match value:
            case GroupEpoch():
                self.epoch = value
            case TargetEpoch():
                self.target_epoch = value
            case MemberMetadata():
                self._set_metadata(self._member(key.name), value)
            case MemberState():
                self._set_state(self._member(key.name), value)
            case MemberTarget():
                self.targets[key.name] = value.partitions
                self._count_target(key.name)
            case ExpressionTopics():
                self.expressions[key.name] = value
                self._count_expressions()
            case None:
                self._remove(key)

    def _set_metadata(self, member: ConsumerMember, metadata: MemberMetadata | None) -> None:
        if member.metadata is not None:
            self.subscriptions.remove(member.metadata)
            instance_id = member.metadata.instance_id
            # Keep the instance id if a successor of the static member has it by now.
            if instance_id is not None and self.instance_ids.get(instance_id) == member.member_id:
                del self.instance_ids[instance_id]
        member.held = member.metadata = None
        if metadata is not None:
            own_bytes = metadata.size_without_content(self.group_id, member.member_id)
            member.held = self.member_memory.hold(metadata.content, own_bytes)
            member.metadata = metadata = metadata.with_content(member.held.content)
            self._count_target(member.member_id)
            self.subscriptions.add(metadata)
            if metadata.instance_id is not None:
                self.instance_ids[metadata.instance_id] = member.member_id

    def release_memory(self) -> None:
        """Remove the group and its members from the memory count."""
        self._group_memory = None
        self._expression_memory.resize(0)
        for member in self.members.values():
            member.held = None

    def _count_expressions(self) -> None:
        """Count the memory of the topic names that match the expressions. It is never rejected."""
        names = [found.topic_names for found in self.expressions.values()]
        self._expression_memory.resize(sum(map(getsizeof, names)))

    def _count_target(self, member_id: str) -> None:
        # In a replay, a target can come before its member, whose subscription then counts it.
        member = self.members.get(member_id)
        if member is not None and member.held is not None:
            member.held.count_target(self.target_of(member_id))

    def _set_state(self, member: ConsumerMember, state: MemberState) -> None:
        for partition in _partitions_of(member.state):
            # In a replay another member can own the partition by now, because only the last record of each key is
            # replayed, in any order.
            if self.owners.get(partition) == member.member_id:
                del self.owners[partition]
        member.state = state
        for partition in _partitions_of(state):
            self.owners[partition] = member.member_id

    def _remove(self, key: RecordKey) -> None:
        match key.record_type:
            case ConsumerRecordType.MEMBER_STATE:
                self._set_state(self.members[key.name], MemberState(0))
            case ConsumerRecordType.MEMBER_TARGET:
                self.targets.pop(key.name, None)
            case ConsumerRecordType.MEMBER:
                self._set_metadata(self.members.pop(key.name), None)
            case ConsumerRecordType.EXPRESSION:
                self.expressions.pop(key.name, None)
                self._count_expressions()


def _partitions_of(state: MemberState) -> Iterator[tuple[bytes, int]]:
    owned: OwnedPartitions
    for owned in (state.owned, state.pending_revocation):
        for topic_id, epochs in owned.items():
            for partition in epochs:
                yield topic_id, partition
