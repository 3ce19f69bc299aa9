"""ClassicState: what a classic group is at this moment: its state, its members, its writes, and what is seen of it.

The parts of a ClassicGroup share it; it knows none of them. No rule of the protocol is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from kproc.broker.coordinator.rules import write_error
from kproc.broker.group.config import GroupConfig
from kproc.broker.group.member import NEVER_MS, Member
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    GroupOverview,
    JoinedMember,
    JoinResult,
    SyncResult,
    join_failed,
)
from kproc.broker.group.roster import Roster
from kproc.broker.group.snapshot import GroupSnapshot, MemberSnapshot, Persist
from kproc.broker.group.state import PREVIOUS, GroupState
from kproc.broker.group.subscription import CONSUMER_PROTOCOL_TYPE, topics_of_all
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode

logger = logging.getLogger(__name__)

GROUP_TYPE: Final = "classic"
# (code as the client shall see it, now_ms)
AfterWrite = Callable[[int, int], None]


class GroupEnvironment(msgspec.Struct):
    """The environment that all groups of a coordinator share. `config` may be replaced while groups exist."""

    config: GroupConfig
    random_id: Callable[[], str]  # a new UUID's text, for member ids
    wall_ms: Callable[[], int]  # dates what is persisted; timers use the `now_ms` of the calls (monotonic)
    persist: Persist
    # Called with (group id, member id) when a member id was returned to a client that has to join with it.
    on_pending: Callable[[str, str], None] = lambda _group_id, _member_id: None


class ClassicState:
    """Fields and views; see ClassicGroup."""

    __slots__ = (
        "_write_count", "_writes", "current", "current_state_timestamp_ms", "environment", "generation",
        "group_id", "protocol_name", "roster", "subscribed_topics", "wake_ms",
    )  # fmt: skip

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        self.group_id = group_id
        self.environment = environment
        self.current = GroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self.roster = Roster()
        # What the members of this generation read; None if not known, or not a consumer group.
        self.subscribed_topics: frozenset[str] | None = None
        self.current_state_timestamp_ms = environment.wall_ms()
        # No deadline is before this; heartbeats move deadlines away from it, and a tick catches up with them.
        self.wake_ms = NEVER_MS
        # Writes that are on their way, with what to do then: answered by `resign` if the coordinator goes first.
        self._writes: dict[int, AfterWrite] = {}
        self._write_count = 0

    # Change.

    def enter(self, state: GroupState) -> None:
        """Go into a state that may follow the current one."""
        assert self.current in PREVIOUS[state], (self.current, state)
        self.current = state
        self.current_state_timestamp_ms = self.environment.wall_ms()

    def wake_by(self, deadline_ms: int) -> int:
        """`deadline_ms`, with a tick by then."""
        self.wake_ms = min(self.wake_ms, deadline_ms)
        return deadline_ms

    def renew(self, member: Member, now_ms: int) -> None:
        """A member is alive: its session begins anew."""
        member.renew(now_ms)
        self.wake_by(member.deadline_ms)

    def write(self, snapshot: GroupSnapshot, then: AfterWrite) -> bool:
        """Persist a snapshot. `then` gets NONE when it is durable, or the error. Return True if it is in the log.

        If it is not, `then` has been called already, and the caller must undo its changes for this snapshot.
        """
        self._write_count += 1
        self._writes[self._write_count] = then
        return self.environment.persist(snapshot, partial(self._written, self._write_count))

    def _written(self, number: int, code: int, now_ms: int) -> None:
        then = self._writes.pop(number, None)
        if then is None:
            return  # `resign` or `kill` has answered for it.
        if code:
            group_id = short_name(self.group_id)
            logger.warning("group=%s generation=%d write failed: %s", group_id, self.generation, code)
        then(write_error(code), now_ms)

    def fail_writes(self, code: ErrorCode) -> None:
        """Nobody will hear how the writes ended that are on their way."""
        writes, self._writes = self._writes, {}
        for then in writes.values():
            then(code, 0)

    def remove(self, member: Member, code: ErrorCode) -> None:
        """Forget a member; a request of it that waits is answered with `code`, upon which a live one joins anew."""
        self.roster.answer_join(member, join_failed(code, UNKNOWN_MEMBER_ID))
        self.answer_sync(member, SyncResult(code))
        self.roster.remove(member)

    def answer_sync(self, member: Member, result: SyncResult) -> bool:
        """Answer the member's sync, if one waits."""
        reply = member.sync_reply
        if reply is None:
            return False
        member.sync_reply = None
        reply(result)
        return True

    def learn_topics(self) -> None:
        """Note what the group reads, as soon as who is in it, and which protocol is spoken, is settled."""
        if self.roster.protocol_type == CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = topics_of_all(
                member.metadata(self.protocol_name) for member in self.roster.members.values()
            )
        else:
            self.subscribed_topics = None

    # Answers.

    def join_result(self, member: Member, leader: str | None, *, skip_assignment: bool = False) -> JoinResult:
        """A successful join of the present generation; the leader's has the list of all members."""
        leads = leader == member.member_id
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.roster.protocol_type,
            self.protocol_name,
            leader or "",
            skip_assignment,
            tuple(self._joined_members()) if leads else (),
        )

    def _joined_members(self) -> list[JoinedMember]:
        return [
            JoinedMember(each.member_id, each.group_instance_id, each.metadata(self.protocol_name))
            for each in self.roster.members.values()
        ]

    # Views.

    @property
    def has_no_history(self) -> bool:
        """Empty, never had a member, and nobody is about to join: made by a request that was refused or for a
        simple consumer's offsets. Nothing of it is on the disk, so that it may be dropped if it has no offsets."""
        return (
            self.current is GroupState.EMPTY
            and not self.generation
            and not self.roster.pending
            and not self._writes
        )

    @property
    def is_consumer_group(self) -> bool:
        """Its members speak the consumer protocol, so that the broker can know what they read."""
        return self.roster.protocol_type == CONSUMER_PROTOCOL_TYPE

    def describe(self) -> DescribedGroup:
        """For DescribeGroups. Metadata and protocol are only shown of a Stable group, as in Kafka."""
        protocol_name = self.protocol_name if self.current is GroupState.STABLE else None
        return DescribedGroup(
            self.group_id,
            self.current.value,
            self.roster.protocol_type or "",
            protocol_name or "",
            tuple(
                DescribedMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(protocol_name),
                    member.assignment,
                )
                for member in self.roster.members.values()
            ),
        )

    def overview(self) -> GroupOverview:
        """For ListGroups."""
        return GroupOverview(self.group_id, self.roster.protocol_type or "", self.current.value, GROUP_TYPE)

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """Return the state for a write to the log. `assignments` take effect when the write is complete."""
        return GroupSnapshot(
            group_id=self.group_id,
            protocol_type=self.roster.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            current_state_timestamp_ms=self.current_state_timestamp_ms,
            members=tuple(
                MemberSnapshot(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=member.assignment
                    if assignments is None
                    else assignments.get(member.member_id, b""),
                )
                for member in self.roster.members.values()
            ),
        )
