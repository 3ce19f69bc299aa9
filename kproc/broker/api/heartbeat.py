"""Heartbeat (key 12), versions 0-4.

While the coordinator is being loaded, every heartbeat gets NONE, as in Kafka (GroupCoordinatorService.heartbeat): the
member is very likely still in the group.

Versions: v3 static members (KIP-345); v4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.group.messages import HeartbeatRequest
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_HEARTBEAT: Final = GROUPS.operation("heartbeat", HeartbeatRequest, int)


@api(ApiKey.HEARTBEAT, versions=(0, 4), needs=(on_group(Operation.READ),))
def handle_heartbeat(context: RequestContext, request: Fields) -> None:
    def on_done(outcome: int) -> None:
        # The next heartbeat finds out if the member is still in the group. An error now would only make
        # clients look for another coordinator, and there is none.
        code = ErrorCode.NONE if outcome == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else outcome
        context.reply({"error_code": int(code)})

    member = HeartbeatRequest(
        request["member_id"], request.get("group_instance_id"), request["generation_id"]
    )
    _HEARTBEAT.send_one(context, request["group_id"], member, on_done)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code)}


@_HEARTBEAT.handler
def _heartbeat(
    coordinator: GroupCoordinator, group_id: str, request: HeartbeatRequest, on_outcome: OnOutcome[int]
) -> None:
    on_outcome(int(coordinator.heartbeat(group_id, *request)))
