"""The parts that ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kproc.broker.group.messages import GroupDescription
from kproc.broker.peers.coordinator_call import Fields, Item, ItemOperation, OnOutcome
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

D = TypeVar("D")  # The description of a group, or of a member, by its protocol.
Assignment = Mapping[bytes, Iterable[int]]  # Topic id -> partitions.


def send_descriptions(
    context: RequestContext,
    request: Fields,
    describe: ItemOperation[GroupCoordinator, None, GroupDescription[D]],
    row_of: Callable[[str, GroupDescription[D] | int], Fields],
) -> None:
    """Describe the groups of a request at their coordinators, and send the response.

    `row_of` returns the row of a group by its id and the outcome.
    """
    group_ids = request["group_ids"]
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, group_ids)
    allowed = [group_id for group_id in group_ids if group_id and group_id not in refused]

    def on_done(outcomes: list[GroupDescription[D] | int]) -> None:
        left = iter(outcomes)
        groups = []
        for group_id in group_ids:
            if group_id in refused:
                group = failed_row(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            elif not group_id:
                group = failed_row(group_id, ErrorCode.INVALID_GROUP_ID)
            else:
                group = row_of(group_id, next(left))
            if request["include_authorized_operations"] and not group["error_code"]:
                group["authorized_operations"] = operations_on(context, ResourceType.GROUP, group_id)
            groups.append(group)
        context.reply({"groups": groups})

    describe.send(context, [Item(group_id, None) for group_id in allowed], on_done)


def group_row(
    context: RequestContext,
    group_id: str,
    outcome: GroupDescription[Any] | int,
    topics_of: Callable[[ClusterImage, Any], Iterable[str]],
    member_row: Callable[[ClusterImage, Any], Fields],
) -> Fields:
    """Return the row of a consumer or share group.

    outcome: the description of the group, which is a DescribedConsumerGroup or a DescribedShareGroup, or an error code.
    topics_of: returns the names of the topics in a member's row.
    """
    if isinstance(outcome, int):
        return failed_row(group_id, outcome)
    group = outcome.group
    if group is None:
        return failed_row(group_id, ErrorCode.GROUP_ID_NOT_FOUND, outcome.reason)
    image = context.services.image
    names = {name for member in group.members for name in topics_of(image, member)}
    if denied(context, Operation.DESCRIBE, ResourceType.TOPIC, names):
        # KafkaApis hides the whole group, because its members would name topics that the client may not see.
        return failed_row(
            group_id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )
    return {
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [member_row(image, member) for member in group.members],
        "authorized_operations": NOT_TOLD,
    }


def names_of(image: ClusterImage, topic_ids: Iterable[bytes]) -> set[str]:
    """Return the names of those topics that exist."""
    return {topic.name for topic in map(image.topic_by_id, topic_ids) if topic is not None}


def assignment_fields(image: ClusterImage, assignment: Assignment) -> Fields:
    """Return a member's partitions with the names of their topics. Topics that do not exist any more are left out."""
    rows = []
    for topic_id, partitions in sorted(assignment.items()):
        topic = image.topic_by_id(topic_id)
        # A topic that was deleted meanwhile has no name to show.
        if topic is not None:
            rows.append({"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(partitions)})
    return {"topic_partitions": rows}


def failed_row(group_id: str, code: int, message: str | None = None) -> Fields:
    """Return the row of a group that cannot be described."""
    return {
        "error_code": int(code),
        "error_message": message,
        "group_id": group_id,
        "members": [],
        "authorized_operations": NOT_TOLD,
    }


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    """Return a response with the same error for all groups."""
    return {"groups": [failed_row(group_id, code, message) for group_id in request["group_ids"]]}


def read_description(
    coordinator: GroupCoordinator,
    group_id: str,
    group_type: str,
    read: Callable[[], D | None],
    on_outcome: OnOutcome[GroupDescription[D]],
) -> None:
    """Read the description of a group at its coordinator. The answer waits until all records of the group are synced.

    `read` returns None if no group of `group_type` has the id.
    """
    coordinator.read(
        lambda: description_of(coordinator, group_id, group_type, read()),
        lambda code, found: on_outcome(int(code) if code else found),
    )


def description_of(
    coordinator: GroupCoordinator, group_id: str, group_type: str, group: D | None
) -> GroupDescription[D]:
    """Return the description of a group. Add the reason if `group` is None: no group of this type has the id."""
    if group is not None:
        return GroupDescription(group)
    return GroupDescription(None, coordinator.explain_absence(group_id, group_type))
