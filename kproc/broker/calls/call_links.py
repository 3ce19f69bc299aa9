"""Calls between Handlers, the controller and the cleaner: an operation, a body, and a reply by callback.

A call is a CALL record (token, msgpack [op, body], raw payload). Its reply is a REPLY record with the same token. A
reply with `is_open` is followed by another one. Each call is declared with its types (calls/calls.py), and a
`CallHandlers` handles it.

When a peer dies, every open call to it gets the reply `Lost`, so that no request waits for ever. If the peer ended in
order, the calls that it never read can be sent to its successor instead (`Calls.withdraw`).

Bytes of a peer that cannot be decoded fail their call, as if the peer had died. They never end the role that reads
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from kproc.broker.calls.calls import B, Call, Lost, OnResult, R
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import CALL, REPLY, TOKEN
from kproc.broker.transport.outbox import Outbox
from kproc.common.containment import Containment, Owner

Payload = memoryview | bytearray
IsGone = Callable[[], bool]  # Returns True if the caller has ended.
HandleRaw = Callable[[str, msgspec.Raw, memoryview, OnResult[Any], IsGone], None]

_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode
_NIL: Final = _encode(None)


class _Open(NamedTuple):
    """A call that was sent and has not got its last reply."""

    peer: AgentId
    on_reply: Callable[[Any], None]
    owner: Owner | None
    call: Call[Any, Any]

    def decode_reply(self, raw: memoryview) -> Any:
        """Decode a reply of this call.

        Return Lost if the peer could not handle the call because of an unexpected exception.
        """
        # nil: the peer lives, but the call raised an unexpected exception in it, which the peer has logged. The outcome
        # is unknown, as if the peer had died.
        return Lost() if raw == _NIL else self.call.decode_reply(raw)


class UnreadCall(NamedTuple):
    """A call that its peer never read, so it had no effect. `body` is still encoded and can be sent again as it is."""

    call: Call[Any, Any]
    body: msgspec.Raw
    payload: memoryview
    on_reply: Callable[[Any], None]
    owner: Owner | None


class Calls:
    """The calls that one role has sent and that have not got their last reply, by token."""

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self._open: dict[int, _Open] = {}
        self._tokens = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def send(
        self,
        outbox: Outbox | None,
        peer: AgentId,
        call: Call[B, R],
        body: B,
        on_reply: Callable[[R | Lost], None],
        payload: bytes | memoryview = b"",
    ) -> None:
        """Send a call. `on_reply` gets each reply, or Lost if the peer dies.

        Without an `outbox` there is no link to the peer, and `on_reply` gets Lost at once. An exception in `on_reply`
        fails the request or operation that this role is working on during this `send`.
        """
        self._push(outbox, call.name, body, payload, _Open(peer, on_reply, self._containment.owner, call))

    def _push(
        self, outbox: Outbox | None, op: str, body: Any, payload: bytes | memoryview, made: _Open
    ) -> None:
        if outbox is None:  # The peer is being restarted.
            made.on_reply(Lost())
            return
        token = next(self._tokens)
        self._open[token] = made
        encoded = _encode([op, body])
        outbox.push(CALL, TOKEN.pack(token, len(encoded)), encoded, payload)

    def handle_reply(self, view: memoryview) -> None:
        """Pass a REPLY record to the callback of its call. The call stays open if more replies follow."""
        found: _Open | None = None
        reply: Any = Lost()
        try:
            token, length = TOKEN.unpack_from(view)
            found = self._open.get(token)
            if found is not None:
                reply = found.decode_reply(view[TOKEN.size : TOKEN.size + length])
        except Exception as error:  # noqa: BLE001 - contained
            self._containment.caught("the reply of another role", error)
        if found is None:
            # The call was already reported as lost, because its peer was detached before we read this reply.
            return
        if isinstance(reply, Lost) or not reply.is_open:
            del self._open[token]
        self._containment.run("the callback of a reply", found.owner, found.on_reply, reply)

    def withdraw(self, outbox: Outbox) -> Iterator[UnreadCall]:
        """Yield the calls that a peer never read before it ended in order, so that they can be sent to another role.

        A yielded call is no longer open.
        """
        for kind, view in outbox.untaken():
            if kind != CALL:
                continue
            token, length = TOKEN.unpack_from(view)
            made = self._open.get(token)
            if made is not None:
                del self._open[token]
                _, body = _decode_call(view[TOKEN.size : TOKEN.size + length])
                yield UnreadCall(made.call, body, view[TOKEN.size + length :], made.on_reply, made.owner)

    def fail_all(self, peer: AgentId) -> frozenset[str]:
        """Reply Lost to every open call to a peer that has died. Return the names of their operations."""
        # Collect the tokens first, because a callback can send another call, which changes the dictionary.
        lost = [token for token, each in self._open.items() if each.peer == peer]
        ops: set[str] = set()
        for token in lost:
            each = self._open.pop(token)
            ops.add(each.call.name)
            self._containment.run("the callback of a lost call", each.owner, each.on_reply, Lost())
        return frozenset(ops)


# A function by which another role calls a Handler: (index, call, body, on_reply).
AskHandler = Callable[[int, Call[Any, Any], Any, Callable[[Any], None]], None]


class CallHandler(NamedTuple):
    """The decoder of a call's body, and the function that handles the call."""

    decode: Callable[[msgspec.Raw], Any]
    handle: Callable[[Any, Payload, OnResult[Any]], None]


class CallHandlers:
    """The calls that a role handles, by operation. A handler may reply later."""

    def __init__(self, containment: Containment) -> None:
        self.by_op: dict[str, CallHandler] = {}
        self._containment = containment

    def add(self, call: Call[B, R], handle: Callable[[B, OnResult[R]], None]) -> None:
        self.add_with_payload(call, lambda body, _payload, on_reply: handle(body, on_reply))

    def add_with_payload(self, call: Call[B, R], handle: Callable[[B, Payload, OnResult[R]], None]) -> None:
        self.by_op[call.name] = CallHandler(call.decode_body, handle)

    def handle_raw(
        self, op: str, raw: msgspec.Raw, payload: Payload, on_reply: OnResult[Any], _is_gone: IsGone
    ) -> None:
        """Handle a call from a link. After an unexpected exception, reply None, which the caller reads as Lost."""
        try:
            handler = self.by_op[op]
            handler.handle(handler.decode(raw), payload, on_reply)
        except Exception as error:  # noqa: BLE001 - contained
            self._containment.caught(f"{op}, a call of another role,", error)
            on_reply(None)

    def handle_own(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        """Handle a call that this role makes to itself, without a link."""

        def on_result(reply: R | None) -> None:
            on_reply(Lost() if reply is None else reply)

        self.by_op[call.name].handle(body, bytearray(), on_result)


def handle_raw_call(view: memoryview, outbox: Outbox, handle: HandleRaw, containment: Containment) -> None:
    """Decode a CALL record and pass it to `handle(op, raw body, payload, on_reply, is_gone)`, which may reply later."""
    token = 0

    def on_reply(reply: Any) -> None:
        encoded = _encode(reply)
        outbox.push(REPLY, TOKEN.pack(token, len(encoded)), encoded)

    try:
        token, length = TOKEN.unpack_from(view)
        op, raw = _decode_call(view[TOKEN.size : TOKEN.size + length])
    except Exception as error:  # noqa: BLE001 - contained
        containment.caught("a call of another role", error)
        on_reply(None)
        return
    handle(op, raw, view[TOKEN.size + length :], on_reply, outbox.is_closed)
