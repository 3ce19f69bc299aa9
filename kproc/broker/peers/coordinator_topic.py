"""The internal topic that coordinators store their state in, made when a client first needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed, fields_of
from kproc.common.errors import KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


def when_made(context: RequestContext, topic: str, on_made: Callable[[str | None], None]) -> None:
    """Make the topic unless it is there; `on_made` gets None, or why it could not be made."""
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
