"""Tasks of Kafka Streams, and sets of tasks by role.

A subtopology has one task for each partition of its source topics. A member runs a task as active, keeps a copy of its
state as standby, or restores its state as warm-up before the task moves to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

Task = tuple[str, int]  # The id of the subtopology, and the partition.
TaskSet = frozenset[Task]
_NONE: TaskSet = frozenset()


class MemberTasks(msgspec.Struct, frozen=True, array_like=True):
    """The tasks of a member, by role."""

    active: TaskSet = _NONE
    standby: TaskSet = _NONE
    warmup: TaskSet = _NONE

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def is_part_of(self, other: MemberTasks) -> bool:
        """Return True if `other` has all of these tasks in the same roles."""
        return self.active <= other.active and self.standby <= other.standby and self.warmup <= other.warmup

    def has_any_of(self, other: MemberTasks) -> bool:
        """Return True if one of these tasks is in `other`, in the same role."""
        return not (
            self.active.isdisjoint(other.active)
            and self.standby.isdisjoint(other.standby)
            and self.warmup.isdisjoint(other.warmup)
        )


class OwnedTasks(msgspec.Struct, frozen=True):
    """The tasks that a member owns. For each active task, the epoch at which the member got it.

    A member may commit offsets of an active task with that epoch or a later one (coordinator/recorded_group.py).
    """

    active: Mapping[Task, int] = {}
    standby: TaskSet = _NONE
    warmup: TaskSet = _NONE

    @property
    def plain(self) -> MemberTasks:
        """The tasks without epochs."""
        return MemberTasks(frozenset(self.active), self.standby, self.warmup)


def partitions_by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return the sorted partitions of each subtopology, in the order of the subtopologies' ids."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return found
