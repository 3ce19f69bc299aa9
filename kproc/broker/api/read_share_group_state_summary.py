"""ReadShareGroupStateSummary (key 87), versions 0-1 (KIP-932): read where share partitions begin.

The coordinator of a share group calls this operation to describe the group's offsets. In kproc that is a call between
Handlers (peers/share_call.py). This API is for tools. It fences nobody, whatever the leader epoch.

Versions: v1 the number of completed deliveries (KIP-1226).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.api.share_states import STATE_ROWS, StateOperation, failed_states, handle_states
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.share_call import READ_SUMMARY
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.share.state.messages import PersistedState, ReadSummary
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    versions=(0, 1),
    needs=(on_cluster(Operation.CLUSTER_ACTION),),
    rows=(STATE_ROWS,),
)
def handle_read_share_group_state_summary(context: RequestContext, request: Fields) -> None:
    operation = StateOperation(
        "read",
        READ_SUMMARY,
        lambda row: ReadSummary(row["leader_epoch"]),
        find_problem=_find_problem,
        fields_of=_fields,
    )
    handle_states(context, request, operation)


def _find_problem(row: Fields) -> str | None:
    # As in Kafka, the leader epoch is not checked.
    return "The partition id cannot be a negative number." if row["partition"] < 0 else None


def _fields(state: PersistedState) -> Fields:
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return failed_states(request, code, message)
