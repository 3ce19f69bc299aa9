"""The internal topic that coordinators store their state in. It is created when a client first needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed, fields_of
from kproc.common.errors import KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


def create_if_missing(context: RequestContext, topic: str, on_created: Callable[[str | None], None]) -> None:
    """Create an internal topic unless it exists. `on_created` gets None, or the reason why it cannot be created."""
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
