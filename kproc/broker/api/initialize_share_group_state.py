"""InitializeShareGroupState (key 83), version 0 (KIP-932): create or replace the states of share partitions.

The coordinator of a share group calls this operation when a topic is subscribed, and when an administrator sets the
group's offsets. In kproc that is a call between Handlers (peers/share_call.py). This API is for tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.api.share_states import STATE_ROWS, StateOperation, failed_states, handle_states
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.share_call import INITIALIZE_STATE
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.share.state.messages import InitializeState
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    versions=(0, 0),
    needs=(on_cluster(Operation.CLUSTER_ACTION),),
    rows=(STATE_ROWS,),
)
def handle_initialize_share_group_state(context: RequestContext, request: Fields) -> None:
    handle_states(context, request, StateOperation("initialize", INITIALIZE_STATE, _arguments))


def _arguments(row: Fields) -> InitializeState:
    # KIP-932: a higher state epoch replaces an existing state. An owner of the partition that still has the
    # old state is fenced by its older epoch when it writes.
    return InitializeState(row["state_epoch"], row["start_offset"])


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return failed_states(request, code, message)
