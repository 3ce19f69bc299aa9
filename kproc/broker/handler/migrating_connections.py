"""MigratingConnections: keeps responses of connections that migrate from one Processor to another.

Between MOVE_OUT and MOVE_IN it is unknown which Processor will have the socket, because the target can die or reject
it. So the Handler keeps the responses of parked requests until a Processor claims the connection with MOVE_IN. Whatever
happens to the two Processors, a response is delivered once, or its connection is closed. Responses of requests that are
not parked go to the old Processor, which waits for them before it passes the socket on.
"""

from __future__ import annotations

from typing import Final

from kproc.broker.request.request import ClientPeer
from kproc.broker.transport.envelope import CLOSE, HEAD, MOVED, SEND, pack_sequences

# Time that the new Processor has for its claim, after the old one has reported that it passed the socket on, or died.
_CLAIM_NS: Final = 10_000_000_000


class KeptAnswers:
    """Replaces the Outbox of one migrating connection. Stores its responses for the Processor that claims them."""

    __slots__ = ("answers",)

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    def push(self, kind: int, *parts: bytes | bytearray | memoryview) -> None:
        self.answers.append((kind, b"".join(parts)))


class _Moving:
    """One connection: its former Processor, its kept responses, and the time until which they are kept."""

    __slots__ = ("expires_ns", "kept", "kept_answers", "origin")

    def __init__(self, origin: ClientPeer) -> None:
        self.origin = origin
        self.kept_answers = KeptAnswers()
        self.kept = ClientPeer(self.kept_answers)
        # The time in ns until which the responses are kept. 0: not limited yet, because the old Processor has neither
        # reported nor died.
        self.expires_ns = 0


class MigratingConnections:
    """The migrating connections of one Handler. Nearly always empty."""

    def __init__(self) -> None:
        self._moving: dict[int, _Moving] = {}

    def __len__(self) -> int:
        return len(self._moving)

    def has_holders(self) -> bool:
        """Return True if a running Processor still has one of the connections and will claim it or pass it on."""
        return any(not moving.expires_ns for moving in self._moving.values())

    def move_out(self, origin: ClientPeer, connection_id: int, attempt: int) -> None:
        """Keep the responses of the connection's parked requests from now on. If any is parked, list them in MOVED.

        origin: the Processor that has the connection now, which gets MOVED. attempt: its number, repeated in MOVED.
        """
        self.discard(connection_id)  # Remove the rest of an earlier attempt to migrate.
        moving = self._moving[connection_id] = _Moving(origin)
        origin.moving[connection_id] = moving.kept, attempt
        requests = origin.waiting.pop(connection_id, None)
        if requests:
            moving.kept.waiting[connection_id] = requests
            for request in requests:
                request.peer = moving.kept
            sequences = pack_sequences(request.sequence for request in requests)
            origin.outbox.push(MOVED, HEAD.pack(connection_id, attempt, 0, 0), sequences)

    def move_in(self, peer: ClientPeer, connection_id: int, sequences: list[int]) -> None:
        """Send the kept responses to the Processor that has the socket now.

        sequences: of the requests to which that Processor has no response yet. If the response to one of them is lost,
        close the connection.
        """
        expected = set(sequences)
        moving = self._moving.pop(connection_id, None)
        if moving is not None:
            moving.origin.moving.pop(connection_id, None)
            for request, on_gone in moving.kept.waiting.pop(connection_id, {}).items():
                request.peer = peer
                peer.waiting.setdefault(connection_id, {})[request] = on_gone
                expected.discard(request.sequence)
            for kind, answer in moving.kept_answers.answers:
                if SEND <= kind <= CLOSE:
                    expected.discard(HEAD.unpack_from(answer)[1])
                peer.outbox.push(kind, answer)
        for sequence in sorted(expected):
            peer.outbox.push(CLOSE, HEAD.pack(connection_id, sequence, 0, 0))

    def gave_away(self, origin: ClientPeer, connection_id: int, now_ns: int) -> None:
        """Record that the Processor `origin` has passed the connection's socket to another one.

        The claim of that other Processor may not have been read yet, because it comes over another ring.
        """
        moving = self._moving.get(connection_id)
        if moving is not None and moving.origin is origin:  # Otherwise the connection was claimed already.
            self._await_claim(connection_id, moving, now_ns)

    def gone(self, origin: ClientPeer, connection_id: int) -> None:
        """Remove a connection that the client closed before it migrated."""
        moving = self._moving.get(connection_id)
        if moving is not None and moving.origin is origin:
            self.discard(connection_id)

    def on_processor_death(self, origin: ClientPeer, now_ns: int) -> None:
        """Set a time limit for the claims of connections that a dead Processor had passed to others."""
        for connection_id, moving in list(self._moving.items()):
            if moving.origin is origin and not moving.expires_ns:
                self._await_claim(connection_id, moving, now_ns)

    def _await_claim(self, connection_id: int, moving: _Moving, now_ns: int) -> None:
        """Wait for a claim for a limited time.

        Without kept responses remove the connection at once, because a leaving Handler waits until this table is empty.
        """
        if moving.kept_answers.answers or moving.kept.waiting:
            moving.expires_ns = now_ns + _CLAIM_NS
        else:
            self.discard(connection_id)

    def expire(self, now_ns: int) -> None:
        """Discard responses that were not claimed in time, because the Processor with the socket has died."""
        for connection_id, moving in list(self._moving.items()):
            if moving.expires_ns and moving.expires_ns <= now_ns:
                self.discard(connection_id)

    def discard(self, connection_id: int) -> None:
        """Cancel the parked requests of a connection and discard its kept responses."""
        moving = self._moving.pop(connection_id, None)
        if moving is not None:
            moving.origin.moving.pop(connection_id, None)
            moving.kept.cancel(connection_id)
