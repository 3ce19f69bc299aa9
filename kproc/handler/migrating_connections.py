"""What a Handler keeps of connections that are on their way from one Processor to another.

Between MOVE_OUT and MOVE_IN nobody can say which Processor will hold the socket: the target may die or refuse. So
the answers of requests that are parked, or park meanwhile, are kept here until a Processor claims them; whatever
happens to the two, an answer is delivered once or its connection is closed. Requests that do not park are answered
as ever: their Processor waits for them before it gives the socket away.
"""

from __future__ import annotations

from typing import Final

from kproc.role.request import ClientPeer
from kproc.transport.envelope import CLOSE, HEAD, MOVED, SEND, pack_sequences

# From when the old Processor has given the socket away, or died, until the new one must have claimed the requests.
_CLAIM_NS: Final = 10_000_000_000


class KeptAnswers:
    """Stands in for an Outbox: what is pushed waits for whoever claims the connection."""

    __slots__ = ("answers",)

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    def push(self, kind: int, *parts: bytes | bytearray | memoryview) -> None:
        self.answers.append((kind, b"".join(parts)))


class _Moving:
    """One connection: where it came from, what is kept of it, and until when."""

    __slots__ = ("expires_ns", "kept", "kept_answers", "origin")

    def __init__(self, origin: ClientPeer) -> None:
        self.origin = origin
        self.kept_answers = KeptAnswers()
        self.kept = ClientPeer(self.kept_answers)
        self.expires_ns = 0  # Not yet.


class MigratingConnections:
    """One per Handler, empty nearly always."""

    def __init__(self) -> None:
        self._moving: dict[int, _Moving] = {}

    def __len__(self) -> int:
        return len(self._moving)

    def has_holders(self) -> bool:
        """Whether a living Processor still has one of them, and will claim it or give it away."""
        return any(not moving.expires_ns for moving in self._moving.values())

    def move_out(self, origin: ClientPeer, connection_id: int, attempt: int) -> None:
        """Keep the answers of the parked requests from now on, and say which these are."""
        self.forget(connection_id)  # Of an earlier attempt that nobody ended.
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
        """A Processor has the socket and expects these answers; those that nobody knows end its connection."""
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
        """Another Processor holds the socket. Its claim may still be on its way, by another ring."""
        moving = self._moving.get(connection_id)
        if moving is not None and moving.origin is origin:  # Else it is claimed already.
            self._await_claim(connection_id, moving, now_ns)

    def gone(self, origin: ClientPeer, connection_id: int) -> None:
        """The client left while its connection was still there."""
        moving = self._moving.get(connection_id)
        if moving is not None and moving.origin is origin:
            self.forget(connection_id)

    def lose(self, origin: ClientPeer, now_ns: int) -> None:
        """A Processor died. What it had sent off may arrive all the same."""
        for connection_id, moving in list(self._moving.items()):
            if moving.origin is origin and not moving.expires_ns:
                self._await_claim(connection_id, moving, now_ns)

    def _await_claim(self, connection_id: int, moving: _Moving, now_ns: int) -> None:
        """For a while; what has nothing to claim is forgotten at once, because a Handler that leaves waits for it."""
        if moving.kept_answers.answers or moving.kept.waiting:
            moving.expires_ns = now_ns + _CLAIM_NS
        else:
            self.forget(connection_id)

    def expire(self, now_ns: int) -> None:
        """Give up what nobody claimed: the Processor that should have died with the socket."""
        for connection_id, moving in list(self._moving.items()):
            if moving.expires_ns and moving.expires_ns <= now_ns:
                self.forget(connection_id)

    def forget(self, connection_id: int) -> None:
        """Cancel what is parked and drop what was answered."""
        moving = self._moving.pop(connection_id, None)
        if moving is not None:
            moving.origin.moving.pop(connection_id, None)
            moving.kept.forget(connection_id)
