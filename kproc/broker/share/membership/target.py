"""Input of a share group's target assignment: the partitions that can be assigned, and the members that want them.

Only partitions that have a state in the share coordinator can be assigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.share.membership.assignor import ShareAssignorMember
from kproc.broker.share.membership.records import NamedPartitions, ShareAssignment
from kproc.broker.share.membership.state import ShareGroupState

if TYPE_CHECKING:
    from kproc.broker.group.consumer.topics import TopicView


def assignable_partitions(state: ShareGroupState, topics: TopicView) -> ShareAssignment:
    """Return the partitions of subscribed topics that have a state in the share coordinator."""
    subscribed = state.subscribed_names()
    return {
        topic_id: topic.partitions
        for topic_id, topic in state.topics.initialized.items()
        if topic.partitions and topic.name in subscribed and topics.id_of(topic.name) == topic_id
    }


def uninitialized_partitions(state: ShareGroupState, topics: TopicView) -> dict[bytes, NamedPartitions]:
    """Return the partitions of subscribed topics that have no state in the share coordinator yet."""
    found = {}
    for name in state.subscribed_names():
        topic_id = topics.id_of(name)
        if topic_id is None:
            continue
        count = topics.partition_count(topic_id)
        known = state.topics.initialized.get(topic_id)
        # Compare the numbers first, which is cheap: at nearly every heartbeat all partitions have a state.
        if known is None or len(known.partitions) < count:
            partitions = frozenset(range(count)) - (frozenset() if known is None else known.partitions)
            found[topic_id] = NamedPartitions(name, partitions)
    return found


def has_unassigned(state: ShareGroupState, topics: TopicView) -> bool:
    """Return True if the members' targets together are not exactly the assignable partitions."""
    targets: dict[bytes, set[int]] = {}
    for target in state.targets.values():
        for topic_id, partitions in target.items():
            targets.setdefault(topic_id, set()).update(partitions)
    assignable = assignable_partitions(state, topics)
    return targets != {topic_id: set(numbers) for topic_id, numbers in assignable.items()}


def assignor_members(state: ShareGroupState, topics: TopicView) -> dict[str, ShareAssignorMember]:
    """Return the members, by their ids, with the existing topics of their subscriptions and their last targets."""
    # Most members have the same subscription, so look its topics up once.
    topic_ids: dict[tuple[str, ...], frozenset[bytes]] = {}
    members = {}
    for member in state.members.values():
        names = () if member.subscription is None else member.subscription.topic_names
        if names not in topic_ids:
            ids = map(topics.id_of, names)
            topic_ids[names] = frozenset(each for each in ids if each is not None)
        members[member.member_id] = ShareAssignorMember(topic_ids[names], state.target_of(member.member_id))
    return members
