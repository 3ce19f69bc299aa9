"""What Handlers ask the controller: one `Call` for each kind of question.

A client's request for a change of the metadata goes as it was decoded, as Kafka's Envelope carries it (KIP-590): CHANGE
names the operation, and its rules are those of ControllerState (cluster/controller.py). kproc's own questions have
bodies and replies of their own. All are answered in controller/answers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from kproc.broker.calls.calls import B, Call, Lost, R, Reply
from kproc.broker.calls.own_operations import OwnOperation
from kproc.broker.cluster.controller import lost_with_controller
from kproc.common.errors import ErrorCode, KafkaError


class Outcome(Reply, kw_only=True):
    """What every operation on the metadata answers."""

    failure: tuple[int, str | None] | None = None  # Error code and message, if it failed as a whole.


class Change(msgspec.Struct, array_like=True):
    """An operation on the metadata, and the fields of the request for it."""

    op: str
    fields: dict[str, Any]


class Changed(Outcome):
    """The fields of the response; none if it failed as a whole."""

    fields: dict[str, Any]


class ProducerIdsWanted(msgspec.Struct, array_like=True):
    """A block of producer ids."""


class ProducerIds(Outcome):
    """Ids that nobody has had: `count` of them, from `first` on."""

    first: int = 0
    count: int = 0


class LeaderEpochsWanted(msgspec.Struct, array_like=True):
    """A request to raise the leader epochs of these partitions, with `at_least` to at least those epochs."""

    topic_id: bytes
    partitions: list[int]
    at_least: list[int] = []


class LeaderEpochs(Outcome):
    """The epochs of the partitions, in their order."""

    epochs: list[int]


class LogLevels(msgspec.Struct, array_like=True):
    """Levels of loggers of all roles; None: the level of its parent."""

    levels: dict[str, str | None]


class OwnRequest(msgspec.Struct, array_like=True):
    """One of kproc's own operations (controller/operations.py)."""

    operation: OwnOperation


class OwnAnswer(Reply):
    """What the client of one of kproc's own operations is told."""

    error: str | None = None
    result: Any = None


CHANGE: Final[Call[Change, Changed]] = Call("change", Change, Changed)
PRODUCER_IDS: Final[Call[ProducerIdsWanted, ProducerIds]] = Call(
    "allocate_producer_ids", ProducerIdsWanted, ProducerIds
)
LEADER_EPOCHS: Final[Call[LeaderEpochsWanted, LeaderEpochs]] = Call(
    "raise_leader_epochs", LeaderEpochsWanted, LeaderEpochs
)
SET_LOG_LEVELS: Final[Call[LogLevels, Outcome]] = Call("set_log_levels", LogLevels, Outcome)
OWN: Final[Call[OwnRequest, OwnAnswer]] = Call("own", OwnRequest, OwnAnswer)

OnChanged = Callable[[Changed | Lost], None]


class AskController(Protocol):
    """How a Handler asks the controller."""

    def __call__(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None], /) -> None: ...


def failure_of(reply: Outcome | Lost) -> KafkaError | None:
    """Why an operation failed as a whole, or None. What was lost with the controller can be asked again."""
    if isinstance(reply, Lost):
        return lost_with_controller()
    if reply.failure is None:
        return None
    code, message = reply.failure
    return KafkaError(ErrorCode(code), message)


def fields_of(reply: Changed | Lost) -> dict[str, Any]:
    """The fields of the response; KafkaError if the operation failed as a whole."""
    failure = failure_of(reply)
    if failure is not None:
        raise failure
    assert isinstance(reply, Changed)
    return reply.fields
