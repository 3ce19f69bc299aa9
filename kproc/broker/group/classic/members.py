"""The members of a classic group: one Member each, and their Roster, which knows the leader and the common protocols.

Nothing here reads a clock or the group's state. Invariants of the Roster: a static member's instance id maps to its
member id, and nothing else does; the leader is a member, and there is one if there are members; all members know a
common protocol; `joined_count` members have a join waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kproc.broker.coordinator.member_memory import (
    HeldMemory,
    MemberMemory,
    SubscriptionContent,
    member_bytes,
)
from kproc.broker.group.messages import JoinReply, JoinRequest, JoinResult, SyncReply
from kproc.broker.group.records import MemberSnapshot
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode

# A deadline that does not come: about 146 million years of milliseconds.
NEVER_MS: Final = 1 << 62

Protocols = Iterable[tuple[str, bytes]]


class Member:
    """One member. Only the Roster changes `join_reply`, because it counts the waiting joins."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "group_instance_id",
        "held",
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
        self.held: HeldMemory[SubscriptionContent] | None = (
            None  # Counts its memory. None before `hold_memory`.
        )
        self.assignment = b""
        # True until its first join is answered. Its client knows no member id yet, or has never used it, so it sends no
        # heartbeats.
        self.is_new = False
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None
        self.deadline_ms = NEVER_MS

    @classmethod
    def from_request(cls, member_id: str, request: JoinRequest) -> Member:
        """Return a member that joins for the first time."""
        client_id = short_name(request.client_id)
        member = cls(member_id, request.group_instance_id, client_id, request.client_host)
        member.update(request)
        member.is_new = True
        return member

    @classmethod
    def from_snapshot(cls, snapshot: MemberSnapshot, protocol_name: str) -> Member:
        """Return a member of a persisted group. The record has only the protocol that the group had chosen."""
        member = cls(snapshot.member_id, snapshot.group_instance_id, snapshot.client_id, snapshot.client_host)
        member.session_timeout_ms = snapshot.session_timeout_ms
        # A negative rebalance timeout means that the record has none. The session timeout then takes its place.
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

    def hold_memory(self, memory: MemberMemory, group_id: str) -> None:
        """Count the memory of a group's member. Share long protocols with members that have equal ones."""
        own_bytes = member_bytes(
            group_id, self.member_id, self.group_instance_id, self.client_id, self.client_host
        )
        self.held = memory.hold(SubscriptionContent(protocols=self.protocols), own_bytes)
        self.protocols = self.held.content.protocols
        self.held.count_assignment(len(self.assignment))

    def assign(self, assignment: bytes) -> None:
        """Store the assignment of the group's generation, and count its memory."""
        self.assignment = assignment
        if self.held is not None:
            self.held.count_assignment(len(assignment))

    @property
    def is_waiting(self) -> bool:
        """True if a request of the member waits, so that it cannot and need not send heartbeats.

        False for the first join of a new member, which has a time limit (NEW_MEMBER_JOIN_TIMEOUT_MS).
        """
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol. Empty if no protocol is chosen or the member lacks it."""
        # A loop, because a generator costs three times as much. A large group calls this for each member in one step.
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""


def names_of(protocols: Protocols) -> set[str]:
    """Return the names of protocols. A name that the request repeats is returned once."""
    return {name for name, _ in protocols}


def bytes_of(protocols: Protocols) -> int:
    """Return the number of bytes of the names and metadata of protocols."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class Roster:
    """The members of one group, in the order of their first join."""

    __slots__ = ("_known_by", "joined_count", "leader", "members", "pending", "protocol_type", "static_ids")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}  # instance id -> member id
        # Member ids that were returned with MEMBER_ID_REQUIRED, with the time in ms until which they may join
        # (KIP-394).
        self.pending: dict[str, int] = {}
        self.leader: str | None = None
        self.protocol_type: str | None = None
        self.joined_count = 0
        self._known_by: Counter[str] = Counter()  # protocol name -> members that know it

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        """Add a new member. The caller sets `protocol_type` to that of the first one."""
        assert member.member_id not in self.members, member.member_id
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_ids, member.group_instance_id
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._known_by.update(names_of(member.protocols))
        self.pending.pop(member.member_id, None)

    def remove(self, member: Member) -> None:
        """Remove a member without a waiting request. If it was the leader, the oldest member leads."""
        assert member.join_reply is None, member.member_id
        assert member.sync_reply is None, member.member_id
        del self.members[member.member_id]
        self._remove_protocols(member)
        if member.group_instance_id is not None:
            del self.static_ids[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Change the member id of a static member that returns (KIP-345). It keeps its place in the order."""
        assert member.group_instance_id is not None, member.member_id
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        in_order = list(self.members.values())
        self.members.clear()  # In place: the group's parts share this dictionary.
        self.members.update((each.member_id, each) for each in in_order)
        self.static_ids[member.group_instance_id] = member_id

    def update(self, member: Member, request: JoinRequest) -> None:
        """Update a member that joins again, perhaps with other protocols and timeouts."""
        self._remove_protocols(member)
        member.update(request)
        self._known_by.update(names_of(member.protocols))

    def _remove_protocols(self, member: Member) -> None:
        """Remove the protocols of a member from the counts. A name that no other member has is deleted."""
        for name in names_of(member.protocols):
            if self._known_by[name] == 1:
                del self._known_by[name]
            else:
                self._known_by[name] -= 1

    def await_join(self, member: Member, reply: JoinReply) -> None:
        """Store the reply of a join. An earlier join of the member that still waits is answered.

        The earlier one belongs to a connection that is probably gone. If its client gets the answer all the same,
        COORDINATOR_NOT_AVAILABLE makes it look for the coordinator and join again under its member id: librdkafka
        2.0.2, kafka-python 3.0.12 and aiokafka 0.14 do so.
        """
        self.answer_join(member, JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, member.member_id))
        member.join_reply = reply
        self.joined_count += 1

    def answer_join(self, member: Member, result: JoinResult) -> bool:
        """Answer the join of a member. Return False if none waits."""
        reply = member.join_reply
        if reply is None:
            return False
        member.join_reply = None
        self.joined_count -= 1
        reply(result)
        return True

    @property
    def all_joined(self) -> bool:
        """True if all members have sent their JoinGroup, and all clients that got a member id have joined with it."""
        return self.joined_count == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members, at least 1 ms.

        With 0 the group would rebalance without a pause.
        """
        return max(1, max((member.rebalance_timeout_ms for member in self.members.values()), default=1))

    def refusal(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return the error for a member and instance id: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (KIP-345) or NONE."""
        if group_instance_id is not None:
            current = self.static_ids.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            # A restarted client has taken over the instance with a new member id, so this request is from its
            # predecessor.
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader. Return False if none has, because nobody could assign then."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_reply is not None:
            return True
        joined = next((member for member in self.members.values() if member.join_reply is not None), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return True if a member with these protocols may be in the group: all members must know one of them."""
        # The first member decides the type of the group. It must name a protocol, because a group without one
        # could never choose an assignor.
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and any(
            self._known_by.get(name) == len(self.members) for name in names_of(protocols)
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those known to all (Kafka's ClassicGroup.selectProtocol).

        On a tie, the leader's order of preference decides.
        """
        candidates = {name for name, count in self._known_by.items() if count == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in self.members.values()
        )
        leader = self.members[self.leader or ""]
        # The leader knows every protocol that has votes. Of equal votes, max() keeps the one that the leader lists
        # first.
        return max((name for name, _ in leader.protocols if name in votes), key=votes.__getitem__)
