"""add_change_calls: registers handlers for the calls of other roles that change the metadata.

calls/controller_calls.py defines these calls. Each handler passes the call's operation to a function of the controller,
and converts its reply into the reply of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.broker.calls.call_links import CallHandlers
from kproc.broker.calls.calls import OnResult
from kproc.broker.calls.controller_calls import (
    CHANGE,
    LEADER_EPOCHS,
    PRODUCER_IDS,
    Change,
    Changed,
    LeaderEpochsRequest,
    ProducerIds,
    ProducerIdsRequest,
    RaisedLeaderEpochs,
)
from kproc.broker.cluster.controller import failure_of
from kproc.broker.role.control_requests import OnReply

# Decides about an operation on the metadata and passes on the reply of ControllerState.
Decide = Callable[[str, dict[str, Any], OnReply], None]
Failure = tuple[int, str | None] | None


def add_change_calls(served: CallHandlers, decide: Decide) -> None:
    """Register the controller's handlers for all calls that change the metadata.

    Each handler calls `decide` with the operation, and responds when `decide` has called back with its reply.
    """

    def change(body: Change, on_reply: OnResult[Changed]) -> None:
        def on_decided(reply: dict[str, Any]) -> None:
            failure = _failure(reply)
            on_reply(Changed({} if failure else reply, failure=failure))

        decide(body.op, body.fields, on_decided)

    def producer_ids(_body: ProducerIdsRequest, on_reply: OnResult[ProducerIds]) -> None:
        def on_decided(reply: dict[str, Any]) -> None:
            failure = _failure(reply)
            first, count = (0, 0) if failure else (reply["first_producer_id"], reply["count"])
            on_reply(ProducerIds(first=first, count=count, failure=failure))

        decide(PRODUCER_IDS.name, {}, on_decided)

    def leader_epochs(body: LeaderEpochsRequest, on_reply: OnResult[RaisedLeaderEpochs]) -> None:
        def on_decided(reply: dict[str, Any]) -> None:
            failure = _failure(reply)
            on_reply(RaisedLeaderEpochs([] if failure else reply["leader_epochs"], failure=failure))

        wanted = {"topic_id": body.topic_id, "partitions": body.partitions, "at_least": body.at_least}
        decide(LEADER_EPOCHS.name, wanted, on_decided)

    served.add(CHANGE, change)
    served.add(PRODUCER_IDS, producer_ids)
    served.add(LEADER_EPOCHS, leader_epochs)


def _failure(reply: dict[str, Any]) -> Failure:
    error = failure_of(reply)
    return None if error is None else (int(error.code), error.message)
