"""ShareGroupDescribe (key 77), version 1 (KIP-932).

It shows share groups with the epochs, the subscription and the partitions of each member. Groups of other protocols
get GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

from kproc.broker.api.group_descriptions import (
    assignment_fields,
    error_response,
    group_row,
    names_of,
    read_description,
    send_descriptions,
)
from kproc.broker.api.share_group_heartbeat import check_share_enabled
from kproc.broker.group.messages import GroupDescription
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.share.membership.group import GROUP_TYPE
from kproc.broker.share.membership.messages import DescribedShareGroup, DescribedShareMember
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

__all__ = ["error_response", "handle_share_group_describe"]

_DESCRIBE: Final = GROUPS.operation("share_group_describe", NoneType, GroupDescription[DescribedShareGroup])


@api(
    ApiKey.SHARE_GROUP_DESCRIBE,
    versions=(1, 1),
    rows=(rows_at("group_ids", "groups.members", size=1),),
)
def handle_share_group_describe(context: RequestContext, request: Fields) -> None:
    check_share_enabled(context)
    send_descriptions(
        context,
        request,
        _DESCRIBE,
        lambda group_id, outcome: group_row(context, group_id, outcome, _topics_of, _member),
    )


def _topics_of(image: ClusterImage, member: DescribedShareMember) -> set[str]:
    """Return the names of the topics that a member's row shows."""
    return {*member.subscription.topic_names, *names_of(image, member.assignment)}


def _member(image: ClusterImage, member: DescribedShareMember) -> Fields:
    subscription = member.subscription
    return {
        "member_id": member.member_id,
        "rack_id": subscription.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": subscription.client_id,
        "client_host": subscription.client_host,
        "subscribed_topic_names": list(subscription.topic_names),
        "assignment": assignment_fields(image, member.assignment),
    }


@_DESCRIBE.handler
def _describe(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[GroupDescription[DescribedShareGroup]],
) -> None:
    def read() -> DescribedShareGroup | None:
        group = coordinator.shares.find(group_id)
        return None if group is None else group.describe_share()

    read_description(coordinator, group_id, GROUP_TYPE, read, on_outcome)
