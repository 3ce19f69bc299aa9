"""Common parts of the five APIs on the states of share partitions: rows of requests, and rows of responses.

All of them name a group, topics by id, and partitions. Each partition is an item for its share coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kproc.broker.peers.coordinator_call import Fields, Item, ItemOperation
from kproc.broker.request.division import rows_at
from kproc.broker.share.state.coordinator import ShareCoordinator
from kproc.broker.share.state.messages import PersistedState, StateBatch, state_key
from kproc.common.errors import ErrorCode
from kproc.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

A = TypeVar("A")

STATE_ROWS: Final = rows_at("topics.partitions", "results.partitions")
_MESSAGES: Final[Mapping[int, str]] = {
    ErrorCode.FENCED_LEADER_EPOCH: "The leader epoch in the request is older than the epoch on the broker.",
    ErrorCode.FENCED_STATE_EPOCH: "The coordinator rejected the request because the state epoch did not match.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
}
# Fields of a row that must not be negative, in the order in which Kafka checks them.
_CHECKED: Final = (
    ("partition", "partition id"),
    ("leader_epoch", "leader epoch"),
    ("state_epoch", "state epoch"),
)


def find_negative(row: Fields) -> str | None:
    """Return Kafka's message for the first field that must not be negative but is. Return None if no field is."""
    for field, name in _CHECKED:
        if row.get(field, 0) < 0:
            return f"The {name} cannot be a negative number."
    return None


@dataclass(frozen=True)
class StateOperation(Generic[A]):
    """An operation of the share coordinator, and the functions that translate the rows of its API.

    verb: names the operation in error messages, as in "Unable to read share group state."
    arguments_of: makes the operation's arguments of a row. find_problem: returns the error message for an invalid row.
    fields_of: makes the fields of the response's row from a state.
    """

    verb: str
    operation: ItemOperation[ShareCoordinator, A, Any]
    arguments_of: Callable[[Fields], A]
    find_problem: Callable[[Fields], str | None] = find_negative
    fields_of: Callable[[PersistedState], Fields] = lambda _state: {}


def handle_states(context: RequestContext, request: Fields, operation: StateOperation[Any]) -> None:
    """Run an operation for each row of a request, and respond."""
    group_id = request["group_id"]
    # As in Kafka, a request without a group id, or with a topic without partitions, gets no results.
    if not group_id or any(not topic["partitions"] for topic in request["topics"]):
        context.reply({"results": []})
        return
    # Each row of the request with its topic's id, and the error message for an invalid row.
    rows = [
        (topic["topic_id"] or ZERO_UUID, row, operation.find_problem(row))
        for topic in request["topics"]
        for row in topic["partitions"]
    ]
    items = [
        Item(state_key(group_id, topic_id, row["partition"]), operation.arguments_of(row))
        for topic_id, row, problem in rows
        if problem is None
    ]

    def on_done(outcomes: list[Any]) -> None:
        left = iter(outcomes)
        results = [
            _result(row, next(left), operation)
            if problem is None
            else _failed(row, ErrorCode.INVALID_REQUEST, problem)
            for _, row, problem in rows
        ]
        context.reply(_by_topic(request, results))

    if items:
        operation.operation.send(context, items, on_done)
    else:
        on_done([])


def _by_topic(request: Fields, results: Iterable[Fields]) -> Fields:
    """Return the response with these rows, in the order of the request."""
    left = iter(results)
    topics = [
        {"topic_id": topic["topic_id"], "partitions": [next(left) for _ in topic["partitions"]]}
        for topic in request["topics"]
    ]
    return {"results": topics}


def failed_states(request: Fields, code: int, message: str | None) -> Fields:
    """Return a response with an error in every row."""
    rows = [row for topic in request["topics"] for row in topic["partitions"]]
    return _by_topic(request, [_failed(row, code, message) for row in rows])


def encode_batches(batches: tuple[StateBatch, ...]) -> list[Fields]:
    """Return the response's rows of a state's batches."""
    return [
        {
            "first_offset": each.first,
            "last_offset": each.last,
            "delivery_state": each.state,
            "delivery_count": each.delivery_count,
        }
        for each in batches
    ]


def _result(row: Fields, outcome: Any, operation: StateOperation[Any]) -> Fields:
    if isinstance(outcome, PersistedState):
        return {**_failed(row, ErrorCode.NONE, None), **operation.fields_of(outcome)}
    message = None
    if outcome == ErrorCode.INVALID_REQUEST:
        message = f"{operation.verb.capitalize()} operation on uninitialized share partition not allowed."
    elif outcome:
        message = _MESSAGES.get(outcome) or f"Unable to {operation.verb} share group state."
    return _failed(row, outcome, message)


def _failed(row: Fields, code: int, message: str | None) -> Fields:
    """Return a row of the response. All versions have defaults for the other fields."""
    return {"partition": row["partition"], "error_code": int(code), "error_message": message}
