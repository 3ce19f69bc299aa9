"""The state of a classic group, which all parts of a ClassicGroup share. The rules are in the other files.

         first member joins (initial delay)
Empty ----------------------------------------> PreparingRebalance <---------------+
  ^                                               |            |  ^                |
  |  nobody is left: generation + 1, written      |            |  |  a join, a     |  a new member, a leave,
  +-----------------------------------------------+            |  |  leave, a      |  an ended session, the
                                                               |  |  failed write  |  leader's join
                          all have joined, or time is up:      |  |                |
                          generation + 1, joins are answered   v  |                |
                                                    CompletingRebalance --------> Stable
                                                                leader's assignment
                                                                written: syncs are answered

Dead: deleted, or another Handler coordinates the group. Every state can become Dead, and Dead is final.

The states are those of Kafka's ClassicGroupState.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from sys import getsizeof
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.coordinator.member_memory import GroupContent, HeldMemory, MemberMemory
from kproc.broker.coordinator.memory_limit import CountedMemory
from kproc.broker.coordinator.rules import write_error
from kproc.broker.group.classic.members import NEVER_MS, Member, Roster
from kproc.broker.group.classic.subscription import CONSUMER_PROTOCOL_TYPE, topics_of_all
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    JoinedMember,
    JoinResult,
    SyncResult,
)
from kproc.broker.group.records import GroupSnapshot, MemberSnapshot
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.config import Config

logger = logging.getLogger(__name__)

GROUP_TYPE: Final = "classic"
# (code for the client, now_ms)
AfterWrite = Callable[[int, int], None]
# (code, now_ms): NONE once the record is as durable as acks=all promises, else the append's error.
OnWritten = Callable[[int, int], None]
# Appends a snapshot of a group to the log. Returns True if it is in the log; otherwise OnWritten has got the error
# already. The OnWritten callbacks of one group are called in the order of its writes.
Persist = Callable[[GroupSnapshot, OnWritten], bool]


class GroupState(Enum):
    """The state of a group. The values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# By state: the states that may come before it.
PREVIOUS: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


class GroupEnvironment(msgspec.Struct):
    """The settings and functions that all groups of a coordinator share."""

    config: Config
    random_id: Callable[[], str]  # Returns the text of a new UUID, for member ids.
    wall_ms: Callable[[], int]  # The clock for records. Timers use the monotonic `now_ms` of the calls.
    persist: Persist
    # Called with (group id, member id) when a client got a member id with MEMBER_ID_REQUIRED.
    on_pending: Callable[[str, str], None] = lambda _group_id, _member_id: None
    # One for all coordinators of a Handler.
    member_memory: MemberMemory = msgspec.field(default_factory=MemberMemory)


class ClassicState:
    """The fields of one group, its pending writes, and its descriptions for other requests."""

    __slots__ = (
        "_held_topics", "_memory", "_write_count", "_writes", "current", "current_state_timestamp_ms", "environment",
        "generation", "group_id", "protocol_name", "roster", "subscribed_topics", "wake_ms",
    )  # fmt: skip

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        self.group_id = group_id
        self.environment = environment
        self.current = GroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self.roster = Roster()
        # The topics that the members subscribe to. None if they are unknown, or if the group is no consumer group.
        self.subscribed_topics: frozenset[str] | None = None
        self._held_topics: HeldMemory[GroupContent] | None = None  # Counts these topics.
        self._memory: CountedMemory | None = None  # Counts the group. None while it has only stored offsets.
        self.current_state_timestamp_ms = environment.wall_ms()
        # The time of the next tick. No deadline is earlier. Heartbeats move deadlines to a later time without changing
        # this; the next tick does.
        self.wake_ms = NEVER_MS
        # Callbacks of the writes that are not durable yet. `fail_writes` calls them if the coordinator resigns first.
        self._writes: dict[int, AfterWrite] = {}
        self._write_count = 0

    # Change.

    def hold_memory(self) -> None:
        """Count the memory of the group, because it gets a member. Its offsets are counted by themselves."""
        if self._memory is None:
            self._memory = self.environment.member_memory.hold_group(self.group_id)

    def release_memory(self) -> None:
        """Remove the group from the memory count."""
        self._memory = self._held_topics = None

    def enter(self, state: GroupState) -> None:
        """Change the state. `PREVIOUS` has the allowed changes."""
        assert self.current in PREVIOUS[state], (self.current, state)
        self.current = state
        self.current_state_timestamp_ms = self.environment.wall_ms()

    def wake_by(self, deadline_ms: int) -> int:
        """Make sure that `tick` is called at `deadline_ms` at the latest, and return `deadline_ms`."""
        self.wake_ms = min(self.wake_ms, deadline_ms)
        return deadline_ms

    def renew(self, member: Member, now_ms: int) -> None:
        """Restart the session of a member, because it has sent a request."""
        member.deadline_ms = self.wake_by(now_ms + member.session_timeout_ms)

    def write(self, snapshot: GroupSnapshot, then: AfterWrite) -> bool:
        """Persist a snapshot. Return True if it is in the log. `then` gets NONE when it is durable, or the error.

        If it is not in the log, `then` has been called already, and the caller must undo its changes for this snapshot.
        """
        self._write_count += 1
        self._writes[self._write_count] = then
        return self.environment.persist(snapshot, partial(self._written, self._write_count))

    def _written(self, number: int, code: int, now_ms: int) -> None:
        then = self._writes.pop(number, None)
        if then is None:
            return  # `fail_writes` has called it already.
        if code:
            group_id = short_name(self.group_id)
            logger.warning(
                "group=%s generation=%d: the record of the group was not written, so requests that wait for it fail: "
                "error code %s",
                group_id,
                self.generation,
                code,
            )
        then(write_error(code), now_ms)

    def fail_writes(self, code: ErrorCode) -> None:
        """Call back all pending writes with `code`, because this coordinator will not learn their outcome."""
        writes, self._writes = self._writes, {}
        for then in writes.values():
            then(code, 0)

    def remove(self, member: Member, code: ErrorCode) -> None:
        """Remove a member from the group.

        If it has a waiting request, answer that with `code`; a live client joins again.
        """
        self.roster.answer_join(member, JoinResult(code, UNKNOWN_MEMBER_ID))
        self.answer_sync(member, SyncResult(code))
        self.roster.remove(member)

    def answer_sync(self, member: Member, result: SyncResult) -> bool:
        """Answer the SyncGroup of a member. Return False if none waits."""
        reply = member.sync_reply
        if reply is None:
            return False
        member.sync_reply = None
        reply(result)
        return True

    def update_topics(self) -> None:
        """Find the subscribed topics again. Called when members, their metadata or the chosen protocol have changed."""
        if self.roster.protocol_type == CONSUMER_PROTOCOL_TYPE:
            metadatas = (member.metadata(self.protocol_name) for member in self.roster.members.values())
            self._set_topics(topics_of_all(metadatas))
        else:
            self._set_topics(None)

    def _set_topics(self, topics: frozenset[str] | None) -> None:
        """Store the subscribed topics and count their memory. Store None if it exceeds the Handler's limit.

        A name of one letter takes 20 times the memory of its bytes in the metadata.
        """
        contents = self.environment.member_memory
        content = GroupContent(self.group_id, "", getsizeof(topics) + sum(map(getsizeof, topics or ())))
        if not contents.has_room(content, replaced=self._held_topics):
            topics = None
        self.subscribed_topics = topics
        self._held_topics = None if topics is None else contents.hold(content)

    # Answers.

    def join_result(self, member: Member, leader: str | None, *, skip_assignment: bool = False) -> JoinResult:
        """Return a successful JoinGroup result of the present generation.

        Only the leader's has the list of all members. skip_assignment: tell the leader not to assign, because the group
        keeps its assignment (KIP-814).
        """
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
    def is_unwritten(self) -> bool:
        """True if the group is empty, never had members, and no client is about to join it.

        A rejected request or the offsets of a simple consumer have created it. The log has no record of it. So it may
        be removed if it has no offsets.
        """
        return (
            self.current is GroupState.EMPTY
            and not self.generation
            and not self.roster.pending
            and not self._writes
        )

    @property
    def is_consumer_group(self) -> bool:
        """True if the members use the consumer protocol, whose metadata name the subscribed topics."""
        return self.roster.protocol_type == CONSUMER_PROTOCOL_TYPE

    def describe(self) -> DescribedGroup:
        """Return the group for DescribeGroups. As in Kafka, only a Stable group shows its protocol and metadata."""
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

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """Return the state for a write to the log. `assignments` (by member id) replace the members' present ones."""
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
