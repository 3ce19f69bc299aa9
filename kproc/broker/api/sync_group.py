"""SyncGroup (key 14), versions 0-5.

The leader hands in what each member is assigned, the others wait for it. Everybody is answered when the group's
new state is in the log. Versions: v3 static members; v4 flexible; v5 protocol type and name, which are checked
(KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.group.messages import SyncRequest, SyncResult
from kproc.broker.peers.coordinator_call import Caller, Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import check_needs, on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NAME: Final = "sync_group"
_PROTOCOL_SINCE: Final = 5


@api(ApiKey.SYNC_GROUP, versions=(0, 5), rows_max=10_000)
def handle_sync_group(context: RequestContext, request: Fields) -> None:
    if context.api_version >= _PROTOCOL_SINCE and None in (
        request["protocol_type"],
        request["protocol_name"],
    ):
        context.reply(error_response(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None))
        return
    # As in Kafka, the protocol's errors come before the missing right.
    check_needs(context, (on_group(Operation.READ),), request)

    def on_done(outcome: Fields | int) -> None:
        context.reply(error_response(request, outcome, None) if isinstance(outcome, int) else outcome)

    GROUPS.send_one(context, _NAME, request["group_id"], request, on_done)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return _answer(SyncResult(int(code)))


@GROUPS.operation(_NAME, dict)
def _serve(
    coordinator: GroupCoordinator, _caller: Caller, group_id: str, request: Fields, on_outcome: OnOutcome
) -> None:
    sync = SyncRequest(
        member_id=request["member_id"],
        group_instance_id=request.get("group_instance_id"),
        generation=request["generation_id"],
        protocol_type=request.get("protocol_type"),
        protocol_name=request.get("protocol_name"),
        assignments=tuple((each["member_id"], each["assignment"]) for each in request["assignments"]),
    )
    coordinator.sync(group_id, sync, lambda result: on_outcome(_answer(result)))


def _answer(result: SyncResult) -> Fields:
    return {
        "error_code": int(result.error_code),
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }
