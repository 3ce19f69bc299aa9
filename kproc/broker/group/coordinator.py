"""GroupCoordinator: the groups and committed offsets of one partition of `__consumer_offsets`.

It has no I/O and no clock of its own. It follows coordinator/rules.py: the runtime replays the log into it, then passes
requests to it. Its state changes only when a record is in the log, so a failed write has nothing to undo.

The groups of all protocols are in one dictionary, because a group id has one group. Each protocol has a class of its
own. The keys of the records tell the protocols apart (group_loading.py). Offsets of open transactions are pending until
a marker in the log ends the transaction (pending_offsets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kproc.broker.coordinator.rules import (
    Code,
    DueOf,
    KnownTopics,
    Producer,
    Timing,
    Write,
    write_error,
)
from kproc.broker.coordinator.steps import Steps, Work
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.join import join_refusal
from kproc.broker.group.classic_groups import RESPONSES, ClassicGroups
from kproc.broker.group.consumer.group import ConsumerGroup
from kproc.broker.group.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
)
from kproc.broker.group.consumer.topics import ConsumerCluster
from kproc.broker.group.consumer_groups import ConsumerGroups
from kproc.broker.group.deletion import GroupDeletion
from kproc.broker.group.group_loading import GroupLoading
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    GroupOverview,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveReply,
    LeaveResult,
    LeavingMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from kproc.broker.group.offset_requests import OffsetRequests
from kproc.broker.group.offsets import GroupOffsets
from kproc.broker.group.removal import GroupRemoval, log_error
from kproc.broker.group.share_requests import ShareRequests
from kproc.broker.share.membership.group import ShareGroup
from kproc.broker.share.membership.share_groups import ShareGroups
from kproc.broker.streams.group import StreamsGroup
from kproc.broker.streams.streams_groups import StreamsGroups
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog

R = TypeVar("R")
# A coordinator has one dictionary for the groups of all protocols, because an id belongs to one group.
Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup

# Cost of the step that resigns from a group, in units of about 1 us.
_RESIGN_COST: Final = 8
# The name of the deadline at which started steps are run. A group with this id only gets additional ticks.
_STEPS: Final = "\0steps"


class GroupCoordinator:
    """The group coordinator of one partition of __consumer_offsets.

    The runtime creates it at the first request for the partition.
    """

    def __init__(
        self,
        config: Config,
        cluster: ConsumerCluster,
        timing: Timing,
        deadlines: Deadlines[DueOf],
        log: CoordinatorLog[Any],
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._timing = timing
        self._deadlines = deadlines
        self._log = log
        self._groups: dict[str, Group] = {}
        # Groups without a record in the log; the oldest first.
        self._unwritten: dict[str, None] = {}
        self._classic = ClassicGroups(self, self._groups, self._unwritten, config, timing, log)
        self._classic.environment.member_memory = cluster.member_memory
        self._consumers = ConsumerGroups(
            self._groups, self._unwritten, config, cluster, timing, log, self._classic.environment
        )
        self.shares = ShareGroups(
            self._groups, self._unwritten, config, cluster, timing, log, self.after_change
        )
        self.streams = StreamsGroups(self._groups, self._unwritten, config, cluster, timing, log)
        self.offsets = GroupOffsets(cluster.offset_memory)
        self._removal = GroupRemoval(self._groups, self.offsets, config, timing, log, self._remove_group)
        self._recorded = (self._consumers.records, self.shares.records, self.streams.records)
        self._loading = GroupLoading(self._classic, self._recorded, self.offsets)
        self.steps = Steps(log.flush)
        self._is_sweeping = False
        self.deletion = GroupDeletion(
            self._groups, self.offsets, self.shares.states, self._removal, log, self._start_work
        )
        self.offset_requests = OffsetRequests(
            self._classic, self._groups, self.deletion.running, self.offsets, self._removal, timing, log
        )
        self.share_requests = ShareRequests(self, self.shares, self.deletion.running)

    def __len__(self) -> int:
        return len(self._groups)

    # -- loading -----------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay the last record of a key. Raises Corrupt if it cannot be read."""
        self._loading.replay(key, value, offset, producer)

    def finish_loading(self, topics: KnownTopics) -> None:
        """Start to create the groups from the replayed records, and to remove the offsets of deleted topics."""
        self.steps.add(self._finish_loading(topics))

    def _finish_loading(self, topics: KnownTopics) -> Work:
        yield from self._loading.build_groups(topics)
        self._cluster.member_memory.limit.accept_load()
        self._cluster.offset_memory.accept_load()
        if topics.deleted:
            yield from self._removal.remove_deleted(topics.gone)
            yield from self.shares.states.remove_topics(topics.gone)
        # Start all sessions at the end of the load, because clients cannot send heartbeats before. The first ones
        # lose little time, because this loop is far shorter than the load.
        for group_id, loaded in list(self._groups.items()):
            loaded.start_sessions(self._timing.now_ms())
            self.after_change(group_id)
            yield 2 + loaded.member_count

    # -- members -----------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: JoinReply) -> None:
        """Handle a JoinGroup to a classic group, which it may create, or to a consumer group (KIP-848)."""
        group = self._groups.get(group_id)
        refusal = join_refusal(group_id, request, self._config, group_exists=group is not None)
        if not refusal and group_id in self.deletion.running:
            refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # All clients retry after this error.
        if refusal:
            reply(JoinResult(refusal, request.member_id))
            return
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            result = self._consumers.join(group, request)
            self.after_change(group_id)
            self.reply_when_durable(reply, result, lambda code: JoinResult(code, request.member_id))
            return
        if isinstance(group, ShareGroup) or (isinstance(group, StreamsGroup) and not group.is_empty):
            reply(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID))
            return
        if isinstance(group, ConsumerGroup | StreamsGroup):
            if request.member_id:
                reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            # An empty group may change its protocol. Delete the consumer or streams group, so that this member creates
            # a classic one.
            self._removal.remove([], log_error, also=[group_id])
            self._log.flush()
            if group_id in self._groups:
                # The tombstones are not in the log, for example because the disk is full. If a classic group were
                # created now, the next load would find the records of both groups and keep the wrong one.
                reply(JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
                return
        self._classic.join(group_id, request, reply)
        self.after_change(group_id)
        self.delete_unused(group_id)

    def delete_unused(self, group_id: str) -> None:
        """Remove a group without offsets that has no record in the log and that no client is about to join."""
        group = self._groups.get(group_id)
        if group is not None and group.is_unwritten:
            self.delete_without_offsets(group_id)

    def delete_without_offsets(self, group_id: str) -> None:
        """Remove a group that has no record in the log, unless it has offsets."""
        if not self.offsets.of_group(group_id) and not self.offsets.pending.has_group(group_id):
            self._remove_group(group_id)

    def sync(self, group_id: str, request: SyncRequest, reply: SyncReply) -> None:
        """Handle a SyncGroup: reply with the member's assignment, or with an error.

        The reply of a classic group waits for the leader's assignment, that of a consumer group until its records are
        durable.
        """
        consumer_group = self._consumers.find(group_id)
        if consumer_group is not None:
            result = self._consumers.sync(consumer_group, request)
            self.after_change(group_id)
            self.reply_when_durable(reply, result, SyncResult)
            return
        self._classic.sync(group_id, request, reply)
        self.after_change(group_id)

    def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> Code:
        """Handle a Heartbeat of a classic member. Return NONE, REBALANCE_IN_PROGRESS to join again, or an error."""
        consumer_group = self._consumers.find(group_id)
        if consumer_group is not None:
            code = self._consumers.heartbeat_classic(consumer_group, member_id, group_instance_id, generation)
            self.after_change(group_id)
            return code
        return self._classic.heartbeat(group_id, member_id, group_instance_id, generation)

    def leave(self, group_id: str, members: Sequence[LeavingMember], reply: LeaveReply) -> None:
        """Handle a LeaveGroup: remove members from a group.

        Reply with a result for each member when that is durable.
        """
        if not group_id:
            reply(LeaveResult(ErrorCode.INVALID_GROUP_ID))
            return
        consumer_group = self._consumers.find(group_id)
        if consumer_group is not None:
            result = self._consumers.leave(consumer_group, members)
            self.after_change(group_id)
            self.reply_when_durable(reply, result, LeaveResult)
            return
        self._classic.leave(group_id, members, reply)
        self.after_change(group_id)

    # -- members of the consumer protocol (KIP-848) --------------------------------------------------------------

    def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, reply: ConsumerHeartbeatReply
    ) -> None:
        """Handle a ConsumerGroupHeartbeat: a member joins, renews its session, reports its partitions or leaves.

        Replies when the change is durable.
        """
        self.handle_heartbeat(
            group_id,
            lambda: self._consumers.heartbeat(group_id, request),
            reply,
            lambda code: ConsumerHeartbeatResult(error_code=code),
        )

    def handle_heartbeat(
        self,
        group_id: str,
        work: Callable[[], R],
        reply: Callable[[R], None],
        failed: Callable[[ErrorCode], R],
    ) -> None:
        """Call `work`, which handles a member's request. Reply with its result when all records are durable.

        If they do not become durable, or if the group is being deleted, reply with `failed` of the error code.
        """
        if group_id in self.deletion.running:
            reply(failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        is_new = group_id not in self._groups
        result = work()
        self.after_change(group_id)
        if is_new:
            self.delete_unused(group_id)
        self.reply_when_durable(reply, result, failed)

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup | None:
        """Return a group for ConsumerGroupDescribe. None if it does not exist, or has another protocol."""
        group = self._consumers.find(group_id)
        return group.describe_consumers() if group is not None else None

    def reply_when_durable(
        self, reply: Callable[[R], None], result: R, failed: Callable[[ErrorCode], R]
    ) -> None:
        """Reply with `result` when all earlier records are durable.

        If they do not become durable, reply with `failed` of the error code.
        """

        def on_done(code: Code) -> None:
            reply(failed(ErrorCode(write_error(code))) if code else result)

        self._log.write(Write([], on_done))

    # -- offsets -----------------------------------------------------------------------------------------------

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """Commit or discard the pending offsets of a producer, because the marker of its transaction is in the log."""
        self.offsets.end_transaction(producer_id, is_commit=is_commit)

    def read(self, read_state: Callable[[], R], on_done: Callable[[Code, R], None]) -> None:
        """Read the present state. `on_done` gets an error code and the result when all of it is durable (acks=all)."""
        self._log.flush()
        # Read now and answer later: the answer must not contain a commit that a power loss could still take. An empty
        # write waits for the sync of everything before it.
        found = read_state()
        self._log.write(Write([], lambda error: on_done(write_error(error), found)))

    def topics_deleted(self, topics: KnownTopics) -> None:
        """Hide the offsets of deleted topics.

        Start to remove these offsets, and the states of the share partitions of these topics.
        """
        self._log.flush()
        self.offsets.hidden = topics.gone
        self.steps.add(self._removal.remove_deleted(topics.gone))
        self.steps.add(self.shares.states.remove_topics(topics.gone))

    # -- groups as a whole -------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup | None:
        """Return a group for DescribeGroups. None if it does not exist, or has another protocol (KIP-1043)."""
        group = self._classic.find(group_id)
        return group.describe() if group is not None else None

    def explain_absence(self, group_id: str, group_type: str) -> str:
        """Return the error message for an id that no group of this type has. A group of another type may have it."""
        problem = f"is not a {group_type} group" if group_id in self._groups else "not found"
        return f"Group {group_id} {problem}."

    def overviews(self) -> Iterator[GroupOverview]:
        """Yield the groups that exist now for ListGroups. Each one is read when the iterator comes to it."""
        return (
            GroupOverview(group.group_id, group.protocol_type, group.state_name, group.group_type)
            for group in list(self._groups.values())
        )

    def sizes(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield (id, type, state, number of members) of the groups that exist now, for metrics."""
        for group in list(self._groups.values()):
            yield group.group_id, group.group_type, group.state_name, group.member_count

    def drain_rebalances(self) -> tuple[int, int, int]:
        """Return how often epochs of consumer, share and streams groups rose since the last call, for metrics."""
        consumer, share, streams = (each.drain_rebalances() for each in self._recorded)
        return consumer, share, streams

    def _remove_group(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        self._unwritten.pop(group_id, None)
        self._deadlines.discard((self, group_id))
        if isinstance(group, ClassicGroup):
            group.kill()
            self._classic.responses.send()
        elif group is not None:
            group.release_memory()

    # -- time --------------------------------------------------------------------------------------------------

    def tick(self, name: str) -> None:
        """Handle a deadline: that of the group `name`, or the one at which more responses may be sent.

        The runtime runs the steps after each tick.
        """
        if name == RESPONSES:
            self._classic.responses.send()
        group = self._groups.get(name)
        if group is not None:
            group.tick(self._timing.now_ms())
            # A member may have been removed. Or a crash came after the last member of the consumer protocol had left,
            # and the conversion is still to be made.
            if isinstance(group, ConsumerGroup):
                self._consumers.maybe_downgrade(group)
            self.after_change(name)
            self.delete_unused(name)

    def after_change(self, group_id: str) -> None:
        """Register the next deadline and the unfinished work of a group, and send its responses."""
        group = self._groups.get(group_id)
        if group is not None:
            self._deadlines.bring_forward((self, group_id), group.next_deadline_ms())
            work = None if isinstance(group, ClassicGroup) else group.computation.pop_unscheduled()
            if work is not None:
                self._start_work(self._compute_target(group, work))
        self._classic.responses.send_soon()

    def _compute_target(self, group: Group, work: Work) -> Work:
        """Run the rest of the computation of a group's target. Stop if the group is deleted or converted meanwhile."""
        for cost in work:
            yield cost
            if self._groups.get(group.group_id) is not group:
                return
        self.after_change(group.group_id)

    def _start_work(self, work: Work) -> None:
        """Run `work` in steps, and the first of them in the next duty cycle."""
        self.steps.add(work)
        self.bring_forward(_STEPS)

    def bring_forward(self, name: str) -> None:
        """Call `tick` with this name in the next duty cycle."""
        self._deadlines.bring_forward((self, name), self._timing.now_ms())

    def start_sweep(self) -> None:
        """Start one pass over all groups, in steps, which removes expired offsets and empty groups.

        The runtime calls this every offsets.retention.check.interval.ms. Does not start a second pass while one runs.
        It also shortens two lists that have a limit: member ids that no client has used, and groups without a record.
        """
        if not self._is_sweeping:
            self._is_sweeping = True
            self.steps.add(self._sweep())
        self._classic.discard_used_pending()
        # Groups whose generation is not 0 have a record by now.
        for group_id in list(self._unwritten):
            if self._groups[group_id].generation:
                del self._unwritten[group_id]

    def _sweep(self) -> Work:
        yield from self._removal.sweep()
        yield from self.shares.states.retry_removal()
        self._is_sweeping = False

    # -- release -----------------------------------------------------------------------------------------------

    def resign(self) -> None:
        """Append the queued writes, and answer all waiting requests with NOT_COORDINATOR in the next steps."""
        self._log.flush()
        self.abandon()

    def abandon(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR in the next steps, but append no queued write."""
        self._classic.is_over = True
        # Empty the dictionary, so that no timer and no request finds a group from now on.
        groups = dict(self._groups)
        self._groups.clear()
        for name in (RESPONSES, _STEPS):
            self._deadlines.discard((self, name))
        self.offsets.release_memory()
        self.steps.replace_all(self._resign_all(groups))

    def _resign_all(self, groups: dict[str, Group]) -> Work:
        self.deletion.abandon()
        for group_id in list(groups):
            # Each step frees the memory of its groups, because freeing all of it in one step would take long, too.
            group = groups.pop(group_id)
            self._deadlines.discard((self, group_id))
            if isinstance(group, ClassicGroup):
                yield from group.resign()
            else:
                # No request waits in a group of another protocol.
                group.release_memory()
            yield _RESIGN_COST
            yield from self._classic.responses.send_all()
        yield from self._classic.responses.send_all()
        while self.offsets.discard_group():
            yield 1
