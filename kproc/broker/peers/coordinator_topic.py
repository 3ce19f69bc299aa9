"""The internal topic that coordinators store their state in. It is created when a client first needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed, fields_of
from kproc.common.errors import KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


def when_made(context: RequestContext, topic: str, on_made: Callable[[str | None], None]) -> None:
    """Create the topic unless it exists. `on_made` gets None, or the reason why it could not be created."""
    image = context.services.image
    if image.topic(topic) is not None:
        on_made(None)
        return

    def on_reply(reply: Changed | Lost) -> None:
        if context.services.image.topic(topic) is not None:
            on_made(None)
            return
        try:
            message = fields_of(reply)["topics"][0]["error_message"]
        except KafkaError as error:
            message = error.message
        on_made(message or "")

    context.ask_controller(CHANGE, Change("auto_create_topics", {"names": [topic]}), on_reply)
