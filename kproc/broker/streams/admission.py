"""Admission of a heartbeat to a streams group: find the member that sent it, and validate the request (KIP-1071).

These functions do not change the group. A heartbeat that is rejected must not leave records, so all of them run before
the first record is appended.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kproc.broker.coordinator.member_errors import group_is_full, unreleased_instance, wrong_epoch
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kproc.broker.streams.configured_topology import ConfiguredTopology
from kproc.broker.streams.messages import StreamsHeartbeat, TaskOffsets
from kproc.broker.streams.reconciliation import StreamsMemberState
from kproc.broker.streams.records import StreamsMember
from kproc.broker.streams.state import StreamsGroupMember, StreamsGroupState
from kproc.broker.streams.tasks import MemberTasks, Task
from kproc.broker.streams.topology import Topology
from kproc.common.errors import ErrorCode, KafkaError


def admit(state: StreamsGroupState, request: StreamsHeartbeat, size_max: int) -> StreamsGroupMember | None:
    """Return the member that sent the request, or the static member that it replaces. None if a new member joins.

    Raises KafkaError if the member is unknown or fenced, or cannot join.
    """
    member_id, instance_id = request.member_id, request.instance_id
    if request.member_epoch != JOIN_EPOCH:
        member = state.get_member(member_id, instance_id)
        _check_epoch(member.state, request)
        return member
    _check_instance(state, request)
    if instance_id is not None and instance_id in state.instance_ids:
        member = state.members[state.instance_ids[instance_id]]
        if member.member_id != member_id and member.state.epoch != STATIC_LEAVE_EPOCH:
            raise unreleased_instance(instance_id, member_id, member.member_id)
        return member
    # A static member that returns, and a known member that joins again, are counted in the group already.
    # Rejecting them would shrink a full group with each restart of a client.
    if member_id not in state.members and len(state.members) >= size_max:
        raise group_is_full("streams", size_max)
    # The member id is the client's own choice (KIP-1082). A known member that joins again was fenced, or its first
    # response was lost.
    return state.members.get(member_id)


def _check_instance(state: StreamsGroupState, request: StreamsHeartbeat) -> None:
    """Raise INVALID_REQUEST if a member of the group joins again with another instance id.

    The static member with that instance id may be away and have tasks. They would replace those of the joining member
    without a revocation.
    """
    member = state.members.get(request.member_id)
    if member is None or member.metadata is None or request.instance_id is None:
        return
    known_id = member.metadata.instance_id
    if known_id != request.instance_id:
        user = "dynamic member" if known_id is None else f"static member with instance id {known_id}"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Member {request.member_id} with instance id {request.instance_id} cannot join the group because the "
            f"member id is already used by a {user}.",
        )


def _check_epoch(state: StreamsMemberState, request: StreamsHeartbeat) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the request has the member's epoch, or the previous one and tasks it owns."""
    if request.member_epoch == state.epoch:
        return
    # The member repeats the previous epoch if the response with its new one was lost.
    is_repeated = request.member_epoch < state.epoch and request.member_epoch == state.previous_epoch
    # The tasks must be among those that the coordinator knows. Otherwise the member may run a task that was
    # given to another one.
    if is_repeated and request.owned is not None and request.owned.is_part_of(state.owned.plain):
        return
    raise wrong_epoch("streams", request.member_epoch, state.epoch)


def topology_of(state: StreamsGroupState, request: StreamsHeartbeat) -> Topology:
    """Return the topology of the group after the request.

    Raises INVALID_REQUEST if the request has another topology whose epoch is not lower, and FENCED_MEMBER_EPOCH if
    neither the group nor the request has a topology.
    """
    known, own = state.topology, request.topology
    if known is None:
        if own is None:
            # This happens only if the log has lost the topology's record. The member sends the topology when it joins
            # again.
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "The group has no topology. Join again.")
        return own
    # A higher epoch would be an update of the topology, which Kafka 4.4 rejects, too. A lower epoch is
    # accepted: it is an old client, which gets the status STALE_TOPOLOGY.
    if own is not None and known.epoch <= own.epoch and not known.is_same(own):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def reject_unknown_tasks(configured: ConfiguredTopology, owned: MemberTasks | None) -> None:
    """Raise INVALID_REQUEST if a member reports tasks that the topology does not have."""
    # Without a configured topology the number of tasks is unknown, for example because a source topic was
    # deleted. Rejecting the member would not bring the topic back.
    if owned is None or not configured.is_ready:
        return
    tasks: Iterable[tuple[str, int]] = (*owned.active, *owned.standby, *owned.warmup)
    for subtopology_id, partition in tasks:
        subtopology = configured.subtopologies.get(subtopology_id)
        if subtopology is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Subtopology {subtopology_id} does not exist in the topology."
            )
        if not 0 <= partition < subtopology.task_count:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Task {partition} for subtopology {subtopology_id} is invalid. Number of tasks for this subtopology: "
                f"{subtopology.task_count}",
            )


def reject_repeated_offsets(offsets: TaskOffsets | None) -> None:
    """Raise INVALID_REQUEST if a member reports two offsets of one task."""
    seen: set[Task] = set()
    for task, _offset in offsets or ():
        if task in seen:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Task offsets contain a duplicate entry for subtopology {task[0]} and partition {task[1]}.",
            )
        seen.add(task)


def merged(known: StreamsMember, request: StreamsHeartbeat) -> StreamsMember:
    """Return the metadata of a member after a request. A field that the request does not have keeps its value.

    If a request that joins has no endpoint, the member has none from now on.
    """
    changes: dict[str, object] = {"client_id": request.client_id, "client_host": request.client_host}
    for name in ("instance_id", "rack_id", "process_id"):
        value = getattr(request, name)
        if value is not None:
            changes[name] = value
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.topology is not None:
        changes["topology_epoch"] = request.topology.epoch
    if request.client_tags is not None:
        changes["client_tags"] = tuple(sorted(request.client_tags))
    # None means "no endpoint" only in a request that joins. In other requests it means no change.
    if request.endpoint is not None or request.member_epoch == JOIN_EPOCH:
        changes["endpoint"] = request.endpoint
    return msgspec.structs.replace(known, **changes)


def filter_offsets(topology: Topology, offsets: TaskOffsets | None) -> dict[Task, int] | None:
    """Return the offsets of tasks whose subtopology exists. None if the request has no list of offsets.

    The coordinator keeps the offsets in memory. Without this filter a client could fill it with ids of subtopologies
    that do not exist, of 32 KB each.
    """
    if offsets is None:
        return None
    ids = {each.subtopology_id: each.subtopology_id for each in topology.subtopologies}
    return {(ids[name], partition): offset for (name, partition), offset in offsets if name in ids}


def is_new_epoch_needed(
    state: StreamsGroupState, known: StreamsGroupMember | None, after: StreamsMember, *, is_static: bool
) -> bool:
    """Return True if the member's change needs a new assignment.

    known: the member before the request, None for a new one. after: its metadata after the request. A static member may
    change its client and its endpoint without a new assignment.
    """
    if known is None or known.metadata is None:
        return True
    # The member has no target although the group's epoch is not above the target's: the write of the new epoch's
    # record, which follows the member's records, has failed. Raise the epoch now.
    if state.epoch.epoch <= state.target_epoch.epoch and known.member_id not in state.targets:
        return True
    before = known.metadata
    if not is_static:
        return after != before
    return (before.topology_epoch, before.rack_id, before.client_tags, before.process_id) != (
        after.topology_epoch,
        after.rack_id,
        after.client_tags,
        after.process_id,
    )
