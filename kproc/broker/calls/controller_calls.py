"""Calls from Handlers to the controller.

CHANGE carries a client's request for a change of the metadata with its decoded fields, as Kafka's Envelope does
(KIP-590). It names the operation, and ControllerState (cluster/controller.py) has the rules. The other calls are
kproc's own and have bodies and replies of their own. controller/change_calls.py handles all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from kproc.broker.calls.calls import Call, Lost, Reply
from kproc.broker.calls.own_operations import OwnOperation
from kproc.broker.cluster.controller import lost_with_controller
from kproc.common.errors import ErrorCode, KafkaError


class Outcome(Reply, kw_only=True):
    """The base of the replies to all operations on the metadata."""

    # Error code and message if the operation failed as a whole.
    failure: tuple[int, str | None] | None = None


class Change(msgspec.Struct, array_like=True):
    """A call to the controller for an operation that changes the metadata, with the operation's fields."""

    op: str
    fields: dict[str, Any]


class Changed(Outcome):
    """The reply to a Change: the fields of the client's response. They are empty if the operation failed as a whole."""

    fields: dict[str, Any]


class ProducerIdsRequest(msgspec.Struct, array_like=True):
    """A Handler's call to the controller for a block of producer ids."""


class ProducerIds(Outcome):
    """A block of `count` producer ids from `first` on, which were never used before."""

    first: int = 0
    count: int = 0


class LeaderEpochsRequest(msgspec.Struct, array_like=True):
    """A request to raise the leader epochs of these partitions, with `at_least` to at least those epochs."""

    topic_id: bytes
    partitions: list[int]
    at_least: list[int] = []


class RaisedLeaderEpochs(Outcome):
    """The new leader epochs of the partitions, in the order of the request."""

    epochs: list[int]


class LogLevels(msgspec.Struct, array_like=True):
    """A Handler's request to set log levels in all roles, by logger. None: the level of the parent logger."""

    levels: dict[str, str | None]


class OwnRequest(msgspec.Struct, array_like=True):
    """A client's request for one of kproc's own operations, sent on to the controller (controller/operations.py)."""

    operation: OwnOperation


class OwnAnswer(Reply):
    """The response to one of kproc's own operations: an error message or a result.

    `is_retriable` is True for an error whose cause passes, such as a role that is being restarted. The same request can
    then succeed later.
    """

    error: str | None = None
    result: Any = None
    is_retriable: bool = False


CHANGE: Final[Call[Change, Changed]] = Call("change", Change, Changed)
PRODUCER_IDS: Final[Call[ProducerIdsRequest, ProducerIds]] = Call(
    "allocate_producer_ids", ProducerIdsRequest, ProducerIds
)
LEADER_EPOCHS: Final[Call[LeaderEpochsRequest, RaisedLeaderEpochs]] = Call(
    "raise_leader_epochs", LeaderEpochsRequest, RaisedLeaderEpochs
)
SET_LOG_LEVELS: Final[Call[LogLevels, Outcome]] = Call("set_log_levels", LogLevels, Outcome)
OWN: Final[Call[OwnRequest, OwnAnswer]] = Call("own", OwnRequest, OwnAnswer)


# A function that calls the controller: (call, body, on_reply).
AskController = Callable[[Call[Any, Any], Any, Callable[[Any], None]], None]


def failure_of(reply: Outcome | Lost) -> KafkaError | None:
    """Return the error of an operation that failed as a whole, or None.

    If the controller died during the call, the error is one after which clients retry.
    """
    if isinstance(reply, Lost):
        return lost_with_controller()
    if reply.failure is None:
        return None
    code, message = reply.failure
    return KafkaError(ErrorCode(code), message)


def fields_of(reply: Changed | Lost) -> dict[str, Any]:
    """Return the fields of the response. Raises KafkaError if the operation failed as a whole."""
    failure = failure_of(reply)
    if failure is not None:
        raise failure
    assert isinstance(reply, Changed)
    return reply.fields
