"""JoinGroup (key 11), versions 0-9.

A member enters its group's rebalance, and is answered when all have, or the time for it is over. The rules are
group/classic_group.py's. Versions: v1 rebalance timeout (v0: the session timeout); v4 a new member is first told its
id (MEMBER_ID_REQUIRED, KIP-394); v5 static members; v6 flexible; v7 protocol type, and a null protocol name; v8 reason
(KIP-800), which is not kept; v9 the leader may skip assigning (KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.group.messages import UNKNOWN_MEMBER_ID, JoinRequest, JoinResult
from kproc.broker.peers.coordinator_call import Caller, Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NAME: Final = "join_group"
_REBALANCE_TIMEOUT_SINCE: Final = 1
_KNOWN_MEMBER_ID_SINCE: Final = 4
_NULL_PROTOCOL_SINCE: Final = 7
_SKIP_ASSIGNMENT_SINCE: Final = 9


@api(ApiKey.JOIN_GROUP, versions=(0, 9), rows_max=10_000)
def handle_join_group(context: RequestContext, request: Fields) -> None:
    def on_done(outcome: Fields | int) -> None:
        if isinstance(outcome, int):
            outcome = _answer(JoinResult(outcome, request["member_id"]))
        if context.api_version < _NULL_PROTOCOL_SINCE and outcome["protocol_name"] is None:
            outcome = {**outcome, "protocol_name": ""}
        context.reply(outcome)

    if not context.is_allowed(Operation.READ, ResourceType.GROUP, request["group_id"]):
        on_done(_answer(JoinResult(ErrorCode.GROUP_AUTHORIZATION_FAILED, UNKNOWN_MEMBER_ID)))
        return
    GROUPS.send_one(context, _NAME, request["group_id"], request, on_done)


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    # The failed member has no protocol. Before v7 these fields cannot be null.
    return _answer(JoinResult(int(code), request["member_id"])) | {"protocol_name": ""}


@GROUPS.operation(_NAME, dict)
def _serve(
    coordinator: GroupCoordinator, caller: Caller, group_id: str, request: Fields, on_outcome: OnOutcome
) -> None:
    version = caller.version
    session_timeout_ms = request["session_timeout"]
    has_rebalance_timeout = version >= _REBALANCE_TIMEOUT_SINCE
    join = JoinRequest(
        member_id=request["member_id"],
        group_instance_id=request.get("group_instance_id"),
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=request["rebalance_timeout"] if has_rebalance_timeout else session_timeout_ms,
        protocol_type=request["protocol_type"],
        protocols=tuple((each["name"], each["metadata"]) for each in request["protocols"]),
        requires_known_member_id=version >= _KNOWN_MEMBER_ID_SINCE,
        supports_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
    )
    coordinator.join(group_id, join, lambda result: on_outcome(_answer(result)))


def _answer(result: JoinResult) -> Fields:
    return {
        "error_code": int(result.error_code),
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    }
