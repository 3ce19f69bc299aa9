"""ConsumerGroups: the groups of the consumer protocol of one coordinator, and requests to them (KIP-848).

The groups are in the coordinator's dictionary, because a group id has one group, which can change its protocol while
its members work: the first member of the consumer protocol upgrades a classic group, and when the last one leaves, it
becomes classic again (migration.py). All records are appended at once, so that the next step of a request sees their
effect. The coordinator responds when they are durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from kproc.broker.coordinator.member_phase import JOIN_EPOCH, LEAVE_EPOCH
from kproc.broker.coordinator.recorded_states import RecordedGroups, append_conversion
from kproc.broker.coordinator.rules import KeyAndValue, Timing
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.state import GroupEnvironment
from kproc.broker.group.consumer.admission import check_size
from kproc.broker.group.consumer.classic_members import (
    heartbeat_classic,
    join_classic,
    leave_classic,
    sync_classic,
)
from kproc.broker.group.consumer.environment import ConsumerEnvironment
from kproc.broker.group.consumer.group import ConsumerGroup
from kproc.broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatResult
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    GroupEpoch,
    MemberMetadata,
)
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.broker.group.consumer.topics import ConsumerCluster
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from kproc.broker.group.migration import (
    check_upgrade,
    downgrade_snapshot,
    upgrade_records,
)
from kproc.broker.group.records import GroupSnapshot, encode_group_key, encode_group_value
from kproc.common.bounded import NAME_MAX
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.primitives import shortened

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.coordinator import Group

logger = logging.getLogger(__name__)

R = TypeVar("R")


class ConsumerGroups:
    """The part of a GroupCoordinator that handles requests to groups of the consumer protocol.

    `groups` and `unwritten` are the coordinator's own: all groups, and the ids of those without a record in the log.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        unwritten: dict[str, None],
        config: Config,
        cluster: ConsumerCluster,
        timing: Timing,
        log: CoordinatorLog[Any],
        classic: GroupEnvironment,
    ) -> None:
        self._groups = groups
        self._config = config
        self._topics = cluster.topics
        self._timing = timing
        self._log = log
        self._classic = classic
        self._member_memory = cluster.member_memory
        self.records = RecordedGroups(
            CONSUMER_RECORDS, GroupEpoch, self._make_state, self._make_group, groups, unwritten, timing, log
        )
        self._environment = ConsumerEnvironment(cluster, config, timing.wall_ms, self.records.append)

    def _make_state(self, group_id: str) -> ConsumerGroupState:
        return ConsumerGroupState(group_id, self._member_memory)

    def _make_group(self, state: ConsumerGroupState) -> ConsumerGroup:
        return ConsumerGroup(state, self._environment)

    def find(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the consumer protocol.

        None if no group has this id, or if the group has another protocol.
        """
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # -- members of the consumer protocol ----------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Handle a ConsumerGroupHeartbeat. Return the member's new assignment, or an error in the result.

        If the last member of the consumer protocol leaves and classic members remain, the group becomes a classic one.
        """
        try:
            group = self._group_of(group_id, request)
            result = group.heartbeat(request, self._timing.now_ms())
            # KIP-848: the last member of the consumer protocol may have left, and classic members remain. A static
            # member that stops and will return is still a member.
            if request.member_epoch == LEAVE_EPOCH:
                self.maybe_downgrade(group)
        except KafkaError as error:
            self.records.restore_replaced(group_id)
            return ConsumerHeartbeatResult(error_code=error.code, error_message=error.message)
        except Exception:
            # The runtime resigns the coordinator, which answers the requests that wait in the classic group.
            self.records.restore_replaced(group_id)
            raise
        return result

    def _group_of(self, group_id: str, request: ConsumerHeartbeat) -> ConsumerGroup:
        """Return the group of a heartbeat. A member that joins creates the group, or converts a classic one.

        Raises GROUP_ID_NOT_FOUND if another member names no consumer group, or the id has a share or streams group.
        """
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        # Only a member that joins creates or converts a group. Reject the ids of share and streams groups: all groups
        # share one name space, and these two kinds are never converted.
        if request.member_epoch != JOIN_EPOCH or not isinstance(group, ClassicGroup | None):
            reason = f"Group {group_id} is not a consumer group."
            if group is None:
                # If a member leaves, Kafka looks up its group by another function, which has another message.
                kind = "Consumer group" if request.member_epoch > JOIN_EPOCH else "Group"
                reason = f"{kind} {group_id} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
        if isinstance(group, ClassicGroup) and not group.is_empty:
            return self._upgrade(group, request)
        return self.records.create(group_id)

    # -- members of the classic protocol -----------------------------------------------------------------------

    def join(self, group: ConsumerGroup, request: JoinRequest) -> JoinResult:
        """Handle a JoinGroup of a classic member.

        Convert the group to a classic one if a static member replaces the last member of the consumer protocol.
        """
        epoch = group.state.epoch.epoch
        member_id = f"{shortened(request.client_id, NAME_MAX)}-{self._timing.random_id()}"
        result = _result_of(
            lambda: join_classic(group, self._topics, request, member_id, self._timing.now_ms()),
            lambda code: JoinResult(code, UNKNOWN_MEMBER_ID),
        )
        if request.group_instance_id is not None:
            # The static member may have replaced the last member of the consumer protocol. As in Kafka, the group then
            # becomes classic with its epoch before the request, and rebalances only if its target is of an older epoch.
            self.maybe_downgrade(group, generation=epoch, rebalances=group.state.is_target_stale)
        return result

    def sync(self, group: ConsumerGroup, request: SyncRequest) -> SyncResult:
        """Handle a SyncGroup of a classic member: return the partitions that it may read now, or an error."""
        return _result_of(
            lambda: sync_classic(group, self._topics, request, self._timing.now_ms()), SyncResult
        )

    def heartbeat_classic(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Handle a Heartbeat of a classic member.

        Return NONE, REBALANCE_IN_PROGRESS if it must join again, or an error.
        """
        now_ms = self._timing.now_ms()
        return _result_of(
            lambda: heartbeat_classic(group, member_id, instance_id, generation, now_ms), lambda code: code
        )

    def leave(self, group: ConsumerGroup, members: Sequence[LeavingMember]) -> LeaveResult:
        """Handle a LeaveGroup. Convert the group if only classic members remain."""
        result = _result_of(lambda: LeaveResult(ErrorCode.NONE, leave_classic(group, members)), LeaveResult)
        self.maybe_downgrade(group)
        return result

    # -- conversions -------------------------------------------------------------------------------------------

    def _upgrade(self, group: ClassicGroup, request: ConsumerHeartbeat) -> ConsumerGroup:
        """Replace a classic group with members, because a member of the consumer protocol joins it."""
        check_upgrade(group, self._config)
        group_id, roster = group.group_id, group.roster
        # Reject the joining member before the conversion if the group is full.
        if request.member_id not in roster.members and request.instance_id not in roster.static_ids:
            check_size(group.member_count, self._config)
        records = upgrade_records(group, self._topics, self._timing.wall_ms())
        # Topic names take more memory than the metadata from which they are decoded.
        self._member_memory.check_room(
            *(value.content for _key, value in records if isinstance(value, MemberMetadata)),
        )
        return self.records.create(group_id, records)

    def maybe_downgrade(
        self, group: ConsumerGroup, *, generation: int | None = None, rebalances: bool = True
    ) -> None:
        """Convert a group to a classic one if all its members, at least one, are classic and the settings permit it.

        `generation` becomes the generation of the classic group. Its default is the group's epoch. If `rebalances`, the
        members join again. Otherwise they keep the group's assignment.
        """
        group_id = group.group_id
        if not group.becomes_classic():
            return
        snapshot = downgrade_snapshot(
            group.state,
            self._topics,
            group.state.epoch.epoch if generation is None else generation,
            self._timing.wall_ms(),
        )
        if not self._write_downgrade(group, snapshot):
            return
        group.release_memory()
        classic = self._groups[group_id] = ClassicGroup(group_id, self._classic)
        for _ in classic.restore(snapshot):
            pass
        classic.start_sessions(self._timing.now_ms())
        if rebalances:
            classic.rebalance(self._timing.now_ms(), "it became a classic group")
        logger.info("group %s: became a classic group at generation %d", group_id, snapshot.generation)

    def _write_downgrade(self, group: ConsumerGroup, snapshot: GroupSnapshot) -> bool:
        """Replace the records of a consumer group by that of a classic one. Return False if they were not appended."""
        records: list[KeyAndValue] = [CONSUMER_RECORDS.encode(key, None) for key in group.state.record_keys()]
        records.append((encode_group_key(group.group_id), encode_group_value(snapshot)))
        try:
            append_conversion(self._log, records, lambda _number: None)
        except KafkaError as error:
            # The group remains a consumer group. The next member that leaves causes another attempt.
            logger.warning(
                "group %s: cannot write its conversion to a classic group; it stays a consumer group until the next "
                "member leaves: %s",
                group.group_id,
                error.code.name,
            )
            # The epoch did not rise when the last member of the consumer protocol left. Raise it now, so that the
            # others get the partitions of that member.
            with suppress(KafkaError):
                group.raise_epoch()
            return False
        return True


def _result_of(work: Callable[[], R], failed: Callable[[ErrorCode], R]) -> R:
    """Return the result of `work`. If `work` raises KafkaError, return `failed` of its error code."""
    try:
        return work()
    except KafkaError as error:
        return failed(error.code)
