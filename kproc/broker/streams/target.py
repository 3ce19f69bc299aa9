"""The target assignment of a streams group: which tasks each member shall run."""

from __future__ import annotations

from kproc.broker.coordinator.steps import Computation
from kproc.broker.streams.assignor import SubtopologyTasks, TaskAssignor, TaskMember
from kproc.broker.streams.configured_topology import ConfiguredTopology
from kproc.broker.streams.state import StreamsGroupState
from kproc.broker.streams.tasks import MemberTasks


def compute_target(
    state: StreamsGroupState, configured: ConfiguredTopology | None, assign: TaskAssignor, standby_count: int
) -> Computation[dict[str, MemberTasks]]:
    """Compute the tasks of each member, by its member id, from the group's state at the first step.

    configured: the group's topology as fitted to the topics. While it is None or has a problem, no member gets tasks.
    standby_count: the number of standby copies of each stateful task.
    """
    if configured is None or not configured.is_ready:
        return dict.fromkeys(state.members, MemberTasks())
    members = {
        member.member_id: TaskMember(
            member.process_id,
            frozenset(member.state.owned.active),
            member.state.owned.standby,
            member.task_offsets,
        )
        for member in state.members.values()
    }
    subtopologies = {
        each_id: SubtopologyTasks(each.task_count, bool(each.subtopology.state_changelog_topics))
        for each_id, each in configured.subtopologies.items()
    }
    return (yield from assign(members, subtopologies, standby_count))
