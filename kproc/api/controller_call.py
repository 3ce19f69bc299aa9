"""Asking the controller on a client's behalf: the part that all admin APIs share.

The request is parked until the reply comes, which is after every Handler has taken in the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.registry import ErrorResponse
from kproc.cluster.controller import failure_of

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

Fields = dict[str, Any]


def answer_with_reply(
    context: RequestContext, op: str, body: Fields, *, request: Fields, error_response: ErrorResponse
) -> None:
    """Send `op` to the controller; its reply has the shape of the response and becomes the answer."""

    def on_reply(reply: Fields) -> None:
        error = failure_of(reply)
        context.reply(reply if error is None else error_response(request, error.code, error.message))

    context.call_controller(op, body, on_reply)
