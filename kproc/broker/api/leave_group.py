"""LeaveGroup (key 13), versions 0-5.

Versions: v0-2 one member, whose error is the error of the request; v3 several members, static ones by their instance id
(KIP-345); v4 flexible; v5 reason (KIP-800), which kproc does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.member_requests import client_id_of
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    LeaveReply,
    LeaveResult,
    LeavingMember,
    LeftMember,
)
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group
from kproc.broker.security.acl import Operation
from kproc.common.bounded import short_name
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

# KIP-345: one request can name several members.
_MANY_SINCE: Final = 3

_LEAVE: Final = GROUPS.operation("leave_group", list[LeavingMember], LeaveResult)


@api(
    ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    needs=(on_group(Operation.READ),),
    rows=(rows_at("members", "members"),),
)
def handle_leave_group(context: RequestContext, request: Fields) -> None:
    if context.api_version >= _MANY_SINCE:
        members = [LeavingMember(each["member_id"], each["group_instance_id"]) for each in request["members"]]
    else:
        # Before KIP-345 a client can only remove itself, by its member id.
        members = [LeavingMember(request["member_id"])]

    def on_done(outcome: LeaveResult | int) -> None:
        result = LeaveResult(outcome) if isinstance(outcome, int) else outcome
        if removed := [each for each in result.members if _is_removed(context, each)]:
            context.services.change_log.log_removed_members(context, request["group_id"], removed)
        # Before version 3 the response has a single error code: the member's, unless the request itself failed.
        if context.api_version < _MANY_SINCE and not result.error_code:
            context.reply({"error_code": int(result.members[0].error_code)})
        else:
            context.reply(_fields_of(result))

    _LEAVE.send_one(context, request["group_id"], members, on_done)


def _is_removed(context: RequestContext, left: LeftMember) -> bool:
    """Return True if another client has removed the member, False if the member has left by itself.

    A member leaves by its connection, which has the client id and the address with which it joined. Only an
    administrator names a static member by its instance id alone (KIP-345).
    """
    if left.error_code or not left.client_host:
        return False
    client_id = short_name(client_id_of(context))
    is_other = left.client_id != client_id or left.client_host != context.client_host
    return is_other or left.member_id == UNKNOWN_MEMBER_ID


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return _fields_of(LeaveResult(int(code)))


@_LEAVE.handler
def _handle_leave_group(
    coordinator: GroupCoordinator, group_id: str, members: list[LeavingMember], on_outcome: LeaveReply
) -> None:
    coordinator.leave(group_id, members, on_outcome)


def _fields_of(result: LeaveResult) -> Fields:
    return {
        "error_code": int(result.error_code),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": int(member.error_code),
            }
            for member in result.members
        ],
    }
