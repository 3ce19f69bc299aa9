"""SyncGroup (key 14), versions 0-5.

The leader sends the assignment of every member, and the other members wait for it. All are answered when the group's
new state is in the log. The rules are in group/classic/sync.py.

Versions: v3 static members (KIP-345); v4 flexible; v5 protocol type and name, which must be the group's (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.group.messages import SyncReply, SyncRequest, SyncResult
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import check_needs, on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_PROTOCOL_SINCE: Final = 5

_SYNC: Final = GROUPS.operation("sync_group", SyncRequest, SyncResult)


@api(ApiKey.SYNC_GROUP, versions=(0, 5), rows_max=10_000)
def handle_sync_group(context: RequestContext, request: Fields) -> None:
    if context.api_version >= _PROTOCOL_SINCE and None in (
        request["protocol_type"],
        request["protocol_name"],
    ):
        # KIP-559: from v5 on both fields are mandatory, so that a member cannot take the assignment of another protocol
        # for its own (SyncGroupRequest.areMandatoryProtocolTypeAndNamePresent).
        context.reply(error_response(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None))
        return
    # As in Kafka, check the right only after the fields of the protocol.
    check_needs(context, (on_group(Operation.READ),), request)

    def on_done(outcome: SyncResult | int) -> None:
        context.reply(_fields_of(SyncResult(outcome) if isinstance(outcome, int) else outcome))

    sync = SyncRequest(
        member_id=request["member_id"],
        group_instance_id=request.get("group_instance_id"),
        generation=request["generation_id"],
        protocol_type=request.get("protocol_type"),
        protocol_name=request.get("protocol_name"),
        assignments=tuple((each["member_id"], each["assignment"]) for each in request["assignments"]),
    )
    _SYNC.send_one(context, request["group_id"], sync, on_done)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return _fields_of(SyncResult(int(code)))


@_SYNC.handler
def _sync(coordinator: GroupCoordinator, group_id: str, request: SyncRequest, on_outcome: SyncReply) -> None:
    coordinator.sync(group_id, request, on_outcome)


def _fields_of(result: SyncResult) -> Fields:
    return {
        "error_code": int(result.error_code),
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }
