"""Roster: who is in a classic group, who leads, and which protocols all of them know. No time, no states.

Invariants: a static member's instance id maps to its member id and nothing else does; the leader is a member, and
there is one if there are members; some protocol is known to all members; `joined_count` members have a join waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kproc.broker.group.member import Member
from kproc.broker.group.messages import JoinReply, JoinRequest, JoinResult, join_failed
from kproc.common.errors import ErrorCode

Protocols = Iterable[tuple[str, bytes]]


def names_of(protocols: Protocols) -> set[str]:
    """Each name once: a request may repeat one."""
    return {name for name, _ in protocols}


class Roster:
    """The members of one group, in the order in which they came."""

    __slots__ = ("_known_by", "joined_count", "leader", "members", "pending", "protocol_type", "static_ids")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}  # instance id -> member id
        # Member ids that were given out with MEMBER_ID_REQUIRED, with the time until which they may be used.
        self.pending: dict[str, int] = {}
        self.leader: str | None = None
        self.protocol_type: str | None = None
        self.joined_count = 0
        self._known_by: Counter[str] = Counter()  # protocol name -> members that know it

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        """Take a new member; the first one says what type of protocol the group speaks (set by the caller)."""
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
        """Forget a member, whose requests have been answered; the member that came next leads."""
        assert member.join_reply is None, member.member_id
        assert member.sync_reply is None, member.member_id
        del self.members[member.member_id]
        self._remove_protocols(member)
        if member.group_instance_id is not None:
            del self.static_ids[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Change the member id of a static member that came back. It keeps its place in the order."""
        assert member.group_instance_id is not None, member.member_id
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        in_order = list(self.members.values())
        self.members.clear()  # In place: the group's parts share this dictionary.
        self.members.update((each.member_id, each) for each in in_order)
        self.static_ids[member.group_instance_id] = member_id

    def update(self, member: Member, request: JoinRequest) -> None:
        """A member joins again, perhaps with other protocols and timeouts."""
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
        """Store the reply of a join. An earlier join that still waits belongs to a connection that is probably gone.
        If its client hears the answer all the same, COORDINATOR_NOT_AVAILABLE makes it look for the coordinator and
        join again under its member id: librdkafka 2.0.2, kafka-python 3.0.12 and aiokafka 0.14 do so."""
        self.answer_join(member, join_failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, member.member_id))
        member.join_reply = reply
        self.joined_count += 1

    def answer_join(self, member: Member, result: JoinResult) -> bool:
        """Answer the member's join, if one waits."""
        reply = member.join_reply
        if reply is None:
            return False
        member.join_reply = None
        self.joined_count -= 1
        reply(result)
        return True

    @property
    def all_joined(self) -> bool:
        """Everybody has sent its join, also those who were told a member id to join with."""
        return self.joined_count == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members, at least 1: with 0 the group would rebalance
        without a pause.
        """
        return max(1, max((member.rebalance_timeout_ms for member in self.members.values()), default=1))

    def refusal(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check a request's member and instance id: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (KIP-345) or NONE."""
        if group_instance_id is not None:
            current = self.static_ids.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """The leader has to be one who joined. False if nobody did, so that nobody could assign."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_reply is not None:
            return True
        joined = next((member for member in self.members.values() if member.join_reply is not None), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Could a member with these protocols be in the group? One of them has to be known to all."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and any(
            self._known_by.get(name) == len(self.members) for name in names_of(protocols)
        )

    def select_protocol(self) -> str:
        """The protocol that most members prefer among those known to all; on a tie the leader's preference decides."""
        candidates = {name for name, count in self._known_by.items() if count == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in self.members.values()
        )
        leader = self.members[self.leader or ""]
        # Every protocol that has votes is known to the leader; max() keeps the first of equals.
        return max((name for name, _ in leader.protocols if name in votes), key=votes.__getitem__)
