"""DeleteShareGroupState (key 86), version 0 (KIP-932): delete the states of share partitions.

The coordinator of a share group calls this operation when the group, or its offsets of a topic, are deleted. In kproc
that is a call between Handlers (peers/share_call.py). This API is for tools. The states of a deleted topic are
deleted without a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.api.share_states import STATE_ROWS, StateOperation, failed_states, handle_states
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.share_call import DELETE_STATE
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.share.state.messages import DeleteState
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.DELETE_SHARE_GROUP_STATE,
    versions=(0, 0),
    needs=(on_cluster(Operation.CLUSTER_ACTION),),
    rows=(STATE_ROWS,),
)
def handle_delete_share_group_state(context: RequestContext, request: Fields) -> None:
    handle_states(context, request, StateOperation("delete", DELETE_STATE, lambda _row: DeleteState()))


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return failed_states(request, code, message)
