"""Asking the controller on a client's behalf: the part that all admin APIs share.

The request is parked until the reply comes, which is after every Handler has taken in the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kproc.api.registry import ErrorResponse
from kproc.cluster.client_quotas import CONTROLLER_MUTATION_RATE
from kproc.cluster.controller import failure_of
from kproc.cluster.mutation_quotas import CLIENT
from kproc.cluster.topic_changes import THROTTLE
from kproc.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

Fields = dict[str, Any]


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

    def on_reply(reply: Fields) -> None:
        error = failure_of(reply)
        if error is None:
            _throttle(context, reply.get(THROTTLE, 0))
        context.reply(
            complete(reply if error is None else error_response(request, error.code, error.message))
        )

    context.call_controller(op, body, on_reply)


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
