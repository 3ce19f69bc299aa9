"""LeaveGroup (key 13), versions 0-5.

Versions: v0-2 one member, whose error is the request's; v3 several at once, static ones by their instance id
(KIP-345); v4 flexible; v5 reason (KIP-800), which is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.group.messages import LeaveResult, LeavingMember
from kproc.broker.peers.coordinator_call import Caller, Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group
from kproc.broker.security.acl import Operation
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NAME: Final = "leave_group"
_MANY_SINCE: Final = 3


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
        members = [LeavingMember(request["member_id"])]

    def on_done(outcome: Fields | int) -> None:
        if isinstance(outcome, int):
            outcome = error_response(request, outcome, None)
        elif context.api_version < _MANY_SINCE and not outcome["error_code"]:
            outcome = {"error_code": outcome["members"][0]["error_code"]}
        context.reply(outcome)

    GROUPS.send_one(context, _NAME, request["group_id"], members, on_done)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code), "members": []}


@GROUPS.operation(_NAME, list[LeavingMember])
def _serve(
    coordinator: GroupCoordinator,
    _caller: Caller,
    group_id: str,
    members: list[LeavingMember],
    on_outcome: OnOutcome,
) -> None:
    coordinator.leave(group_id, members, lambda result: on_outcome(_answer(result)))


def _answer(result: LeaveResult) -> Fields:
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
