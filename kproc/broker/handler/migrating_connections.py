"""MigratingConnections: a Handler keeps the answers of connections that migrate from one Processor to another.

Between MOVE_OUT and MOVE_IN it is open which Processor will have the socket: the target may die or refuse. So the
answers of requests that are parked, or park meanwhile, are kept here until a Processor claims them. Whatever happens
to the two Processors, an answer is delivered once, or its connection is closed. Requests that do not park are answered
as ever: their Processor waits for them before it gives the socket away.
"""

from __future__ import annotations

from typing import Final

from kproc.broker.request.request import ClientPeer
from kproc.broker.transport.envelope import CLOSE, HEAD, MOVED, SEND, pack_sequences

# Time between the old Processor's report that it gave the socket away, or its death, and the new one's claim.
_CLAIM_NS: Final = 10_000_000_000


class KeptAnswers:
    """Takes the place of an Outbox: stores the answers for the Processor that claims the connection."""

    __slots__ = ("answers",)

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    def push(self, kind: int, *parts: bytes | bytearray | memoryview) -> None:
        self.answers.append((kind, b"".join(parts)))


class _Moving:
    """One connection: its former Processor, its kept answers, and until when they are kept."""

    __slots__ = ("expires_ns", "kept", "kept_answers", "origin")

    def __init__(self, origin: ClientPeer) -> None:
        self.origin = origin
        self.kept_answers = KeptAnswers()
        self.kept = ClientPeer(self.kept_answers)
        self.expires_ns = 0  # 0: not before the old Processor has reported or died.


class MigratingConnections:
    """One per Handler; nearly always empty."""

    def __init__(self) -> None:
        self._moving: dict[int, _Moving] = {}

    def __len__(self) -> int:
        return len(self._moving)

    def has_holders(self) -> bool:
        """Whether a running Processor still has one of the connections, and will claim it or give it away."""
        return any(not moving.expires_ns for moving in self._moving.values())

    def move_out(self, origin: ClientPeer, connection_id: int, attempt: int) -> None:
        """Keep the answers of parked requests from now on; list these requests in MOVED."""
        self.forget(connection_id)  # Drop what is left of an earlier attempt.
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
        """Send the kept answers to the Processor that has the socket; close the connection if it expects
        unknown ones.
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
        """Note that another Processor has the socket. Its claim may still be under way, in another ring."""
        moving = self._moving.get(connection_id)
        if moving is not None and moving.origin is origin:  # Otherwise it is claimed already.
            self._await_claim(connection_id, moving, now_ns)

    def gone(self, origin: ClientPeer, connection_id: int) -> None:
        """Forget a connection that the client closed before it migrated."""
        moving = self._moving.get(connection_id)
        if moving is not None and moving.origin is origin:
            self.forget(connection_id)

    def lose(self, origin: ClientPeer, now_ns: int) -> None:
        """A Processor has died. Connections that it gave away before may still be claimed."""
        for connection_id, moving in list(self._moving.items()):
            if moving.origin is origin and not moving.expires_ns:
                self._await_claim(connection_id, moving, now_ns)

    def _await_claim(self, connection_id: int, moving: _Moving, now_ns: int) -> None:
        """Wait for a claim, for a limited time. Without kept answers forget the connection at once, because a leaving
        Handler waits for this table to be empty.
        """
        if moving.kept_answers.answers or moving.kept.waiting:
            moving.expires_ns = now_ns + _CLAIM_NS
        else:
            self.forget(connection_id)

    def expire(self, now_ns: int) -> None:
        """Drop answers that were not claimed in time: the Processor with the socket has died."""
        for connection_id, moving in list(self._moving.items()):
            if moving.expires_ns and moving.expires_ns <= now_ns:
                self.forget(connection_id)

    def forget(self, connection_id: int) -> None:
        """Cancel the parked requests of a connection and drop its kept answers."""
        moving = self._moving.pop(connection_id, None)
        if moving is not None:
            moving.origin.moving.pop(connection_id, None)
            moving.kept.forget(connection_id)
