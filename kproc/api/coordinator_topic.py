"""The internal topic that coordinators store their state in, made when a client first needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kproc.cluster.controller import failure_of

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


def when_made(context: RequestContext, topic: str, on_made: Callable[[str | None], None]) -> None:
    """Make the topic unless it is there; `on_made` gets None, or why it could not be made."""
    image = context.services.image
    if image.topic(topic) is not None:
        on_made(None)
        return

    def on_reply(reply: dict[str, Any]) -> None:
        if context.services.image.topic(topic) is not None:
            on_made(None)
            return
        error = failure_of(reply)
        on_made((error.message if error is not None else reply["topics"][0]["error_message"]) or "")

    context.call_controller("auto_create_topics", {"names": [topic]}, on_reply)
