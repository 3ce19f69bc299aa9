"""Intercepted answers: one request's answer is delayed, changed or discarded on its way to the Processor.

Every answer of a request leaves through the outbox of its `peer`. `intercept` gives the request a peer with an
AnswerOutbox, so that all APIs are covered, parked requests and Fetches with ranges of files included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from kproc.broker.role.purgatory import DelayedCall
from kproc.broker.transport.envelope import (
    CLOSE,
    HEAD_BYTES,
    NO_OP,
    SEND,
    SEND_PARTS,
    TIMES,
    decode_parts,
)
from kproc.common.deadlines import NEVER

if TYPE_CHECKING:
    from kproc.broker.request.request import HandlerRequest
    from kproc.broker.role.purgatory import Purgatory
    from kproc.broker.transport.outbox import Buffer, Outbox

UNTIL_STOP_NS: Final = NEVER - 1
"""Deadline of an operation that only a stop, a scale-down or a disconnect ends."""
_ANSWERS: Final = (SEND, SEND_PARTS, NO_OP, CLOSE)


class Answer:
    """An intercepted answer. Exactly one of `send`, `send_frame` and `close` is called, once."""

    __slots__ = ("_before", "_head", "_payload", "kind", "request")

    def __init__(
        self, request: HandlerRequest, kind: int, record: bytes, before: list[tuple[int, bytes]]
    ) -> None:
        self.request = request
        self.kind = kind
        self._head, self._payload = record[:HEAD_BYTES], record[HEAD_BYTES:]
        self._before = before  # Records that must be right in front of the answer.

    @property
    def has_frame(self) -> bool:
        """True if the client gets a response. False for acks=0, and if the connection is closed."""
        return self.kind in (SEND, SEND_PARTS)

    def frame(self) -> bytes:
        """Return the frame of the response. Reads the ranges of files. Raises OSError if a file is gone."""
        if self.kind == SEND:
            return self._payload
        return b"".join(decode_parts(memoryview(self._payload), _read_range))

    def send(self) -> None:
        """Send the answer as it is."""
        self._push(self.kind, self._payload)

    def send_frame(self, frame: bytes) -> None:
        """Send this frame instead of the answer's own frame."""
        self._push(SEND, frame)

    def close(self, frame: bytes = b"") -> None:
        """Close the connection instead of sending the answer. Send the bytes of `frame` first."""
        self.request.is_closed = True
        self.request.record_lost_answer("CloseConnection", len(frame))
        self._push(CLOSE, frame)

    def _push(self, kind: int, payload: bytes) -> None:
        # While the answer was delayed, the connection can have migrated, so take the peer from the request.
        outbox = self.request.peer.outbox
        for each in self._before:
            outbox.push(*each)
        outbox.push(kind, self._head, payload)


class AnswerOutbox:
    """Stands in for a Processor's outbox until the answer of one request comes, and passes all other records on."""

    __slots__ = ("_before", "_on_answer", "_real", "_request", "peer")

    def __init__(self, request: HandlerRequest, on_answer: Callable[[Answer], None]) -> None:
        self._request = request
        self._real = request.peer
        # A copy of the request's peer, with this outbox. The copy shares the tables of connections with the real peer.
        self.peer = copy(request.peer)
        self.peer.outbox = cast("Outbox", self)
        self._on_answer = on_answer
        self._before: list[tuple[int, bytes]] = []

    def push(self, kind: int, *parts: Buffer) -> None:
        if kind == TIMES:
            self._before.append((kind, b"".join(parts)))
        elif kind not in _ANSWERS:
            self._real.outbox.push(kind, *parts)
        else:
            request = self._request
            if request.peer is self.peer:
                request.peer = self._real
            answer = Answer(request, kind, b"".join(parts), self._before)
            try:
                self._on_answer(answer)
            except Exception as error:  # noqa: BLE001 - contained: the API's code has done its part
                request.services.containment.caught("a fault in an answer", error)
                answer.close()


def intercept(request: HandlerRequest, on_answer: Callable[[Answer], None]) -> None:
    """Call `on_answer` with the request's answer instead of sending it."""
    request.peer = AnswerOutbox(request, on_answer).peer


def hold(request: HandlerRequest, purgatory: Purgatory, deadline_ns: int, on_end: Callable[[], None]) -> None:
    """Call `on_end` at the deadline or at a stop, but not if the client disconnects before."""

    def end() -> None:
        request.stop_waiting()
        on_end()

    operation = DelayedCall(deadline_ns, end)
    operation.owner = request
    purgatory.watch(operation, ())
    request.when_gone(partial(purgatory.cancel, operation))


def _read_range(path: bytes, inode: int, position: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A compaction can have renamed another file to this path. The inode number shows that.
        if os.fstat(descriptor).st_ino != inode:
            raise FileNotFoundError(f"another file has replaced {os.fsdecode(path)} since the Fetch")
        return os.pread(descriptor, length, position)
    finally:
        os.close(descriptor)
