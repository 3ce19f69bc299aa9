"""JoinGroup (key 11), versions 0-9.

A member joins the next generation of its group. It gets its answer when the join phase ends. The rules are in
group/classic/join.py.

Versions: v1 rebalance timeout (before, the session timeout counts); v4 a new member gets its member id with
MEMBER_ID_REQUIRED and joins again with it (KIP-394); v5 static members (KIP-345); v6 flexible; v7 protocol type, and a
null protocol name (KIP-559); v8 reason (KIP-800), which kproc does not use; v9 SkipAssignment (KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.member_requests import client_id_of
from kproc.broker.group.messages import UNKNOWN_MEMBER_ID, JoinReply, JoinRequest, JoinResult
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

# The first versions with rebalance_timeout (KIP-62), MEMBER_ID_REQUIRED (KIP-394), a nullable protocol_name (KIP-559),
# and skip_assignment (KIP-814).
_REBALANCE_TIMEOUT_SINCE: Final = 1
_KNOWN_MEMBER_ID_SINCE: Final = 4
_NULL_PROTOCOL_SINCE: Final = 7
_SKIP_ASSIGNMENT_SINCE: Final = 9

_JOIN: Final = GROUPS.operation("join_group", JoinRequest, JoinResult)


@api(ApiKey.JOIN_GROUP, versions=(0, 9), rows_max=10_000)
def handle_join_group(context: RequestContext, request: Fields) -> None:
    group_id = request["group_id"]

    def on_done(outcome: JoinResult | int) -> None:
        if isinstance(outcome, int):
            outcome = JoinResult(outcome, request["member_id"])
        fields = _fields_of(outcome)
        # KIP-559 made the name nullable. Older clients would fail to decode a null.
        if context.api_version < _NULL_PROTOCOL_SINCE and outcome.protocol_name is None:
            fields["protocol_name"] = ""
        context.reply(fields)

    if not context.is_allowed(Operation.READ, ResourceType.GROUP, group_id):
        # JoinGroupRequest.getErrorResponse has an empty member id, also if the request had one.
        on_done(JoinResult(ErrorCode.GROUP_AUTHORIZATION_FAILED, UNKNOWN_MEMBER_ID))
        return
    _JOIN.send_one(context, group_id, _join_request(context, request), on_done)


def _join_request(context: RequestContext, request: Fields) -> JoinRequest:
    version, session_timeout_ms = context.api_version, request["session_timeout"]
    # KIP-62: before v1 the session timeout is the rebalance timeout, too. Such a client sends heartbeats only while it
    # polls, so a member that works longer than its session timeout is gone anyway.
    has_rebalance_timeout = version >= _REBALANCE_TIMEOUT_SINCE
    client_id = client_id_of(context)
    return JoinRequest(
        member_id=request["member_id"],
        group_instance_id=request.get("group_instance_id"),
        client_id=client_id,
        client_host=context.client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=request["rebalance_timeout"] if has_rebalance_timeout else session_timeout_ms,
        protocol_type=request["protocol_type"],
        protocols=tuple((each["name"], each["metadata"]) for each in request["protocols"]),
        # KIP-394: the member joins again with the id from the response. Otherwise a client that loses
        # responses and retries would leave one dead member behind for each try.
        requires_known_member_id=version >= _KNOWN_MEMBER_ID_SINCE,
        supports_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
    )


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    # A failed member has no protocol. The name is empty and not null, because before v7 it cannot be null.
    return _fields_of(JoinResult(int(code), request["member_id"], protocol_name=""))


@_JOIN.handler
def _join(coordinator: GroupCoordinator, group_id: str, request: JoinRequest, on_outcome: JoinReply) -> None:
    coordinator.join(group_id, request, on_outcome)


def _fields_of(result: JoinResult) -> Fields:
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
