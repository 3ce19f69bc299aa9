"""ClassicGroups: the groups of the classic protocol of one coordinator, and requests to them.

The groups are in the coordinator's dictionary, because a group id has one group, whatever its protocol. Members wait
for each other, so that most requests are answered later: `responses` sends the answers. A group that only stores
offsets is a classic group, too (KIP-211).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kproc.broker.coordinator.rules import Code, KeyAndValue, Timing, Write
from kproc.broker.coordinator.steps import Work
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.state import GroupEnvironment, OnWritten
from kproc.broker.group.messages import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from kproc.broker.group.paced_responses import PacedResponses
from kproc.broker.group.records import GroupSnapshot, encode_group_key, encode_group_value
from kproc.common.bounded import NAME_MAX
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.coordinator import Group, GroupCoordinator

T = TypeVar("T")

# Limits of one coordinator: groups without a record, and member ids that no client has used yet. A client whose member
# id was discarded joins again. A group takes 2.5 KiB, and a Handler can have 50 coordinators.
UNWRITTEN_GROUPS_MAX: Final = 1_000
PENDING_MEMBERS_MAX: Final = 5_000
# Limit of the entries with a group id of more than NAME_MAX characters in each of both tables. An id can have 32 kB.
LONG_GROUP_IDS_MAX: Final = 32
# The name of the coordinator's deadline at which the next responses are sent. Other deadlines are named by group ids. A
# group with this id only gets additional ticks.
RESPONSES: Final = "\0responses"
# Cost of building a group in steps, in units of about 1 us.
_BUILD_COST: Final = 25


class ClassicGroups:
    """The part of a GroupCoordinator that handles requests to classic groups.

    `groups` and `unwritten` are the coordinator's own: all groups, and the ids of those without a record in the log.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        groups: dict[str, Group],
        unwritten: dict[str, None],
        config: Config,
        timing: Timing,
        log: CoordinatorLog[Any],
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._unwritten = unwritten
        self._timing = timing
        self._log = log
        self.environment = GroupEnvironment(
            config, timing.random_id, timing.wall_ms, self._persist, self._add_pending
        )
        # (group id, member id) of the member ids that no client has used yet; the oldest first.
        self._pending: dict[tuple[str, str], None] = {}
        self._replayed: dict[str, GroupSnapshot] = {}
        self.responses = PacedResponses(lambda: coordinator.bring_forward(RESPONSES))  # To joins and syncs.
        self.is_over = False  # True after the coordinator has resigned or was abandoned.

    def find(self, group_id: str) -> ClassicGroup | None:
        """Return a classic group. None if no group has this id, or if the group has another protocol."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def add(self, group_id: str) -> ClassicGroup:
        """Add an empty classic group. It replaces a group with the same id."""
        group = self._groups[group_id] = ClassicGroup(group_id, self.environment)
        return group

    def group_of_offsets(self, group_id: str) -> Group:
        """Return the group of a committed offset. If it does not exist, add a classic one that only stores offsets."""
        return self._groups.get(group_id) or self.add(group_id)

    def add_unwritten(self, group_id: str) -> ClassicGroup:
        """Add a classic group without a record in the log.

        If there are too many, delete the oldest one without members. A client can create such a group with each
        request, so without a limit it could fill the memory.
        """
        group = self.add(group_id)
        self._unwritten[group_id] = None
        while (
            oldest_id := _pop_excess(self._unwritten, UNWRITTEN_GROUPS_MAX, lambda each: each)
        ) is not None:
            oldest = self._groups.get(oldest_id)
            # Do not delete a group that has a record by now (its generation is not 0), or that has members.
            if oldest is not None and oldest.is_empty and not oldest.generation:
                self._coordinator.delete_without_offsets(oldest_id)
        return group

    # -- loading -----------------------------------------------------------------------------------------------

    def replay(self, group_id: str, snapshot: GroupSnapshot) -> None:
        """Replay the last record of a group."""
        self._replayed[group_id] = snapshot

    def restore_replayed(self) -> Work:
        """Add the groups that exist after the replay of the log, in steps. Call it once, at the end of the replay."""
        replayed, self._replayed = self._replayed, {}
        for group_id in list(replayed):
            group = ClassicGroup(group_id, self.environment)
            yield from group.restore(replayed.pop(group_id))
            self._groups[group_id] = group
            yield _BUILD_COST

    # -- requests ----------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: JoinReply) -> None:
        """Handle a JoinGroup. The first member creates the group."""
        group = self.find(group_id) or self.add_unwritten(group_id)
        group.join(request, self._timing.now_ms(), partial(self.responses.enqueue, reply))

    def sync(self, group_id: str, request: SyncRequest, reply: SyncReply) -> None:
        """Handle a SyncGroup: reply with the assignment when the leader has sent it, or with an error at once."""
        group = self.find(group_id)
        if group is None or not group_id:  # The empty id can have offsets of old consumers, but no members.
            reply(SyncResult(_unknown_member(group_id)))
            return
        group.sync(request, self._timing.now_ms(), partial(self.responses.enqueue, reply))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
        """Handle a Heartbeat: renew the session. Return NONE, REBALANCE_IN_PROGRESS to join again, or an error."""
        group = self.find(group_id)
        if group is None or not group_id:
            return _unknown_member(group_id)
        return group.heartbeat(member_id, instance_id, generation, self._timing.now_ms())

    def leave(self, group_id: str, members: Sequence[LeavingMember], reply: LeaveReply) -> None:
        """Handle a LeaveGroup: remove members. Reply with a result for each; UNKNOWN_MEMBER_ID if there is no group."""
        group = self.find(group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            left = tuple(LeftMember(each.member_id, each.group_instance_id, unknown) for each in members)
            reply(LeaveResult(ErrorCode.NONE, left))
            return
        group.leave(members, self._timing.now_ms(), reply)

    # -- member ids that no client has used yet ----------------------------------------------------------------

    def _add_pending(self, group_id: str, member_id: str) -> None:
        """Store a member id that a client got but has not used yet. If there are too many, discard the oldest one.

        Every JoinGroup without a member id gets a new one, so without a limit clients could fill the memory.
        """
        self._pending[group_id, member_id] = None
        oldest = _pop_excess(self._pending, PENDING_MEMBERS_MAX, lambda each: each[0])
        if oldest is not None:
            oldest_group_id, oldest_id = oldest
            group = self.find(oldest_group_id)
            if group is not None:
                group.discard_pending(oldest_id, self._timing.now_ms())

    def discard_used_pending(self) -> None:
        """Remove member ids from the list of unused ones if a client has joined with them, or if they have expired."""
        self._pending = {
            (group_id, member_id): None
            for group_id, member_id in self._pending
            if (group := self.find(group_id)) is not None and member_id in group.roster.pending
        }

    # -- records -----------------------------------------------------------------------------------------------

    def _persist(self, snapshot: GroupSnapshot, on_written: OnWritten) -> bool:
        """Append a group's state to the log. Return False if the log rejected the record, for example on a full disk.

        `on_written` gets the result when a sync has confirmed the record or has failed.
        """

        def on_done(code: Code) -> None:
            if self.is_over:
                return  # The steps of the resignation answer the requests that wait for this write.
            on_written(code, self._timing.now_ms())
            self._coordinator.after_change(snapshot.group_id)

        is_appended = False

        def apply(_number: int, _offset: int) -> None:
            nonlocal is_appended
            is_appended = True

        records: list[KeyAndValue] = [(encode_group_key(snapshot.group_id), encode_group_value(snapshot))]
        # Kafka stores the group when the leader's assignment has arrived, before it answers any SyncGroup. The
        # next coordinator of the group then knows the generation of every member.
        self._log.write(Write(records, on_done, apply))
        # Flush at once, so that the group learns whether its snapshot is in the log. Otherwise it could make a second
        # snapshot from a state that the log never gets.
        self._log.flush()
        return is_appended


def _pop_excess(table: dict[T, None], entries_max: int, group_id_of: Callable[[T], str]) -> T | None:
    """Remove and return the oldest entry if the table exceeds a limit. Return None if it does not.

    One limit is for all entries, a lower one for entries with long group ids. The lower one is checked only if the
    newest entry has a long group id.
    """
    oldest: T | None = None
    if len(group_id_of(next(reversed(table)))) > NAME_MAX:
        long_ones = [each for each in table if len(group_id_of(each)) > NAME_MAX]
        oldest = long_ones[0] if len(long_ones) > LONG_GROUP_IDS_MAX else None
    if oldest is None and len(table) > entries_max:
        oldest = next(iter(table))
    if oldest is not None:
        del table[oldest]
    return oldest


def _unknown_member(group_id: str) -> Code:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
