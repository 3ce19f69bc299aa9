"""Description of a streams group for StreamsGroupDescribe."""

from __future__ import annotations

from kproc.broker.streams.configured_topology import ConfiguredTopology
from kproc.broker.streams.messages import DescribedStreamsGroup, DescribedStreamsMember
from kproc.broker.streams.state import StreamsGroupMember, StreamsGroupState
from kproc.broker.streams.topology import Topology


def describe(
    state: StreamsGroupState, configured: ConfiguredTopology | None, assignor: str
) -> DescribedStreamsGroup:
    """Return the description of a group. The topology has numbers of partitions only if all of its topics exist."""
    topology = state.topology or Topology(-1, ())
    if configured is not None and configured.is_ready:
        subtopologies = tuple(each.subtopology for each in configured.subtopologies.values())
        topology = Topology(topology.epoch, subtopologies)
    return DescribedStreamsGroup(
        group_id=state.group_id,
        state=state.state_name,
        group_epoch=state.epoch.epoch,
        assignment_epoch=state.target_epoch.epoch,
        assignor=assignor,
        topology=topology,
        members=tuple(_describe_member(state, member) for member in state.members.values()),
    )


def _describe_member(state: StreamsGroupState, member: StreamsGroupMember) -> DescribedStreamsMember:
    # After the replay every member has metadata.
    assert member.metadata is not None
    return DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.state.epoch,
        metadata=member.metadata,
        assignment=member.state.owned.plain,
        target=state.target_of(member.member_id),
        task_offsets=tuple(sorted(member.task_offsets.items())),
        task_end_offsets=tuple(sorted(member.task_end_offsets.items())),
    )
