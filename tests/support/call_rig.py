"""Two agents that call each other over a link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kproc.broker.calls.call_links import Calls, IsGone, handle_raw_call
from kproc.broker.calls.calls import Call, Lost, OnResult, Reply
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import CALL, REPLY
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.containment import Containment
from tests.support.links import LinkMaker

PEER, OTHER = AgentId("handler", 1), AgentId("handler", 2)
PlainReply = dict[str, Any]
OnReply = Callable[[PlainReply | None], None]


class Plain(msgspec.Struct, array_like=True):
    value: Any


class Answer(Reply):
    value: Any = None


def plain_call(op: str) -> Call[Plain, Answer]:
    return Call(op, Plain, Answer)


def into(replies: list[PlainReply]) -> Callable[[Answer | Lost], None]:
    """Gathers what the replies bring."""
    return lambda reply: replies.append({"lost": True} if isinstance(reply, Lost) else reply.value)


class CallRig:
    """Two agents: one that asks, one that answers as the test says."""

    def __init__(self, link_kind: str) -> None:
        self._maker = LinkMaker(link_kind)
        near, far = self._maker.make(AgentId("handler", 0), PEER)
        self.containment, self.far_containment = Containment(), Containment()
        self.calls = Calls(self.containment)
        self.outbox = Outbox(near.sender, near.waker)
        self._inbox = Inbox(near.receiver)
        self._far_outbox, self._far_inbox = Outbox(far.sender, far.waker), Inbox(far.receiver)
        self.asked: list[tuple[str, Any, bytes, OnReply]] = []

    def close(self) -> None:
        self._maker.__exit__(None, None, None)

    def ask(
        self, op: str, body: Any = None, payload: bytes = b"", *, peer: AgentId = PEER
    ) -> list[PlainReply]:
        replies: list[PlainReply] = []
        self.calls.send(self.outbox, peer, plain_call(op), Plain(body), into(replies), payload)
        return replies

    def deliver(self) -> None:
        """Bring the calls to the peer and its replies back."""
        self.outbox.flush()
        for kind, view in self._far_inbox.poll(100):
            assert kind == CALL
            handle_raw_call(view, self._far_outbox, self._serve, self.far_containment)
        self._far_inbox.release()
        self._far_outbox.flush()
        for kind, view in self._inbox.poll(100):
            assert kind == REPLY
            self.calls.handle_reply(view)
        self._inbox.release()

    def _serve(
        self, op: str, raw: msgspec.Raw, payload: memoryview, on_reply: OnResult[Any], _is_gone: IsGone
    ) -> None:
        def answer(reply: PlainReply | None) -> None:
            on_reply(None if reply is None else Answer(reply, is_open=bool(reply.get("is_open"))))

        body = plain_call(op).decode_body(raw).value
        self.asked.append((op, body, bytes(payload), answer))
