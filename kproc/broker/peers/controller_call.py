"""Calls to the controller for a client's request: the part that all admin APIs share.

The request is parked until the reply comes. The controller replies when every Handler has applied the change, so the
client's next request sees it at any Handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed, fields_of
from kproc.broker.cluster.client_quotas import CONTROLLER_MUTATION_RATE
from kproc.broker.cluster.mutation_quotas import CLIENT
from kproc.broker.cluster.topic_changes import THROTTLE
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Fields = dict[str, Any]

# Kafka's limit on the metadata records of one operation. Here it limits the rows of the request, which are cheaper to
# count: _ROWS_OF_RECORD has how many rows, nested ones included, can make one record.
RECORDS_MAX: Final = 10_000
_ROWS_OF_RECORD: Final = {"alter_configs": 2, "incremental_alter_configs": 2, "alter_client_quotas": 4}


def _as_it_is(reply: Fields) -> Fields:
    return reply


def change_metadata(
    context: RequestContext,
    op: str,
    body: Fields,
    failed: Callable[[int, str | None], Fields],
    *,
    complete: Callable[[Fields], Fields] = _as_it_is,
    has_any: bool = True,
) -> None:
    """Send `op` to the controller and respond with its reply, which has the fields of the response.

    body: the fields for the controller.
    failed: makes the response from the error code and message of the whole operation.
    complete: adds the rows that were not sent to the controller, because the client lacks the right.
    has_any: False if no rows are left for the controller. The response then has only what `complete` adds.
    """
    if not has_any:
        context.reply(complete(failed(ErrorCode.NONE, None)))
        return

    def on_reply(reply: Changed | Lost) -> None:
        try:
            fields = fields_of(reply)
        except KafkaError as error:
            fields = failed(error.code, error.message)
        else:
            _throttle(context, fields.get(THROTTLE, 0))
        context.reply(complete(fields))

    context.ask_controller(CHANGE, Change(op, body), on_reply)


def check_size(op: str, _context: RequestContext, request: Fields) -> None:
    """Reject a request with more changes than the controller may handle at once, because other clients wait meanwhile.

    Raises POLICY_VIOLATION with Kafka's message and the limit.
    """
    rows_max = RECORDS_MAX * _ROWS_OF_RECORD.get(op, 1)
    if _room_left(request, rows_max) < 0:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "Unable to perform excessively large batch operation. "
            f"The limit is {rows_max} rows in one request.",
        )


def _room_left(fields: Mapping[str, Any], room: int) -> int:
    """Return `room` minus the number of rows in these fields, nested rows included. Stop as soon as it is below 0."""
    for value in fields.values():
        if isinstance(value, list) and value and isinstance(value[0], (dict, str)):
            room -= len(value)
            for row in value if isinstance(value[0], dict) else ():
                if room < 0:
                    return room
                room = _room_left(row, room)
    return room


def _throttle(context: RequestContext, duration_ms: int) -> None:
    """Throttle a client that changes more than its quota allows, for this time in ms. 0: do nothing."""
    if duration_ms:
        context.services.client_rates.record_throttle(CONTROLLER_MUTATION_RATE, duration_ms)
        # KIP-219: respond now and stop reading the connection, instead of delaying the response.
        context.start_throttle(duration_ms, CONTROLLER_MUTATION_RATE)


def with_client(context: RequestContext, body: Fields, *, strict_since: int) -> Fields:
    """Return the body of an operation that creates or deletes partitions, with the client that it counts for (KIP-599).

    From API version `strict_since` on, changes above the client's quota are rejected. In earlier versions the changes
    are made and the connection is throttled.
    """
    client_id = (context.client_id_bytes or b"").decode("utf-8", "replace")
    return {**body, CLIENT: [context.principal.name, client_id, context.api_version >= strict_since]}


def create_topic_if_missing(
    context: RequestContext, topic: str, on_created: Callable[[str | None], None]
) -> None:
    """Create an internal topic unless it exists.

    `on_created` gets None, or the error message if it cannot be created.
    """
    image = context.services.image
    if image.topic(topic) is not None:
        on_created(None)
        return

    def on_reply(reply: Changed | Lost) -> None:
        if context.services.image.topic(topic) is not None:
            on_created(None)
            return
        try:
            message = fields_of(reply)["topics"][0]["error_message"]
        except KafkaError as error:
            message = error.message
        on_created(message or "")

    context.ask_controller(CHANGE, Change("auto_create_topics", {"names": [topic]}), on_reply)
