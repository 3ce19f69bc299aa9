"""ReadShareGroupState (key 84), version 0 (KIP-932): read the states of share partitions for their owners.

A leader epoch above the last one is recorded before the response, and fences owners of older epochs. In kproc an owner
calls this operation between Handlers (peers/share_call.py). This API is for tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.api.share_states import (
    STATE_ROWS,
    StateOperation,
    encode_batches,
    failed_states,
    handle_states,
)
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.share_call import READ_STATE
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.share.state.messages import PersistedState, ReadState
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.READ_SHARE_GROUP_STATE,
    versions=(0, 0),
    needs=(on_cluster(Operation.CLUSTER_ACTION),),
    rows=(STATE_ROWS,),
)
def handle_read_share_group_state(context: RequestContext, request: Fields) -> None:
    handle_states(context, request, StateOperation("read", READ_STATE, _arguments, fields_of=_fields))


def _arguments(row: Fields) -> ReadState:
    # KIP-932: the read itself fences. A former owner that still runs has an older leader epoch, so its next
    # write fails with FENCED_LEADER_EPOCH.
    return ReadState(row["leader_epoch"])


def _fields(state: PersistedState) -> Fields:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": encode_batches(state.batches),
    }


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return failed_states(request, code, message)
