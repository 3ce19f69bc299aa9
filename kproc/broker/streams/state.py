"""StreamsGroupState: the state of one streams group, built from its records (KIP-1071). Only records change it.

The coordinator applies each record when it is in the log. A load replays only the last record of each key, in any
order, and no tombstones. A replay can therefore meet a member's state before its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from sys import getsizeof
from typing import Final

from kproc.broker.coordinator.member_deadlines import TimedMember
from kproc.broker.coordinator.member_memory import GroupContent, HeldMemory
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.recorded_states import RecordedState
from kproc.broker.streams.reconciliation import Holders, StreamsMemberState
from kproc.broker.streams.records import (
    StreamsGroupEpoch,
    StreamsMember,
    StreamsRecordType,
    StreamsRecordValue,
    StreamsTargetEpoch,
)
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, Task, TaskSet
from kproc.broker.streams.topology import Topology

# As in Kafka, a group and its target begin at epoch 1. A member that joins during the initial rebalance delay gets this
# epoch, because 0 would let it send its next heartbeat as a request to join.
_FIRST_TARGET_EPOCH: Final = StreamsTargetEpoch(1)


class StreamsGroupMember(TimedMember):
    """One member: the values of its two records, its deadlines, and the offsets to which it has restored its tasks.

    Deadlines and offsets are in memory only.
    """

    __slots__ = ("held", "metadata", "metadata_bytes", "state", "task_end_offsets", "task_offsets")

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.metadata: StreamsMember | None = None  # None only while the log is replayed.
        self.metadata_bytes = 0  # The memory of the metadata and of the member's id.
        self.held: HeldMemory[GroupContent] | None = None  # Counts the memory of the member.
        self.state = StreamsMemberState(0)
        self.task_offsets: Mapping[Task, int] = {}
        self.task_end_offsets: Mapping[Task, int] = {}

    @property
    def process_id(self) -> str:
        return "" if self.metadata is None else self.metadata.process_id


class StreamsGroupState(RecordedState[StreamsGroupMember, MemberTasks]):
    """The epochs, members, topology and assignments of one group."""

    record_types = StreamsRecordType
    member_type = StreamsGroupMember
    no_target = MemberTasks()
    epoch: StreamsGroupEpoch
    target_epoch: StreamsTargetEpoch

    __slots__ = ("_active", "_standby", "_warmup", "holders", "topology")

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = StreamsGroupEpoch(0)
        self.target_epoch = _FIRST_TARGET_EPOCH
        self.topology: Topology | None = None
        self._active: dict[Task, str] = {}
        self._standby: dict[Task, set[str]] = {}
        self._warmup: dict[Task, set[str]] = {}
        self.holders = Holders(self._active, self._standby, self._warmup)

    @property
    def state_name(self) -> str:
        name = super().state_name
        is_ready = self.topology is not None and self.topology.epoch == self.epoch.validated_topology_epoch
        return name if is_ready or name == "Empty" else "NotReady"

    def drop_incomplete_members(self) -> None:
        for member in list(self.members.values()):
            if member.metadata is None:
                del self.members[member.member_id]
        self._rebuild_holders()

    def _rebuild_holders(self) -> None:
        """Compute anew from the final states of the members which processes have each task.

        The replay alone can be wrong. Compaction may have removed the record by which a member gave up a task, but not
        the member's earlier records. If the task has moved inside one process, the replay of a later record has removed
        that process from the task.
        """
        for held in (self._active, self._standby, self._warmup):
            held.clear()
        for member in self.members.values():
            self._add_holder(member)

    @property
    def target_task_count(self) -> int:
        """The number of tasks in the targets of all members. Standby and warm-up tasks count, too."""
        return sum(len(each.active) + len(each.standby) + len(each.warmup) for each in self.targets.values())

    def record_keys(self) -> Iterator[RecordKey]:
        yield from super().record_keys()
        yield RecordKey(StreamsRecordType.GROUP, self.group_id)
        yield RecordKey(StreamsRecordType.TOPOLOGY, self.group_id)

    # -- records -----------------------------------------------------------------------------------------------

    def apply(self, key: RecordKey, value: StreamsRecordValue | None) -> None:
        match value:
            case StreamsGroupEpoch():
                self.epoch = value
            case StreamsTargetEpoch():
                self.target_epoch = value
            case Topology():
                self.topology = value
            case StreamsMember():
                self._set_metadata(self._member(key.name), value)
            case StreamsMemberState():
                self._set_state(self._member(key.name), value)
            case MemberTasks():
                self.targets[key.name] = value
            case None:
                self._remove(key)

    def _set_metadata(self, member: StreamsGroupMember, metadata: StreamsMember) -> None:
        self._release_instance(member)
        # Tasks are recorded by process, so move the member's tasks from its former process to the new one.
        self._remove_holder(member)
        member.metadata = metadata
        member.metadata_bytes = metadata.memory_bytes + getsizeof(member.member_id)
        self._add_holder(member)
        if metadata.instance_id is not None:
            self.instance_ids[metadata.instance_id] = member.member_id

    def _release_instance(self, member: StreamsGroupMember) -> None:
        instance_id = None if member.metadata is None else member.metadata.instance_id
        # Keep the instance id if a successor of the static member uses it already.
        if instance_id is not None and self.instance_ids.get(instance_id) == member.member_id:
            del self.instance_ids[instance_id]

    def _set_state(self, member: StreamsGroupMember, state: StreamsMemberState) -> None:
        self._remove_holder(member)
        member.state = state
        self._add_holder(member)

    def _remove_holder(self, member: StreamsGroupMember) -> None:
        process_id = member.process_id
        for tasks in (member.state.owned, member.state.pending_revocation):
            for task in tasks.active:
                if self._active.get(task) == process_id:
                    del self._active[task]
            for copies, held in self._copies(tasks):
                for task in copies:
                    processes = held.get(task, set())
                    processes.discard(process_id)
                    if not processes:
                        held.pop(task, None)

    def _add_holder(self, member: StreamsGroupMember) -> None:
        if member.metadata is None:
            return
        process_id = member.process_id
        for tasks in (member.state.owned, member.state.pending_revocation):
            self._active.update(dict.fromkeys(tasks.active, process_id))
            for copies, held in self._copies(tasks):
                for task in copies:
                    held.setdefault(task, set()).add(process_id)

    def _copies(self, tasks: OwnedTasks) -> tuple[tuple[TaskSet, dict[Task, set[str]]], ...]:
        return (tasks.standby, self._standby), (tasks.warmup, self._warmup)

    def _remove(self, key: RecordKey) -> None:
        match key.record_type:
            case StreamsRecordType.MEMBER_STATE:
                self._set_state(self.members[key.name], StreamsMemberState(0))
            case StreamsRecordType.MEMBER_TARGET:
                self.targets.pop(key.name, None)
            case StreamsRecordType.MEMBER:
                self._release_instance(self.members.pop(key.name))
