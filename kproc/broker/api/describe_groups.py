"""DescribeGroups (key 15), versions 0-6.

A group that there is not is described as Dead; from v6 on with GROUP_ID_NOT_FOUND (KIP-1043). Versions: v3
authorized operations (KIP-430); v4 static members; v5 flexible; v6 error message.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

from kproc.broker.peers.coordinator_call import Caller, Fields, Item, OnOutcome, Outcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NAME: Final = "describe_groups"
_NOT_FOUND_SINCE: Final = 6
_DEAD: Final = "Dead"


@api(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), rows=(rows_at("groups", "groups.members", size=1),))
def handle_describe_groups(context: RequestContext, request: Fields) -> None:
    group_ids = request["groups"]
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, group_ids)
    asked = [group_id for group_id in group_ids if group_id not in refused]
    tells_operations = request.get("include_authorized_operations", False)

    def on_done(outcomes: list[Outcome]) -> None:
        left = iter(outcomes)
        groups = [
            _of(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED if group_id in refused else next(left))
            for group_id in group_ids
        ]
        for group in groups:
            if tells_operations and not group["error_code"]:
                operations = operations_on(context, ResourceType.GROUP, group["group_id"])
                group["authorized_operations"] = operations
        context.reply({"groups": groups})

    GROUPS.send(context, _NAME, [Item(group_id, None) for group_id in asked], on_done)


def _of(group_id: str, outcome: Outcome) -> Fields:
    return _failed(group_id, outcome) if isinstance(outcome, int) else outcome


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return {"groups": [_failed(group_id, code, message) for group_id in request["groups"]]}


def _failed(group_id: str, code: int, message: str | None = None, state: str = "") -> Fields:
    return {
        "error_code": int(code),
        "error_message": message,
        "group_id": group_id,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NOT_TOLD,
    }


@GROUPS.operation(_NAME, NoneType)
def _serve(
    coordinator: GroupCoordinator, caller: Caller, group_id: str, _arguments: None, on_outcome: OnOutcome
) -> None:
    group = coordinator.describe(group_id)
    if group is None:
        code, message = ErrorCode.NONE, None
        if caller.version >= _NOT_FOUND_SINCE:
            code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
        on_outcome(_failed(group_id, code, message, _DEAD))
        return
    on_outcome(
        {
            **_failed(group_id, ErrorCode.NONE, None, group.state),
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol_name,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata,
                    "member_assignment": member.assignment,
                }
                for member in group.members
            ],
        }
    )
