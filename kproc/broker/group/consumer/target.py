"""The target assignment of a consumer group: which partitions each member shall get."""

from __future__ import annotations

from kproc.broker.coordinator.steps import Computation
from kproc.broker.group.consumer.assignors import ASSIGNORS, Assignment, AssignorMember
from kproc.broker.group.consumer.records import MemberMetadata
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.broker.group.consumer.topics import TopicView


def compute_target(
    state: ConsumerGroupState, topics: TopicView, assignor: str
) -> Computation[dict[str, Assignment]]:
    """Compute the partitions of each member, by its member id, from the group's state at the first step."""
    members = _assignor_members(state, topics)
    topic_ids = frozenset[bytes]().union(*{member.topic_ids for member in members.values()})
    return ASSIGNORS[assignor](members, {each: topics.partition_count(each) for each in topic_ids})


def _assignor_members(state: ConsumerGroupState, topics: TopicView) -> dict[str, AssignorMember]:
    # Most members have the same subscription. Look its topics up once, because 5,000 members of 100 topics would
    # take a second.
    known: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
    members = {}
    for member in state.members.values():
        metadata = member.metadata
        subscription = ((), None) if metadata is None else (metadata.topic_names, metadata.topic_regex)
        found = known.get(subscription)
        if found is None:
            found = known[subscription] = topic_ids(state, topics, metadata)
        members[member.member_id] = AssignorMember(found, state.target_of(member.member_id))
    return members


def topic_ids(
    state: ConsumerGroupState, topics: TopicView, metadata: MemberMetadata | None
) -> frozenset[bytes]:
    """Return the ids of the existing topics to which a member subscribes. If `metadata` is None, return no id."""
    if metadata is None:
        return frozenset()
    ids = map(topics.id_of, state.names_of(metadata))
    return frozenset(topic_id for topic_id in ids if topic_id is not None)
