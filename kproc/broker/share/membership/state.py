"""ShareGroupState: the state of one share group, built from its records (KIP-932). Only records change it.

The coordinator applies each record when it is in the log. A load replays only the last record of each key, in any
order, and no tombstones. A replay can therefore meet a member's state before its subscription.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from kproc.broker.coordinator.member_deadlines import TimedMember
from kproc.broker.coordinator.member_memory import (
    HeldMemory,
    MemberMemory,
    SubscriptionContent,
)
from kproc.broker.coordinator.memory_limit import CountedMemory
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.recorded_states import RecordedState
from kproc.broker.share.membership.assignor import ASSIGNOR_NAME
from kproc.broker.share.membership.messages import DescribedShareGroup, DescribedShareMember
from kproc.broker.share.membership.records import (
    NamedPartitions,
    ShareAssignment,
    ShareEpoch,
    ShareMemberState,
    ShareRecordType,
    ShareRecordValue,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
    ShareTopics,
)

T = TypeVar("T")
_NO_TARGET: Final[ShareAssignment] = {}
# As in Kafka, a group and its target begin at epoch 1.
_FIRST_TARGET_EPOCH: Final = ShareTargetEpoch(1)


class ShareMember(TimedMember):
    """One member: the values of its records of types 10 (metadata) and 14 (state), and its deadlines.

    It has no rebalance timeout.
    """

    __slots__ = ("held", "state", "subscription")

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.subscription: ShareSubscription | None = None  # None only while the log is replayed.
        self.held: HeldMemory[SubscriptionContent] | None = None  # Counts the memory of the member.
        self.state = ShareMemberState(0)


class ShareGroupState(RecordedState[ShareMember, ShareAssignment]):
    """The epochs, members and assignments of one group, and the topics that have states in the share coordinator."""

    record_types = ShareRecordType
    member_type = ShareMember
    no_target = _NO_TARGET
    epoch: ShareEpoch
    target_epoch: ShareTargetEpoch

    __slots__ = ("_group_memory", "_name_users", "member_memory", "topics")

    def __init__(self, group_id: str, member_memory: MemberMemory | None = None) -> None:
        super().__init__(group_id)
        self.member_memory = MemberMemory() if member_memory is None else member_memory
        self._group_memory: CountedMemory | None = self.member_memory.hold_group(group_id)
        self.epoch = ShareEpoch(0)
        self.target_epoch = _FIRST_TARGET_EPOCH
        self.topics = ShareTopics()
        # The number of members that subscribe to each topic name, so that no request has to visit all members.
        self._name_users: Counter[str] = Counter()

    @property
    def is_written(self) -> bool:
        # Record 11, or only record 15 if start offsets were set first.
        return super().is_written or self.topics != ShareTopics()

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    def describe(self) -> DescribedShareGroup:
        """Return the group for ShareGroupDescribe."""
        return DescribedShareGroup(
            group_id=self.group_id,
            state=self.state_name,
            group_epoch=self.epoch.epoch,
            assignment_epoch=self.target_epoch.epoch,
            assignor=ASSIGNOR_NAME,
            members=tuple(map(_describe_member, self.members.values())),
        )

    def drop_incomplete_members(self) -> None:
        for member in list(self.members.values()):
            if member.subscription is None:
                del self.members[member.member_id]

    def subscribed_names(
        self, removed: Sequence[ShareMember] = (), added: Sequence[str] = ()
    ) -> frozenset[str]:
        """Return the names of all topics to which members subscribe. Some of them may not exist.

        The subscriptions of the members in `removed` do not count, but one to the topics in `added` does.
        """
        if not removed:
            return frozenset(self._name_users).union(added)
        users = self._name_users.copy()
        for member in removed:
            if member.subscription is not None:
                users.subtract(member.subscription.topic_names)
        return frozenset(name for name, count in users.items() if count > 0).union(added)

    def has_topic(self, name: str) -> bool:
        """Return True if a member subscribes to a topic."""
        return name in self._name_users

    def record_keys(self) -> Iterator[RecordKey]:
        yield from super().record_keys()
        yield RecordKey(ShareRecordType.TOPICS, self.group_id)
        yield RecordKey(ShareRecordType.GROUP, self.group_id)

    # -- records -----------------------------------------------------------------------------------------------

    def apply(self, key: RecordKey, value: ShareRecordValue | None) -> None:
        match value:
            case ShareEpoch():
                self.epoch = value
            case ShareTargetEpoch():
                self.target_epoch = value
            case ShareSubscription():
                self._set_subscription(self._member(key.name), value)
            case ShareMemberState():
                self._member(key.name).state = value
            case ShareTarget():
                self.targets[key.name] = value.partitions
                self._count_target(key.name)
            case ShareTopics():
                self.topics = value
            case None:
                self._remove(key)

    def _set_subscription(self, member: ShareMember, subscription: ShareSubscription | None) -> None:
        if member.subscription is not None:
            for name in member.subscription.topic_names:
                self._name_users[name] -= 1
                if not self._name_users[name]:
                    del self._name_users[name]
        member.held = member.subscription = None
        if subscription is not None:
            own_bytes = subscription.size_without_content(self.group_id, member.member_id)
            member.held = self.member_memory.hold(subscription.content, own_bytes)
            names = member.held.content.topic_names
            member.subscription = msgspec.structs.replace(subscription, topic_names=names)
            self._count_target(member.member_id)
            self._name_users.update(names)

    def release_memory(self) -> None:
        """Remove the group and its members from the memory count."""
        self._group_memory = None
        for member in self.members.values():
            member.held = None

    def _count_target(self, member_id: str) -> None:
        # In a replay, a target can come before its member, whose subscription then counts it.
        member = self.members.get(member_id)
        if member is not None and member.held is not None:
            member.held.count_target(self.target_of(member_id))

    def _remove(self, key: RecordKey) -> None:
        match key.record_type:
            case ShareRecordType.MEMBER_STATE:
                self.members[key.name].state = ShareMemberState(0)
            case ShareRecordType.MEMBER_TARGET:
                self.targets.pop(key.name, None)
            case ShareRecordType.MEMBER:
                self._set_subscription(self.members.pop(key.name), None)


def _describe_member(member: ShareMember) -> DescribedShareMember:
    assert member.subscription is not None
    return DescribedShareMember(
        member_id=member.member_id,
        member_epoch=member.state.epoch,
        subscription=member.subscription,
        assignment=member.state.assigned,
    )


# ---- the steps of a topic's share partitions: initializing, initialized, deleting --------------------------


def with_initializing(topics: ShareTopics, added: Mapping[bytes, NamedPartitions]) -> ShareTopics:
    """Return `topics` with the partitions of `added` as initializing.

    The topics of `added` are no longer in `deleting`.
    """
    return ShareTopics(
        _union(topics.initializing, added), topics.initialized, _without(topics.deleting, added)
    )


def with_initialized(topics: ShareTopics, done: Mapping[bytes, NamedPartitions]) -> ShareTopics:
    """Return `topics` with the partitions of `done` as initialized, no longer as initializing."""
    initializing = {}
    for topic_id, topic in topics.initializing.items():
        left = topic.partitions - done[topic_id].partitions if topic_id in done else topic.partitions
        if left:
            initializing[topic_id] = NamedPartitions(topic.name, left)
    return ShareTopics(initializing, _union(topics.initialized, done), topics.deleting)


def with_deleting(topics: ShareTopics, names: Mapping[bytes, str]) -> ShareTopics:
    """Return `topics` with those of `names` (topic id -> name) in `deleting`, and not in the other two tables."""
    left = without_topics(topics, names)
    return ShareTopics(left.initializing, left.initialized, {**topics.deleting, **names})


def without_topics(topics: ShareTopics, topic_ids: Container[bytes]) -> ShareTopics:
    """Return `topics` without those of `topic_ids`, because their states have been deleted."""
    return ShareTopics(
        _without(topics.initializing, topic_ids),
        _without(topics.initialized, topic_ids),
        _without(topics.deleting, topic_ids),
    )


def _union(
    first: Mapping[bytes, NamedPartitions], second: Mapping[bytes, NamedPartitions]
) -> dict[bytes, NamedPartitions]:
    union = dict(first)
    for topic_id, topic in second.items():
        known = union.get(topic_id)
        partitions = topic.partitions if known is None else known.partitions | topic.partitions
        union[topic_id] = NamedPartitions(topic.name, partitions)
    return union


def _without(topics: Mapping[bytes, T], topic_ids: Container[bytes]) -> dict[bytes, T]:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in topic_ids}
