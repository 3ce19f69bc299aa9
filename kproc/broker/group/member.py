"""One member of a classic group: what it said when it joined, and the request of it that waits."""

from __future__ import annotations

from typing import Final

from kproc.broker.group.messages import JoinReply, JoinRequest, SyncReply
from kproc.broker.group.snapshot import MemberSnapshot
from kproc.common.bounded import short_name

# A deadline that does not come: about 146 million years of milliseconds.
NEVER_MS: Final = 1 << 62


class Member:
    """A member; its group's alone. `join_reply` is changed by the Roster only, which counts the waiting."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "group_instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(
        self, member_id: str, group_instance_id: str | None, client_id: str, client_host: str
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = 0
        self.session_timeout_ms = 0
        self.protocols: tuple[tuple[str, bytes], ...] = ()
        self.assignment = b""
        # Waits for the answer of its first join: it knows no member id yet, or has never used it, and sends no
        # heartbeats.
        self.is_new = False
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None
        self.deadline_ms = NEVER_MS

    @classmethod
    def from_request(cls, member_id: str, request: JoinRequest) -> Member:
        """A member that joins for the first time."""
        client_id = short_name(request.client_id)
        member = cls(member_id, request.group_instance_id, client_id, request.client_host)
        member.update(request)
        member.is_new = True
        return member

    @classmethod
    def from_snapshot(cls, snapshot: MemberSnapshot, protocol_name: str) -> Member:
        """A member of a persisted group. Of its protocols only the chosen one is known."""
        member = cls(snapshot.member_id, snapshot.group_instance_id, snapshot.client_id, snapshot.client_host)
        member.session_timeout_ms = snapshot.session_timeout_ms
        # -1 in values of version 0, which knew no such timeout.
        timeout_ms = snapshot.rebalance_timeout_ms
        member.rebalance_timeout_ms = timeout_ms if timeout_ms >= 0 else snapshot.session_timeout_ms
        member.protocols = ((protocol_name, snapshot.subscription),)
        member.assignment = snapshot.assignment
        return member

    def update(self, request: JoinRequest) -> None:
        """Update the member from a later join. As in Kafka, client id and host remain those of the first join."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms

    def renew(self, now_ms: int) -> None:
        """Begin the session anew, because the member has sent a request."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    @property
    def is_waiting(self) -> bool:
        """True if a request of the member waits in the group. Meanwhile it cannot and need not send heartbeats."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol. Empty if no protocol is chosen or the member lacks it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")
