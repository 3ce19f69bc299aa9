"""The server-side assignor of streams groups: `sticky` (KIP-1071).

`assign_sticky` is a pure function that runs in bounded steps (coordinator/steps.py). Its input is the members of a
group with the tasks that they own now, and the number of tasks of each subtopology. Its result is the next target
assignment. The function visits members and tasks in the order of their names, so that equal inputs give equal results.

An active task stays with its owner, or moves to a member that has its state, as long as no member exceeds its share.
The other active tasks go to the process with the smallest load, which is the number of its tasks divided by the number
of its members. Standby tasks of stateful subtopologies go to processes without the active task, in the same order of
preference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from kproc.broker.coordinator.steps import Computation, Work
from kproc.broker.streams.tasks import MemberTasks, Task, TaskSet

# Cost of the assignment of a task, in units of about 1 us.
_TASK_COST: Final = 3


class TaskMember(msgspec.Struct, frozen=True):
    """An assignor's input for one member: its process, its present tasks, and the task states that it has restored."""

    process_id: str
    active: TaskSet = frozenset()
    standby: TaskSet = frozenset()
    # The offsets up to which the member has restored the state of tasks.
    offsets: Mapping[Task, int] = msgspec.field(default_factory=dict)


class SubtopologyTasks(msgspec.Struct, frozen=True):
    """The tasks of one subtopology: partitions 0 to `count` - 1."""

    count: int
    is_stateful: bool


def assign_sticky(
    members: Mapping[str, TaskMember], subtopologies: Mapping[str, SubtopologyTasks], standby_count: int
) -> Computation[dict[str, MemberTasks]]:
    """Compute the tasks of each member, with `standby_count` standby copies of each stateful task if possible."""
    if not members:
        return {}
    plan = _Plan(members)
    yield from plan.read_members(members)
    active = _tasks(subtopologies.items())
    stateful = _tasks(each for each in subtopologies.items() if each[1].is_stateful)
    plan.active_quota = _Quota(len(active), len(members))
    plan.quota = _Quota(len(active) + len(stateful) * standby_count, len(members))
    yield len(active)
    yield from plan.assign_active(active)
    if standby_count:
        yield from plan.assign_standby(stateful, standby_count)
    return {
        member_id: MemberTasks(frozenset(plan.active[member_id]), frozenset(plan.standby[member_id]))
        for member_id in members
    }


def _tasks(subtopologies: Iterable[tuple[str, SubtopologyTasks]]) -> list[Task]:
    return [(each_id, partition) for each_id, each in subtopologies for partition in range(each.count)]


class _Quota:
    """The share of tasks of each member: the number of tasks divided by the number of members, rounded up.

    When a member has reached its share, the other members share the remaining tasks.
    """

    def __init__(self, total: int, member_count: int) -> None:
        self._total = total
        self._member_count = member_count
        self.size = self._share()

    def _share(self) -> int:
        # The share is 0 after all members have reached theirs. They can still get tasks of other roles.
        return -(-self._total // self._member_count) if self._member_count else 0

    def count(self, size: int) -> None:
        """Record that a member has `size` tasks now.

        If that is its share, compute the share of the other members anew.
        """
        if size == self.size:
            self._member_count -= 1
            self._total -= size
            self.size = self._share()


class _Process:
    """A process of the application, with the number of tasks of each of its members."""

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.sizes: Counter[str] = Counter()
        self.tasks: set[Task] = set()
        self._by_size: list[tuple[int, str]] | None = None

    @property
    def load(self) -> float:
        return self.sizes.total() / len(self.sizes)

    def add(self, member_id: str, task: Task) -> int:
        """Add a task to a member of the process. Return the member's number of tasks."""
        self.tasks.add(task)
        self.sizes[member_id] += 1
        self._by_size = None
        return self.sizes[member_id]

    def add_to_smallest(self, task: Task) -> tuple[str, int]:
        """Add a task to the member with the fewest tasks. Return the member and its number of tasks."""
        by_size = self._by_size
        if by_size is None:
            by_size = [(size, member_id) for member_id, size in self.sizes.items()]
            heapify(by_size)
        size, member_id = heappop(by_size)
        heappush(by_size, (size + 1, member_id))
        self.add(member_id, task)
        self._by_size = by_size
        return member_id, size + 1


class _Plan:
    """The assignment of tasks that is being computed."""

    active_quota: _Quota
    quota: _Quota  # Quota of active and standby tasks together.

    def __init__(self, members: Mapping[str, TaskMember]) -> None:
        self.active: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self.standby: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self._processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._owners: dict[Task, str] = {}  # The member that runs each task now.
        self._with_state: dict[
            Task, list[str]
        ] = {}  # The members that have each task's state, the best one first.

    def read_members(self, members: Mapping[str, TaskMember]) -> Work:
        """Collect the processes of the members, and the tasks and task states that the members have."""
        candidates: dict[Task, list[tuple[bool, int, str]]] = {}
        for member_id in sorted(members):
            member = members[member_id]
            process = self._processes.setdefault(member.process_id, _Process(member.process_id))
            process.sizes[member_id] = 0
            self._process_of[member_id] = process
            self._owners.update(dict.fromkeys(member.active, member_id))
            for task in member.standby | member.offsets.keys():
                # Rank members that only have the task's state on disk behind members with a standby task, which keep it
                # up to date.
                rank = (task not in member.standby, -member.offsets.get(task, 0), member_id)
                candidates.setdefault(task, []).append(rank)
            yield 1 + len(member.active) + len(member.standby) + len(member.offsets)
        for task, ranks in candidates.items():
            self._with_state[task] = [member_id for _, _, member_id in sorted(ranks)]
            yield 1 + len(ranks)

    def assign_active(self, tasks: list[Task]) -> Work:
        """Assign each task as active to one member."""
        # Sort by partition number, so that a member keeps tasks of the same partition together.
        unowned: list[Task] = []
        for task in sorted(tasks, key=_by_partition):
            if not self._keep_active(task, self._owners.get(task)):
                unowned.append(task)
            yield _TASK_COST
        left: list[Task] = []
        for task in unowned:
            if not self._keep_active(task, self._least_loaded_with_state(task)):
                left.append(task)
            yield _TASK_COST + len(self._with_state.get(task, ()))
        by_load = self._by_load()
        for task in sorted(left):
            process = self._processes[heappop(by_load)[1]]
            self._count_active(task, *process.add_to_smallest(task))
            heappush(by_load, (process.load, process.process_id))
            yield _TASK_COST

    def _keep_active(self, task: Task, member_id: str | None) -> bool:
        """Assign an active task to this member unless it has reached its share. Return True if it was assigned."""
        if member_id is None or self._process_of[member_id].sizes[member_id] >= self.active_quota.size:
            return False
        self._count_active(task, member_id, self._process_of[member_id].add(member_id, task))
        return True

    def _count_active(self, task: Task, member_id: str, size: int) -> None:
        self.active[member_id].add(task)
        self.active_quota.count(size)
        self.quota.count(size)

    def assign_standby(self, tasks: list[Task], standby_count: int) -> Work:
        """Assign each task as standby to `standby_count` processes without it, or to all of them if there are fewer."""
        left: list[tuple[Task, int]] = []
        for task in sorted(tasks, key=_by_partition, reverse=True):
            placed = 0
            while placed < standby_count and self._keep_standby(task):
                placed += 1
            if placed < standby_count:
                left.append((task, standby_count - placed))
            yield (_TASK_COST + len(self._with_state.get(task, ()))) * (placed + 1)
        by_load = self._by_load()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                yield _TASK_COST + standby_count
                if not self._add_standby(task, by_load):
                    break  # All processes have the task already.

    def _keep_standby(self, task: Task) -> bool:
        """Assign a standby to the task's present owner, or else to the least loaded member that has its state.

        Return False if neither exists, or if they have reached their share.
        """
        owner = self._owners.get(task)
        if owner is not None and task in self._process_of[owner].tasks:
            owner = None
        return self._keep_standby_at(task, owner) or self._keep_standby_at(
            task, self._least_loaded_with_state(task, is_standby=True)
        )

    def _keep_standby_at(self, task: Task, member_id: str | None) -> bool:
        if member_id is None or self._process_of[member_id].sizes[member_id] >= self.quota.size:
            return False
        self._count_standby(task, member_id, self._process_of[member_id].add(member_id, task))
        return True

    def _add_standby(self, task: Task, by_load: list[tuple[float, str]]) -> bool:
        """Assign a standby to the least loaded process without the task. Return False if all processes have it."""
        skipped: list[tuple[float, str]] = []
        is_added = False
        while by_load and not is_added:
            entry = heappop(by_load)
            process = self._processes[entry[1]]
            if task not in process.tasks:
                self._count_standby(task, *process.add_to_smallest(task))
                entry = process.load, process.process_id
                is_added = True
            skipped.append(entry)
        for entry in skipped:
            heappush(by_load, entry)
        return is_added

    def _count_standby(self, task: Task, member_id: str, size: int) -> None:
        self.standby[member_id].add(task)
        self.quota.count(size)

    def _least_loaded_with_state(self, task: Task, *, is_standby: bool = False) -> str | None:
        """Return the least loaded member that has the task's state, or None if no member has it.

        With `is_standby`, members of processes that have the task already are left out.
        """
        found: str | None = None
        load, size = 0.0, 0
        for member_id in self._with_state.get(task, ()):
            process = self._process_of[member_id]
            if is_standby and task in process.tasks:
                continue
            # The list begins with the best state. Prefer another member only if its process has a smaller load and the
            # member has fewer tasks.
            if found is None or (process.load < load and process.sizes[member_id] < size):
                found, load, size = member_id, process.load, process.sizes[member_id]
        return found

    def _by_load(self) -> list[tuple[float, str]]:
        by_load = [(process.load, process.process_id) for process in self._processes.values()]
        heapify(by_load)
        return by_load


def _by_partition(task: Task) -> tuple[int, str]:
    return task[1], task[0]


TaskAssignor = Callable[
    [Mapping[str, TaskMember], Mapping[str, SubtopologyTasks], int], Computation[dict[str, MemberTasks]]
]
# The assignors by their names in group.streams.assignors and streams.assignor.name.
TASK_ASSIGNORS: Final[Mapping[str, TaskAssignor]] = {"sticky": assign_sticky}
