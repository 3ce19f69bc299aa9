"""The target assignment of a streams group: tasks for all members, or none while the topology has a problem."""

from __future__ import annotations

from kproc.broker.streams import target
from kproc.broker.streams.assignor import assign_sticky
from kproc.broker.streams.configured_topology import configure_topology
from kproc.broker.streams.state import StreamsGroupState
from kproc.broker.streams.tasks import MemberTasks
from tests.support.computations import undivided
from tests.support.streams_groups import ALL_TOPICS, COUNT, HonestStreamsMember, StreamsRig

compute_target = undivided(target.compute_target)


def members_of_two(rig: StreamsRig) -> StreamsGroupState:
    for name in ("a", "b"):
        HonestStreamsMember(rig, name).heartbeat()
    return rig.group.state


def test_target_gives_each_task_to_one_member(rig: StreamsRig) -> None:
    state, configured = members_of_two(rig), configure_topology(COUNT, ALL_TOPICS.get)
    targets = compute_target(state, configured, assign_sticky, 0)
    tasks = [task for each in targets.values() for task in each.active]
    assert (sorted(targets), len(tasks)) == (["a", "b"], configured.task_count)
    assert len(set(tasks)) == len(tasks)


def test_target_is_empty_while_the_topology_has_a_problem(rig: StreamsRig) -> None:
    state, broken = members_of_two(rig), configure_topology(COUNT, {}.get)
    assert not broken.is_ready
    nothing = {"a": MemberTasks(), "b": MemberTasks()}
    assert compute_target(state, broken, assign_sticky, 0) == nothing
    assert compute_target(state, None, assign_sticky, 0) == nothing
