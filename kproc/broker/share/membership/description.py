"""The description of a share group for ShareGroupDescribe."""

from __future__ import annotations

from kproc.broker.share.membership.assignor import ASSIGNOR_NAME
from kproc.broker.share.membership.messages import DescribedShareGroup, DescribedShareMember
from kproc.broker.share.membership.state import ShareGroupState, ShareMember


def state_name(state: ShareGroupState) -> str:
    """Return the group's state as ListGroups shows it."""
    return "Stable" if state.members else "Empty"


def describe(state: ShareGroupState) -> DescribedShareGroup:
    """Return the group for ShareGroupDescribe."""
    return DescribedShareGroup(
        group_id=state.group_id,
        state=state_name(state),
        group_epoch=state.epoch.epoch,
        assignment_epoch=state.target_epoch.epoch,
        assignor=ASSIGNOR_NAME,
        members=tuple(map(_describe_member, state.members.values())),
    )


def _describe_member(member: ShareMember) -> DescribedShareMember:
    subscription = member.subscription
    assert subscription is not None
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=subscription.rack_id,
        member_epoch=member.state.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        topic_names=subscription.topic_names,
        assignment=member.state.assigned,
    )
