"""WriteShareGroupState (key 85), versions 0-1 (KIP-932): change the states of share partitions.

In kproc the owner of a partition calls this operation between Handlers (peers/share_call.py). This API is for tools.

Differs from Kafka: batches that end before they begin, and negative offsets or delivery counts, get INVALID_REQUEST.
Kafka fails with UNKNOWN_SERVER_ERROR, or stores them.

Versions: v1 the number of completed deliveries (KIP-1226).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.api.share_states import (
    STATE_ROWS,
    StateOperation,
    failed_states,
    find_negative,
    handle_states,
)
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.share_call import WRITE_STATE
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.share.state.messages import NO_COUNT, StateBatch, WriteState
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.WRITE_SHARE_GROUP_STATE,
    versions=(0, 1),
    needs=(on_cluster(Operation.CLUSTER_ACTION),),
    rows=(STATE_ROWS,),
)
def handle_write_share_group_state(context: RequestContext, request: Fields) -> None:
    operation = StateOperation("write", WRITE_STATE, _arguments, find_problem=_find_problem)
    handle_states(context, request, operation)


def _arguments(row: Fields) -> WriteState:
    # KIP-932: the state epoch fences owners from before a change of the offsets, and the leader epoch fences
    # former owners of the partition. The coordinator checks both before it stores anything.
    return WriteState(
        row["state_epoch"],
        row["leader_epoch"],
        row["start_offset"],
        row.get("delivery_complete_count", NO_COUNT),
        tuple(
            StateBatch(
                each["first_offset"], each["last_offset"], each["delivery_state"], each["delivery_count"]
            )
            for each in row["state_batches"]
        ),
    )


def _find_problem(row: Fields) -> str | None:
    problem = find_negative(row)
    # Reject a batch with negative fields or reversed offsets now. Once stored, every read of the state returns it, and
    # the owner of the partition relies on its fields.
    if problem is None and any(
        each["first_offset"] < 0
        or each["last_offset"] < each["first_offset"]
        or each["delivery_count"] < 0
        or each["delivery_state"] < 0
        for each in row["state_batches"]
    ):
        problem = "A state batch must have offsets, a state and a count that are not negative, and must not be empty."
    return problem


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return failed_states(request, code, message)
