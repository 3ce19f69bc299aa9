"""StreamsGroup: one streams group, with the rules of Kafka 4.4's GroupMetadataManager (KIP-1071).

The group has no I/O, no clock and no thread. A heartbeat first validates the request, and then runs up to four steps.
The records of the first two are one write. Each write is applied (state.py) before the next step:

1. the member: joins, returns or changes its process (records 23, 19)
2. the group's epoch rises, if members, the topology's topics or the configs of the assignment have changed (17)
3. the target assignment is computed for the group's epoch (21, 20). The target of a large group is not ready when the
   heartbeat ends (TargetComputation), so the next heartbeat of each member continues
4. the member is reconciled with its target (22, reconciliation.py)

If the broker crashes between two steps, the next heartbeat runs the missing ones, so the records of all steps need not
be one batch. The response is sent when all records are synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.coordinator.member_deadlines import UNSETTLED_HEARTBEAT_MS
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, STATIC_LEAVE_EPOCH, MemberPhase
from kproc.broker.coordinator.recorded_group import RecordedGroup, TargetProgress
from kproc.broker.coordinator.steps import Work
from kproc.broker.coordinator.target_computation import is_applicable
from kproc.broker.streams.admission import (
    admit,
    filter_offsets,
    is_new_epoch_needed,
    merged,
    reject_repeated_offsets,
    reject_unknown_tasks,
    topology_of,
)
from kproc.broker.streams.assignor import TASK_ASSIGNORS
from kproc.broker.streams.configured_topology import ConfiguredTopology
from kproc.broker.streams.description import describe
from kproc.broker.streams.environment import StreamsEnvironment
from kproc.broker.streams.fitted_topology import FittedTopology
from kproc.broker.streams.group_records import (
    absence_of_member,
    member_records,
    raised_epoch,
    removal_records,
    target_records,
)
from kproc.broker.streams.memory import StreamsMemory
from kproc.broker.streams.messages import DescribedStreamsGroup, StreamsHeartbeat, StreamsHeartbeatResult
from kproc.broker.streams.reconciliation import reconcile
from kproc.broker.streams.records import (
    STREAMS_RECORDS,
    StreamsMember,
    StreamsRecord,
    StreamsRecordType,
    StreamsTargetEpoch,
)
from kproc.broker.streams.state import StreamsGroupMember, StreamsGroupState
from kproc.broker.streams.statuses import (
    COMPUTING,
    delayed_status,
    missing_tags_statuses,
    shutdown_status,
    stale_statuses,
)
from kproc.broker.streams.target import compute_target
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks
from kproc.broker.streams.topology import StreamsStatus, Topology

if TYPE_CHECKING:
    from kproc.broker.group.messages import CommitRequest

GROUP_TYPE: Final = "streams"


class StreamsGroup(RecordedGroup[StreamsGroupState, StreamsGroupMember, StreamsEnvironment]):
    """One streams group."""

    group_type = GROUP_TYPE
    protocol_type = "streams"
    codec = STREAMS_RECORDS

    __slots__ = ("_delay_end_ms", "_endpoint_epoch", "_fitted", "_memory", "_shutdown_member_id")

    def __init__(self, state: StreamsGroupState, environment: StreamsEnvironment) -> None:
        super().__init__(state, environment)
        self._memory = StreamsMemory(state, environment.cluster.member_memory)
        self._fitted = FittedTopology(environment.cluster.topics, self._memory)
        self._delay_end_ms = 0  # Time at which the initial rebalance delay ends.
        self._endpoint_epoch = 0
        self._shutdown_member_id: str | None = None  # The first member that requested a shutdown of all.

    # -- heartbeats --------------------------------------------------------------------------------------------

    def heartbeat(self, request: StreamsHeartbeat, now_ms: int) -> StreamsHeartbeatResult:
        """Handle a StreamsGroupHeartbeat, whose result may be sent when all records are synced.

        Raises KafkaError for a request that is rejected, and if a record could not be appended.
        """
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request)
        # Validate the whole request before any record is appended, because a rejected request must not leave records.
        known = admit(self.state, request, self._environment.config.group_streams_max_size)
        topology, configured = self._validate(request)
        before = known.metadata if known is not None and known.metadata is not None else StreamsMember()
        owned_before = OwnedTasks() if known is None else known.state.owned
        statuses = [*stale_statuses(self.state.topology, request, before)]
        if not self.state.members:
            self._start_initial_delay(now_ms)
        metadata = merged(before, request)
        self._memory.check_member(request.member_id, known, metadata)
        is_static = request.instance_id is not None
        has_changed = is_new_epoch_needed(self.state, known, metadata, is_static=is_static)
        self._append(
            [
                *member_records(self.state, known, request, topology, metadata),
                *self._epoch_records(configured, has_changed=has_changed),
            ]
        )
        member = self._update_member(known, request, topology)
        # Start the session before the next steps, which can fail. A member without a session would keep its tasks for
        # ever if its client never returned.
        self.renew_session(member, now_ms)
        progress = self.update_target(now_ms)
        if progress is not TargetProgress.UP_TO_DATE:
            statuses.append(self._target_status(progress, now_ms))
        self._reconcile(member, request.owned, now_ms)
        if request.is_shutdown and self._shutdown_member_id is None:
            self._shutdown_member_id = request.member_id
        statuses += self._group_statuses(configured, metadata, request)
        has_moved = member.state.owned != owned_before
        if metadata.endpoint != before.endpoint or (has_moved and metadata.endpoint is not None):
            self._endpoint_epoch += 1
        return self._result(member, request, configured, statuses, has_moved=has_moved)

    def _validate(self, request: StreamsHeartbeat) -> tuple[Topology, ConfiguredTopology]:
        """Return the group's topology after the request, also as fitted to the topics. Raises KafkaError if invalid."""
        # Kafka validates in this order, too. A request with several errors gets the same error from both.
        topology = topology_of(self.state, request)
        configured = self._fitted.fit(topology)
        reject_unknown_tasks(configured, request.owned)
        reject_repeated_offsets(request.task_offsets)
        reject_repeated_offsets(request.task_end_offsets)
        return topology, configured

    def _result(
        self,
        member: StreamsGroupMember,
        request: StreamsHeartbeat,
        configured: ConfiguredTopology,
        statuses: Sequence[StreamsStatus],
        *,
        has_moved: bool,
    ) -> StreamsHeartbeatResult:
        """Return the result of a member's heartbeat. `has_moved`: the heartbeat has changed the member's tasks."""
        tasks = member.state.owned.plain
        # Send the tasks if they have changed, and again if the member reports other tasks: it has not received the last
        # response.
        needs_tasks = (
            has_moved
            or request.member_epoch == JOIN_EPOCH
            or (request.owned is not None and request.owned != tasks)
        )
        is_new = request.endpoint_epoch != self._endpoint_epoch
        endpoints = self._fitted.endpoints_of(self.state.members.values()) if is_new else None
        return StreamsHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.state.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(member, configured),
            statuses=tuple(statuses),
            tasks=tasks if needs_tasks else None,
            endpoint_epoch=self._endpoint_epoch,
            endpoints=endpoints,
            missing_topics=()
            if request.missing_hash == configured.missing_hash
            else configured.missing_topics,
            missing_hash=configured.missing_hash,
        )

    def _heartbeat_interval_ms(self, member: StreamsGroupMember, configured: ConfiguredTopology) -> int:
        """Return the time in ms until the member's next heartbeat. It is short while the member waits for tasks.

        Kafka always returns the group's interval, which is 5 s by default. With 5 s the member would learn late that
        the initial delay is over, or that other members have given up tasks.
        """
        interval_ms = self._environment.heartbeat_interval_ms(self.group_id)
        is_settled = self.state.target_epoch.epoch == self.state.epoch.epoch and member.state.is_reconciled(
            self.state.target_epoch.epoch
        )
        is_waiting = configured.is_ready and not is_settled
        return min(interval_ms, UNSETTLED_HEARTBEAT_MS) if is_waiting else interval_ms

    def _group_statuses(
        self, configured: ConfiguredTopology, metadata: StreamsMember, request: StreamsHeartbeat
    ) -> Iterator[StreamsStatus]:
        if configured.problem is not None:
            yield configured.problem
        if self._shutdown_member_id is not None:
            yield shutdown_status(self._shutdown_member_id)
        if request.knows_missing_tags:
            yield from missing_tags_statuses(self._environment.rack_aware_tags(self.group_id), metadata)

    # -- step 1: the member ------------------------------------------------------------------------------------

    def _update_member(
        self, known: StreamsGroupMember | None, request: StreamsHeartbeat, topology: Topology
    ) -> StreamsGroupMember:
        """Store the task offsets that a member reports, in memory only.

        Return the member, whose records are in the log.
        """
        if known is not None and known.member_id != request.member_id:
            self._deadlines.discard(known.member_id)
        member = self.state.members[request.member_id]
        self._memory.set_offsets(
            member,
            filter_offsets(topology, request.task_offsets),
            filter_offsets(topology, request.task_end_offsets),
        )
        return member

    # -- step 2: the epoch of the group ------------------------------------------------------------------------

    def _epoch_records(self, configured: ConfiguredTopology, *, has_changed: bool) -> Iterator[StreamsRecord]:
        """Yield the record of a raised epoch if `has_changed`, or if topics or assignment configs have changed."""
        known = self.state.epoch
        updated = msgspec.structs.replace(
            known,
            metadata_hash=self._fitted.metadata_hash,
            validated_topology_epoch=configured.epoch if configured.is_ready else -1,
            assignment_configs=self._environment.assignment_configs(self.group_id),
        )
        if has_changed or updated != known:
            yield raised_epoch(self.group_id, updated)

    # -- step 3: the target assignment -------------------------------------------------------------------------

    def _start_initial_delay(self, now_ms: int) -> None:
        """Delay the first assignment, so that it includes all members of an application that is starting."""
        delay_ms = self._environment.initial_delay_ms(self.group_id)
        if delay_ms and self._delay_end_ms <= now_ms:
            self._delay_end_ms = now_ms + delay_ms
            self._deadlines.schedule_assignment(self._delay_end_ms)

    def update_target(self, now_ms: int) -> TargetProgress:
        return TargetProgress.DELAYED if now_ms < self._delay_end_ms else super().update_target(now_ms)

    def _target_status(self, progress: TargetProgress, now_ms: int) -> StreamsStatus:
        """Return the status for the member while the target assignment must wait or is being computed."""
        if progress is TargetProgress.COMPUTING:
            return COMPUTING
        is_initial = now_ms < self._delay_end_ms
        return delayed_status("initial rebalance delay" if is_initial else "assignment interval")

    def _compute_target(self, wall_ms: int) -> Work:
        state, epoch = self.state, self.state.epoch.epoch
        configured = None if state.topology is None else self._fitted.fit(state.topology)
        assign = TASK_ASSIGNORS[self._environment.assignor_name(self.group_id)]
        standby_count = self._environment.standby_count(self.group_id)
        targets = yield from compute_target(state, configured, assign, standby_count)
        if not is_applicable(targets, epoch, state):
            return
        self._append([*target_records(state, targets, StreamsTargetEpoch(epoch, wall_ms))])

    # -- step 4: the tasks of the member -----------------------------------------------------------------------

    def _reconcile(self, member: StreamsGroupMember, reported: MemberTasks | None, now_ms: int) -> None:
        state = reconcile(
            member.state,
            target_epoch=self.state.target_epoch.epoch,
            # During the initial delay a joining member must not get the tasks of an earlier target.
            target=MemberTasks() if now_ms < self._delay_end_ms else self.state.target_of(member.member_id),
            holders=self.state.holders,
            process_id=member.process_id,
            reported=reported,
        )
        if state is member.state:
            return
        self._append([(self._key(StreamsRecordType.MEMBER_STATE, member.member_id), state)])
        self._start_rebalance_timeout(member, now_ms)

    # -- members that leave ------------------------------------------------------------------------------------

    def _leave(self, request: StreamsHeartbeat) -> StreamsHeartbeatResult:
        # A leaving member may request a shutdown of the others, even if the group has removed it already. Ignore that
        # in an empty group, because it would stop the application at its next start.
        if request.is_shutdown and self._shutdown_member_id is None and self.state.members:
            self._shutdown_member_id = request.member_id
        member = self.state.get_member(request.member_id, request.instance_id)
        if request.instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
            self._append([absence_of_member(self.group_id, member)])
            member.rebalance_deadline_ms = None
        else:
            self.remove([member])
        return StreamsHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)

    def remove(self, members: Sequence[StreamsGroupMember]) -> None:
        # Write the tombstones and the new epoch together, because without the epoch no assignment would distribute the
        # tasks.
        self._append(list(removal_records(self.state, members)))
        for member in members:
            self._deadlines.discard(member.member_id)
        if not self.state.members:
            self._shutdown_member_id = None
            # Store the target's epoch without a time, so that the interval between assignments does not delay the next
            # member's tasks.
            target_epoch = StreamsTargetEpoch(self.state.epoch.epoch)
            self._append([(self._key(StreamsRecordType.TARGET), target_epoch)])

    # -- deadlines ---------------------------------------------------------------------------------------------

    def start_sessions(self, now_ms: int) -> None:
        super().start_sessions(now_ms)
        for member in self.state.members.values():
            self._start_rebalance_timeout(member, now_ms)

    def _start_rebalance_timeout(self, member: StreamsGroupMember, now_ms: int) -> None:
        """Start the member's rebalance timeout if it must give up tasks.

        If it does not do so in time, it is removed.
        """
        member.rebalance_deadline_ms = None
        if member.state.phase is MemberPhase.UNREVOKED and member.metadata is not None:
            self._deadlines.start_rebalance_timeout(member, now_ms, member.metadata.rebalance_timeout_ms)

    # -- committed offsets -------------------------------------------------------------------------------------

    def _may_commit_late(self, member: StreamsGroupMember, request: CommitRequest) -> bool:
        state, topology, epoch = member.state, self.state.topology, request.generation
        # A higher epoch cannot come from this coordinator: the log has lost records, or the client is wrong.
        # Reject it, because the tasks that the member owned at that epoch are unknown.
        if epoch > state.epoch or topology is None:
            return False
        assigned_at = {**state.pending_revocation.active, **state.owned.active}
        subtopologies = topology.subtopology_of_topic
        tasks = ((subtopologies.get(key.topic, ""), key.partition) for key, _offset in request.offsets)
        return all(task in assigned_at and assigned_at[task] <= epoch for task in tasks)

    # -- views -------------------------------------------------------------------------------------------------

    def release_memory(self) -> None:
        self._memory.release(self.state.members.values())

    @property
    def is_unwritten(self) -> bool:
        return super().is_unwritten and self.state.topology is None

    def is_subscribed_to(self, topic: str) -> bool:
        topology = self.state.topology
        return bool(self.state.members) and topology is not None and topic in topology.subtopology_of_topic

    def describe_streams(self) -> DescribedStreamsGroup:
        """Return the group for StreamsGroupDescribe."""
        assignor = self._environment.assignor_name(self.group_id)
        return describe(self.state, self._fitted.configured, assignor)

    # -- records -----------------------------------------------------------------------------------------------

    def _append(self, records: Sequence[StreamsRecord]) -> None:
        if records:
            # Discard the cached endpoints before the write, because even a failed write can leave some of the records
            # in the log.
            self._fitted.discard_endpoints()
            self._environment.append(self, records)
