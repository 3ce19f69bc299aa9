"""The description of a consumer group for ConsumerGroupDescribe."""

from __future__ import annotations

from kproc.broker.group.consumer.messages import DescribedConsumer, DescribedConsumerGroup
from kproc.broker.group.consumer.records import plain
from kproc.broker.group.consumer.state import ConsumerGroupState, ConsumerMember


def describe(state: ConsumerGroupState, assignor: str) -> DescribedConsumerGroup:
    """Return the group for ConsumerGroupDescribe."""
    return DescribedConsumerGroup(
        group_id=state.group_id,
        state=state.state_name,
        group_epoch=state.epoch.epoch,
        assignment_epoch=state.target_epoch.epoch,
        assignor=assignor,
        members=tuple(_describe_member(state, member) for member in state.members.values()),
    )


def _describe_member(state: ConsumerGroupState, member: ConsumerMember) -> DescribedConsumer:
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
        target=state.target_of(member.member_id),
        is_classic=member.classic is not None,
    )
