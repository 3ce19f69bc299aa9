"""GroupDeletion: the DeleteGroups requests of one coordinator, some of which take several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.coordinator.rules import Code, OnCode
from kproc.broker.coordinator.steps import Work
from kproc.broker.group.offsets import GroupOffsets
from kproc.broker.group.removal import TOMBSTONES_AT_ONCE, GroupRemoval
from kproc.broker.share.membership.group import ShareGroup
from kproc.broker.share.membership.stored_states import StoredStates
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.coordinator import Group


class GroupDeletion:
    """The part of a GroupCoordinator that deletes groups.

    `groups` and `offsets` are the coordinator's own. `start_work` runs work in steps, the first in the next duty cycle.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: GroupOffsets,
        states: StoredStates,
        removal: GroupRemoval,
        log: CoordinatorLog[Any],
        start_work: Callable[[Work], None],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._states = states
        self._removal = removal
        self._log = log
        self._start_work = start_work
        # Groups whose deletion takes several steps, because they have many offsets, or states of a share coordinator.
        # Joins, heartbeats and commits are rejected meanwhile, because the last step would delete what they add.
        self.running: dict[str, OnCode] = {}

    def delete(self, group_id: str, on_done: OnCode) -> None:
        """Handle a DeleteGroups for one group: delete it with all its offsets. `on_done` gets the error code."""
        self._log.flush()
        group = self._groups.get(group_id)
        if group_id in self.running:
            on_done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif group is None:
            on_done(ErrorCode.GROUP_ID_NOT_FOUND)
        elif not group.is_empty:
            on_done(ErrorCode.NON_EMPTY_GROUP)  # KIP-229: only a group without members can be deleted.
        elif isinstance(group, ShareGroup):
            self.running[group_id] = on_done
            self._states.delete_group(group, partial(self._finish_share_deletion, group_id))
        elif self._offsets.has_more_than(group_id, TOMBSTONES_AT_ONCE):
            self.running[group_id] = on_done
            self._start_work(self._removal.delete_in_steps(group_id, lambda: self.running.pop(group_id)))
        else:
            self._removal.delete(group_id, on_done)

    def _finish_share_deletion(self, group_id: str, code: Code) -> None:
        """Delete a share group after its states were deleted.

        If `code` is an error, they were not, and the group stays.
        """
        on_done = self.running.pop(group_id, None)
        if on_done is None:
            return  # `abandon` has answered.
        if code:
            on_done(code)
        else:
            self._removal.delete(group_id, on_done)

    def abandon(self) -> None:
        """Answer the requests whose deletion is not finished with NOT_COORDINATOR, because the coordinator resigns."""
        waiting = list(self.running.values())
        self.running.clear()
        for on_done in waiting:
            on_done(ErrorCode.NOT_COORDINATOR)
