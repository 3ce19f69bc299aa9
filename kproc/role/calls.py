"""Calls between Handlers, the controller and the cleaner: an op, a body, and a reply by callback.

A call is a CALL record (token, msgpack [op, body], raw payload), its answer a REPLY with the same token. A
reply with `is_open` is followed by exactly one more. When the peer dies, every open call to it is answered
with {"lost": True}, so that no request waits for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kproc.containment import Containment, Owner
from kproc.transport.agent import AgentId
from kproc.transport.envelope import CALL, REPLY, TOKEN
from kproc.transport.outbox import Outbox

OnReply = Callable[[dict[str, Any]], None]
Serve = Callable[[str, Any, memoryview, OnReply], None]
# For payloads that had to be copied, too.
ServeKept = Callable[[str, Any, memoryview | bytearray, OnReply], None]

# The cleaner asks these of a partition's owner (compactor.py, compaction_calls.py).
PREPARE_COMPACTION: Final = "prepare_compaction"
SWAP_SEGMENTS: Final = "swap_segments"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Calls:
    """The calls of one agent that are not answered yet, by token."""

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self._open: dict[int, tuple[AgentId, OnReply, Owner | None]] = {}
        self._tokens = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def call(
        self,
        outbox: Outbox | None,
        peer: AgentId,
        op: str,
        body: Any,
        on_reply: OnReply,
        payload: bytes | memoryview = b"",
    ) -> None:
        """Ask `peer`; the caller flushes its outboxes at the end of its duty cycle."""
        if outbox is None:  # It is being restarted.
            on_reply({"lost": True})
            return
        token = next(self._tokens)
        self._open[token] = (peer, on_reply, self._containment.owner)
        encoded = _encode([op, body])
        outbox.push(CALL, TOKEN.pack(token, len(encoded)), encoded, payload)

    def take_reply(self, view: memoryview) -> None:
        """Pass a REPLY record to the callback of its call."""
        token, length = TOKEN.unpack_from(view)
        body = _decode(view[TOKEN.size : TOKEN.size + length])
        found = self._open.get(token) if body.get("is_open") else self._open.pop(token, None)
        if found is not None:
            self._containment.run("what a reply was for", found[2], found[1], body)

    def lose(self, peer: AgentId) -> None:
        """Answer every open call to a peer that has died with {"lost": True}."""
        lost = [token for token, (asked, _, _) in self._open.items() if asked == peer]
        for token in lost:
            _, on_reply, owner = self._open.pop(token)
            self._containment.run("what a lost call was for", owner, on_reply, {"lost": True})


def serve_call(view: memoryview, outbox: Outbox, serve: Serve) -> None:
    """Decode a CALL record and let `serve(op, body, payload, on_reply)` answer it, now or later."""
    token, length = TOKEN.unpack_from(view)
    op, body = _decode(view[TOKEN.size : TOKEN.size + length])

    def on_reply(reply: dict[str, Any]) -> None:
        encoded = _encode(reply)
        outbox.push(REPLY, TOKEN.pack(token, len(encoded)), encoded)

    serve(op, body, view[TOKEN.size + length :], on_reply)
