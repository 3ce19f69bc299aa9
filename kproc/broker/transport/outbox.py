"""Outbox and Inbox: send whole messages over a link whose ring may be full, or smaller than a message.

No agent ever blocks on a ring, because two that wait for each other would never go on. Messages that do not fit are
queued in the sender's memory, in order. While `has_overflow` is true the sender accepts no more work from that peer.
The queue is bounded by the requests in work, which the Processors bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from kproc.broker.transport.agent import Receiver, Sender, Wakeable
from kproc.broker.transport.envelope import CHUNK

Buffer = bytes | bytearray | memoryview


class _Publishes(Protocol):
    """What an outbox needs of the sending end of a link."""

    capacity: int

    def publish(self) -> None: ...
    def free_bytes(self) -> int: ...
    def waiting(self, limit: int) -> int: ...
    def untaken(self) -> list[tuple[int, bytes]] | None: ...


class _Gone:
    """The sending end of a link that is released."""

    capacity = 0

    def try_push(self, kind: int, *parts: Buffer) -> bool:
        return True

    def publish(self) -> None:
        """Nothing was written."""

    def wake(self) -> None:
        """Nobody sleeps there."""

    def free_bytes(self) -> int:
        return 0

    def waiting(self, limit: int) -> int:
        return 0

    def untaken(self) -> list[tuple[int, bytes]] | None:
        return None


class Outbox:
    """The sending side of one link. `push` never fails; `flush` publishes and wakes the peer.

    `is_dirty` and `has_overflow` are read-only to others. They are fields because every duty cycle reads them, and a
    property would cost a call.
    """

    __slots__ = (
        "_overflow",
        "_record_bytes_max",
        "_sender",
        "_try_push",
        "_waker",
        "has_overflow",
        "is_dirty",
    )

    def __init__(self, sender: Sender, waker: Wakeable) -> None:
        self._sender: _Publishes = sender
        self._waker: Wakeable = waker
        self._try_push = sender.try_push
        self._record_bytes_max = sender.record_bytes_max
        self._overflow: deque[tuple[int, bytes | memoryview]] = deque()
        self.is_dirty = False  # Whether `flush` has something to do.
        self.has_overflow = False

    def close(self) -> None:
        """Release the link of a peer that has ended. What is pushed from now on is dropped.

        Requests and calls that wait for minutes hold the outbox that their answers go to. Without this, each of them
        would keep the ring's mapping and the eventfd of a dead peer.
        """
        self._sender = self._waker = gone = _Gone()
        self._try_push = gone.try_push
        self._overflow.clear()
        self.is_dirty = self.has_overflow = False

    def is_closed(self) -> bool:
        """Whether the peer has ended, and nobody gets what is pushed."""
        return isinstance(self._sender, _Gone)

    def push(self, kind: int, *parts: Buffer) -> None:
        """Queue one message; the caller's buffers may be reused when this returns."""
        self.is_dirty = True
        if not self._overflow:
            try:
                if self._try_push(kind, *parts):
                    return
            except ValueError:
                # Longer than a record may be: sent in pieces, below. A check in advance would cost every push.
                pass
        whole: bytes | memoryview = b"".join(parts)
        limit = self._record_bytes_max
        if len(whole) > limit:
            whole = memoryview(whole)  # A copy of each piece would take 1 ms a megabyte.
        start = 0
        while len(whole) - start > limit:
            self._overflow.append((CHUNK, whole[start : start + limit]))
            start += limit
        self._overflow.append((kind, whole[start:] if start else whole))
        self.has_overflow = True

    def flush(self) -> None:
        """Move queued messages into the ring as far as they fit, publish once, wake the peer if it sleeps."""
        if not self.is_dirty:
            return
        overflow = self._overflow
        while overflow and self._try_push(overflow[0][0], overflow[0][1]):
            overflow.popleft()
        # In this order: who is woken must find what it was woken for. Also with an overflow: the peer makes room for
        # the rest when it has seen the beginning.
        self._sender.publish()
        self._waker.wake()
        self.is_dirty = self.has_overflow = bool(overflow)

    def overflow_count(self) -> int:
        return len(self._overflow)

    def waiting(self, limit: int) -> int:
        """Records that the peer has not taken, queued ones included; counted up to about `limit`."""
        return self._sender.waiting(limit) + len(self._overflow)

    def is_over(self) -> bool:
        """Whether the peer has ended in order, and takes no more."""
        return self._sender.untaken() is not None

    def untaken(self) -> list[tuple[int, memoryview]]:
        """The messages that the peer never took, queued ones included; none unless it has ended in order."""
        records = self._sender.untaken()
        if records is None:
            return []
        return _join(
            [(kind, memoryview(record)) for kind, record in (*records, *self._overflow)], bytearray()
        )[0]

    def fill_bytes(self) -> int:
        return self._sender.capacity - self._sender.free_bytes()

    @property
    def capacity(self) -> int:
        return self._sender.capacity


class Inbox:
    """The receiving side of one link: joins chunks into whole messages."""

    __slots__ = ("_partial", "_receiver", "is_empty", "release")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._partial = bytearray()
        self.release = receiver.release
        self.is_empty = receiver.is_empty

    def poll(self, limit: int) -> Sequence[tuple[int, memoryview]]:
        """Take up to `limit` records; the views are valid until `release()`."""
        while True:
            batch = self._receiver.poll(limit)
            # The pairs as a dict have the kinds as keys: made and searched in C, which a loop over the pairs is not.
            if not self._partial and CHUNK not in dict(batch):
                return batch
            messages, self._partial = _join(batch, self._partial)
            if messages or not batch:
                return messages
            # There were only pieces, and they are copied. The caller releases only records that it got, so release
            # here: a message longer than the ring needs this room for its further pieces.
            self.release()

    def end(self) -> None:
        """Poll no more, and tell the sender so."""
        # Who would read on from the middle of a message could not tell what it reads.
        if not self._partial:
            self._receiver.end()


def _join(
    batch: Sequence[tuple[int, memoryview]], partial: bytearray
) -> tuple[list[tuple[int, memoryview]], bytearray]:
    """The whole messages of a batch that begins within one, and the beginning of the next."""
    messages: list[tuple[int, memoryview]] = []
    for kind, view in batch:
        if kind == CHUNK:
            partial += view
        elif partial:
            partial += view
            messages.append((kind, memoryview(partial)))
            partial = bytearray()
        else:
            messages.append((kind, view))
    return messages, partial
