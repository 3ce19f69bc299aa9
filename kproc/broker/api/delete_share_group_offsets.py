"""DeleteShareGroupOffsets (key 92), version 0 (KIP-932).

It deletes the states of topics in a share group without members. A member that subscribes to such a topic later begins
where share.auto.offset.reset says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.alter_share_group_offsets import error_response, message_of, send_change
from kproc.broker.api.share_group_heartbeat import check_share_enabled
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.broker.share.membership.messages import ChangedShareOffsets, DeleteShareOffsets
from kproc.broker.share.membership.share_groups import ALL_PARTITIONS
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from collections.abc import Collection

    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_DELETE: Final = GROUPS.operation("delete_share_group_offsets", DeleteShareOffsets, ChangedShareOffsets)

__all__ = ["error_response"]


@api(
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    needs=(on_group(Operation.DELETE),),
    rows_max=10_000,
)
def handle_delete_share_group_offsets(context: RequestContext, request: Fields) -> None:
    check_share_enabled(context)
    if not request["group_id"]:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    # A topic that the request names twice has one row in the response.
    names = tuple(dict.fromkeys(topic["topic_name"] for topic in request["topics"]))
    hidden = denied_topics(context, Operation.READ, names)
    allowed = tuple(name for name in names if name not in hidden)

    send_change(
        context,
        request,
        _DELETE,
        DeleteShareOffsets(allowed),
        lambda outcome: [_topic(context, name, hidden, outcome) for name in names],
    )


def _topic(
    context: RequestContext, name: str, hidden: Collection[str], outcome: ChangedShareOffsets
) -> Fields:
    image_topic = None if name in hidden else context.services.image.topic(name)
    if name in hidden:
        code: int = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        message = message_of(code)
    # KIP-932: a topic that the group has never read has no state. An error says so, because a success would
    # hide a misspelled name.
    elif not outcome.codes[name]:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete."
    else:
        code = outcome.codes[name][ALL_PARTITIONS]
        message = message_of(code)
    return {
        "topic_name": name,
        # As in Kafka, only a topic whose offsets were deleted has an id.
        "topic_id": None if code or image_topic is None else image_topic.topic_id,
        "error_code": int(code),
        "error_message": message,
    }


@_DELETE.handler
def _delete(
    coordinator: GroupCoordinator,
    group_id: str,
    request: DeleteShareOffsets,
    on_outcome: OnOutcome[ChangedShareOffsets],
) -> None:
    coordinator.share_requests.change_offsets(group_id, request, on_outcome)
