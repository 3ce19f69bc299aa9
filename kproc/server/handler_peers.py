"""HandlerPeers: whom a Handler can ask, as the APIs see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kproc.api.context import OnReply
from kproc.server.roles import CLEANER, CONTROLLER, handler_id
from kproc.transport.agent import AgentId


class UnlinkedCall(NamedTuple):
    """A call to a Handler that is not attached, as far as we have heard."""

    peer: AgentId
    op: str
    body: Any
    on_reply: OnReply
    payload: bytes


class HandlerPeers:
    """The `Peers` of api/context.py over this Handler's links."""

    def __init__(self, ask: Callable[..., None]) -> None:
        self._ask = ask

    def call(
        self, handler: int, op: str, body: Any, on_reply: OnReply, payload: bytes | memoryview = b""
    ) -> None:
        self._ask(handler_id(handler), op, body, on_reply, payload)

    def call_controller(self, op: str, body: dict[str, Any], on_reply: OnReply) -> None:
        self._ask(CONTROLLER, op, body, on_reply)

    def call_cleaner(self, op: str, body: dict[str, Any], on_reply: OnReply) -> None:
        self._ask(CLEANER, op, body, on_reply)
