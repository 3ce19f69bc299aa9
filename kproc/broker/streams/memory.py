"""StreamsMemory: counts the memory that one streams group keeps of its members' requests, for the Handler's limit.

A group keeps its topology as its clients send it, a copy that is fitted to the topics, and the tasks of its members. A
member has texts and tags of its client, and the offsets that it has reported. Contents from a log count, but are never
rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import Final

from kproc.broker.coordinator.member_memory import (
    GroupContent,
    HeldMemory,
    MemberMemory,
    member_bytes,
)
from kproc.broker.coordinator.memory_limit import CountedMemory
from kproc.broker.streams.records import StreamsMember
from kproc.broker.streams.state import StreamsGroupMember, StreamsGroupState
from kproc.broker.streams.tasks import Task
from kproc.broker.streams.topology import Topology

# The memory of a task in the target, in the state of its member and in `Holders`, and of a task's reported offset.
# Measured with 20,000 tasks after a load, in which no two of these share a tuple.
TASK_BYTES: Final = 350
_OFFSET_BYTES: Final = 200


class StreamsMemory:
    """Counts the contents of one group towards the Handler's limit.

    The group and each member refer to the object that counts their contents. They count until the group or the member
    is removed.
    """

    __slots__ = ("_contents", "_group", "_group_id", "_topology")

    def __init__(self, state: StreamsGroupState, contents: MemberMemory) -> None:
        self._group_id = state.group_id
        self._contents = contents
        self._group: CountedMemory | None = contents.hold_group(state.group_id)
        self._topology: HeldMemory[GroupContent] | None = None
        if state.topology is not None:
            self._topology = contents.hold(self._content_of(state.topology, state.target_task_count))
        for member in state.members.values():
            self._count_member(member)

    def release(self, members: Iterable[StreamsGroupMember]) -> None:
        """Remove the group and its members from the memory count."""
        self._group = self._topology = None
        for member in members:
            member.held = None

    def count_topology(self, topology: Topology, task_count: int) -> None:
        """Count the group's topology and its tasks.

        Raises GROUP_MAX_SIZE_REACHED if they have grown and exceed the limit. The earlier topology and tasks then still
        count.
        """
        content = self._content_of(topology, task_count)
        self._contents.check_room(content, replaced=self._topology)
        self._topology = self._contents.hold(content)

    def check_member(self, member_id: str, known: StreamsGroupMember | None, metadata: StreamsMember) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the metadata of a member have grown and exceed the limit.

        `known`: the member as it is now, or the static member that it replaces.
        """
        if known is None or metadata != known.metadata:
            size = metadata.memory_bytes + getsizeof(member_id)
            held = None
            if known is not None:
                size += _bytes_of_offsets(known)
                held = known.held
            content = GroupContent(self._group_id, member_id, size)
            self._contents.check_room(content, own_bytes=member_bytes(), replaced=held)

    def set_offsets(
        self,
        member: StreamsGroupMember,
        offsets: Mapping[Task, int] | None,
        end_offsets: Mapping[Task, int] | None,
    ) -> None:
        """Store the offsets that a member reports, and count the member. None does not change the offsets.

        Discard all offsets of the member if they exceed the Handler's limit of memory. They only help the assignor.
        """
        if offsets is not None:
            member.task_offsets = offsets
        if end_offsets is not None:
            member.task_end_offsets = end_offsets
        content = GroupContent(self._group_id, member.member_id, _bytes_of(member))
        if not self._contents.has_room(content, own_bytes=member_bytes(), replaced=member.held):
            member.task_offsets = member.task_end_offsets = {}
        self._count_member(member)

    def _count_member(self, member: StreamsGroupMember) -> None:
        content = GroupContent(self._group_id, member.member_id, _bytes_of(member))
        member.held = self._contents.hold(content, member_bytes())

    def _content_of(self, topology: Topology, task_count: int) -> GroupContent:
        size = topology.memory_bytes + getsizeof(self._group_id) + TASK_BYTES * task_count
        return GroupContent(self._group_id, "", size)


def _bytes_of(member: StreamsGroupMember) -> int:
    return member.metadata_bytes + _bytes_of_offsets(member)


def _bytes_of_offsets(member: StreamsGroupMember) -> int:
    return _OFFSET_BYTES * (len(member.task_offsets) + len(member.task_end_offsets))
