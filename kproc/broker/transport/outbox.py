"""Outbox and Inbox: send whole messages over a link whose ring may be full, or smaller than a message.

No agent ever blocks on a ring, because two agents that wait for each other would wait for ever. Messages that do not
fit are queued in the sender's memory, in order. While `has_overflow` is true the sender accepts no more work from that
peer. The number of requests in progress bounds the queue, and the Processors limit that number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kproc.broker.transport.agent import Receiver, Sender, Wakeable
from kproc.broker.transport.envelope import CHUNK

Buffer = bytes | bytearray | memoryview


class _ReleasedSender:
    """The sending end of a released link. It discards every message."""

    capacity = 0

    def try_push(self, kind: int, *parts: Buffer) -> bool:
        return True

    def publish(self) -> None:
        """Do nothing, because nothing was written."""

    def wake(self) -> None:
        """Do nothing, because the peer has ended."""

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
        self._sender: Sender | _ReleasedSender = sender
        self._waker: Wakeable = waker
        self._try_push = sender.try_push
        self._record_bytes_max = sender.record_bytes_max
        self._overflow: deque[tuple[int, bytes | memoryview]] = deque()
        self.is_dirty = False  # True if `flush` has something to do.
        self.has_overflow = False

    def close(self) -> None:
        """Release the link of a peer that has ended. Later messages are discarded.

        Requests and calls that wait for minutes hold the outbox for their responses. Without this, each of them would
        keep the ring's mapping and the eventfd of a dead peer.
        """
        self._sender = self._waker = gone = _ReleasedSender()
        self._try_push = gone.try_push
        self._overflow.clear()
        self.is_dirty = self.has_overflow = False

    def is_closed(self) -> bool:
        """Return True if the link was released, so that messages are discarded."""
        return isinstance(self._sender, _ReleasedSender)

    def push(self, kind: int, *parts: Buffer) -> None:
        """Enqueue one message. The caller may reuse its buffers when this returns. `flush` sends it."""
        self.is_dirty = True
        if not self.has_overflow:
            try:
                if self._try_push(kind, *parts):
                    return
            except ValueError:
                # The message is longer than a record may be, so send it in pieces, below. Checking the length before
                # would cost time at every push.
                pass
        self.has_overflow = True
        limit = self._record_bytes_max
        if sum(map(len, parts)) <= limit:
            self._overflow.append((kind, b"".join(parts)))
            return
        pieces: list[memoryview] = []
        for part in parts:
            # Slice a view of bytes, because a copy would take 1 ms per megabyte. Copy other buffers, because the caller
            # may reuse them.
            view = memoryview(part if isinstance(part, bytes) else bytes(part))
            pieces += [view[start : start + limit] for start in range(0, len(view), limit)]
        self._overflow += [(CHUNK, piece) for piece in pieces[:-1]]
        self._overflow.append((kind, pieces[-1]))

    def flush(self) -> None:
        """Move queued messages into the ring as far as they fit, publish once, and wake the peer if it sleeps."""
        if not self.is_dirty:
            return
        if self.has_overflow:
            self._move_overflow()
        # Publish before waking, because the peer must find the records when it wakes. Do both even if messages
        # overflow, because only the peer's polling frees ring space for them.
        self._sender.publish()
        self._waker.wake()
        self.is_dirty = self.has_overflow

    def _move_overflow(self) -> None:
        """Move queued messages into the ring as far as they fit."""
        overflow = self._overflow
        while overflow and self._try_push(*overflow[0]):
            overflow.popleft()
        self.has_overflow = bool(overflow)

    def overflow_count(self) -> int:
        return len(self._overflow)

    def waiting(self, limit: int) -> int:
        """Return how many records the peer has not polled, queued ones included. Stop counting at about `limit`."""
        return self._sender.waiting(limit) + len(self._overflow)

    def is_over(self) -> bool:
        """Return True if the peer has stopped cleanly (`Receiver.finish`) and will not poll any more."""
        return self._sender.untaken() is not None

    def untaken(self) -> list[tuple[int, memoryview]]:
        """Return the messages that the peer never polled, queued ones included.

        Empty unless the peer has stopped cleanly.
        """
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

    __slots__ = ("_partial", "_poll", "_receiver", "is_empty", "release")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._partial = bytearray()
        # Methods of the receiver that every pass calls, looked up once.
        self._poll = receiver.poll
        self.release = receiver.release
        self.is_empty = receiver.is_empty

    def poll(self, limit: int) -> Sequence[tuple[int, memoryview]]:
        """Return the whole messages of up to `limit` records. The views are valid until `release()`."""
        while True:
            batch = self._poll(limit)
            # Find a CHUNK among the (kind, view) pairs by a dict of kinds: C code builds and searches it, faster than a
            # loop.
            if not self._partial and CHUNK not in dict(batch):
                return batch
            messages, self._partial = _join(batch, self._partial)
            if messages or not batch:
                return messages
            # The batch had only CHUNKs, which _join has copied. The caller gets nothing to release, so release them
            # here. Otherwise a message longer than the ring would never get space for its next chunks.
            self.release()

    def finish(self) -> None:
        """Stop polling for good, and signal this to the sender unless a message is incomplete."""
        # Send no signal in the middle of a message. The sender takes back the unpolled records (`untaken`), and could
        # not decode a message whose first chunks were polled.
        if not self._partial:
            self._receiver.finish()


def _join(
    batch: Sequence[tuple[int, memoryview]], partial: bytearray
) -> tuple[list[tuple[int, memoryview]], bytearray]:
    """Join a batch of records to whole messages. Return these, and the first chunks of an incomplete last message.

    `partial` has the first chunks of a message that began in earlier batches.
    """
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
