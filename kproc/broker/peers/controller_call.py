"""Asking the controller on a client's behalf: the part that all admin APIs share.

The request is parked until the reply comes, which is after every Handler has taken in the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed, fields_of
from kproc.broker.cluster.client_quotas import CONTROLLER_MUTATION_RATE
from kproc.broker.cluster.mutation_quotas import CLIENT
from kproc.broker.cluster.topic_changes import THROTTLE
from kproc.broker.request.registry import ErrorResponse
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Fields = dict[str, Any]

# Kafka's bound on the records of one operation. Here it is one on the rows that ask for them, so that nobody walks
# through a million rows to find that they are too many: up to so many rows make a record, a row in them included.
RECORDS_MAX: Final = 10_000
_ROWS_OF_RECORD: Final = {"alter_configs": 2, "incremental_alter_configs": 2, "alter_client_quotas": 4}


def _as_it_is(reply: Fields) -> Fields:
    return reply


def answer_with_reply(
    context: RequestContext,
    op: str,
    body: Fields,
    *,
    request: Fields,
    error_response: ErrorResponse,
    complete: Callable[[Fields], Fields] = _as_it_is,
    has_any: bool = True,
) -> None:
    """Send `op` to the controller; its reply has the shape of the response and becomes the answer.

    `complete` adds what the controller is not asked about: what the client has no right for. Without `has_any` there is
    nothing else.
    """
    if not has_any:
        context.reply(complete(error_response(request, ErrorCode.NONE, None)))
        return

    def on_reply(reply: Changed | Lost) -> None:
        try:
            fields = fields_of(reply)
        except KafkaError as error:
            fields = error_response(request, error.code, error.message)
        else:
            _throttle(context, fields.get(THROTTLE, 0))
        context.reply(complete(fields))

    context.ask_controller(CHANGE, Change(op, body), on_reply)


def check_size(op: str, _context: RequestContext, request: Fields) -> None:
    """Reject a request for more changes than the controller decides on at once: other clients wait meanwhile."""
    if _room_left(request, RECORDS_MAX * _ROWS_OF_RECORD.get(op, 1)) < 0:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


def _room_left(fields: Mapping[str, Any], room: int) -> int:
    """`room` less the rows in these fields and in their rows; below 0 as soon as there are more."""
    for value in fields.values():
        if isinstance(value, list) and value and isinstance(value[0], (dict, str)):
            room -= len(value)
            for row in value if isinstance(value[0], dict) else ():
                if room < 0:
                    return room
                room = _room_left(row, room)
    return room


def _throttle(context: RequestContext, duration_ms: int) -> None:
    """Throttle a client that changes more than its quota allows."""
    if duration_ms:
        context.services.client_rates.note_throttle(CONTROLLER_MUTATION_RATE, duration_ms)
        context.begin_throttle(duration_ms)


def with_client(context: RequestContext, body: Fields, *, strict_since: int) -> Fields:
    """The body of an operation that makes or deletes partitions, which counts for its client.

    Since that version of the API, what is above the client's quota is refused; before, its connection is throttled.
    """
    client_id = (context.client_id_bytes or b"").decode("utf-8", "replace")
    return {**body, CLIENT: [context.principal.name, client_id, context.api_version >= strict_since]}
