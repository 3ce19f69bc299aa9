"""DeleteGroups (key 42), versions 0-3 (KIP-229).

A group without members is deleted with its committed offsets. A group with members gets NON_EMPTY_GROUP.

Versions: v2 flexible; v3 a message for each group, which Kafka sets only if a plug-in of streams groups fails.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_DELETE: Final = GROUPS.operation("delete_groups", NoneType, int)


def _prepare(_context: RequestContext, request: Fields) -> None:
    """Remove repeated names. As in Kafka, a group that is named twice is deleted once and has one row."""
    request["groups_names"] = list(dict.fromkeys(request["groups_names"]))


@api(ApiKey.DELETE_GROUPS, versions=(0, 3), prepare=_prepare, rows=(rows_at("groups_names", "results"),))
def handle_delete_groups(context: RequestContext, request: Fields) -> None:
    group_ids = request["groups_names"]
    # The rights are checked for each group (KafkaApis.handleDeleteGroupsRequest), so that one forbidden group
    # does not keep the others from being deleted.
    refused = denied(context, Operation.DELETE, ResourceType.GROUP, group_ids)
    allowed = [group_id for group_id in group_ids if group_id not in refused]

    def on_done(outcomes: list[int]) -> None:
        # Begin with the denial for all groups. The outcomes of the allowed ones replace it, and the rows keep the order
        # of the request.
        codes = dict.fromkeys(group_ids, int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        codes |= dict(zip(allowed, outcomes, strict=True))
        context.reply(
            {"results": [{"group_id": group_id, "error_code": code} for group_id, code in codes.items()]}
        )

    _DELETE.send(context, [Item(group_id, None) for group_id in allowed], on_done)


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return {
        "results": [
            {"group_id": group_id, "error_code": int(code), "error_message": message}
            for group_id in request["groups_names"]
        ]
    }


@_DELETE.handler
def _delete(
    coordinator: GroupCoordinator, group_id: str, _arguments: None, on_outcome: OnOutcome[int]
) -> None:
    coordinator.deletion.delete(group_id, lambda code: on_outcome(int(code)))
