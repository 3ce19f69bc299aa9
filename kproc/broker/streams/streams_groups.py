"""StreamsGroups: the streams groups of one coordinator, and requests to them (KIP-1071).

The groups are in the coordinator's dictionary, because all types of groups share one name space. Records are appended
at once, so that the next step of a request sees their effect. The coordinator responds when they are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.coordinator.recorded_states import RecordedGroups, append_and_apply
from kproc.broker.coordinator.rules import KeyAndValue, Timing
from kproc.broker.streams.environment import StreamsEnvironment
from kproc.broker.streams.group import StreamsGroup
from kproc.broker.streams.messages import (
    JOIN_EPOCH,
    DescribedStreamsGroup,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
)
from kproc.broker.streams.records import STREAMS_RECORDS, StreamsGroupEpoch, StreamsRecord
from kproc.broker.streams.state import StreamsGroupState
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.consumer.topics import ConsumerCluster
    from kproc.broker.group.coordinator import Group


class StreamsGroups:
    """The part of a GroupCoordinator that handles requests to streams groups.

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
    ) -> None:
        self._groups = groups
        self._unwritten = unwritten
        self._timing = timing
        self._append = partial(append_and_apply, log)
        self._environment = StreamsEnvironment(cluster, config, timing.wall_ms, self._append_to_group)
        # Empty classic groups that were replaced because a member joins. If its heartbeat is rejected, they are
        # restored.
        self._replaced: dict[str, Group] = {}
        self.records = RecordedGroups(STREAMS_RECORDS, StreamsGroupEpoch, StreamsGroupState, self.add)

    def add(self, state: StreamsGroupState) -> StreamsGroup:
        """Add a group with this state. It replaces a group with the same id."""
        group = self._groups[state.group_id] = StreamsGroup(state, self._environment)
        return group

    # -- requests ----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsHeartbeatResult:
        """Handle a StreamsGroupHeartbeat. Return the member's tasks or an error, and never raise KafkaError."""
        try:
            return self._group_of(group_id, request).heartbeat(request, self._timing.now_ms())
        except KafkaError as error:
            # The member was rejected before its first record was appended. So the log still has the empty
            # classic group that the new streams group has replaced in memory.
            if (replaced := self._replaced.pop(group_id, None)) is not None:
                self._groups[group_id] = replaced
                # A group without a record stays in the table with a limit.
                if replaced.generation:
                    self._unwritten.pop(group_id, None)
            return StreamsHeartbeatResult(error_code=error.code, error_message=error.message)

    def _group_of(self, group_id: str, request: StreamsHeartbeat) -> StreamsGroup:
        """Return the group of a heartbeat. A member that joins creates it, and may replace an empty classic group."""
        group = self._groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group
        if group is None and request.member_epoch != JOIN_EPOCH:
            # As in Kafka, the error message differs between a member that leaves and any other member.
            kind = "Streams group" if request.member_epoch > JOIN_EPOCH else "Group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id} not found.")
        if group is not None:
            # KIP-1071: a classic group of Kafka Streams can be replaced only when it is empty, because there
            # is no online migration as for consumer groups.
            if request.member_epoch != JOIN_EPOCH or group.group_type != "classic" or not group.is_empty:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
            self._replaced[group_id] = group
        self._unwritten[group_id] = None
        return self.add(StreamsGroupState(group_id))

    def describe(self, group_id: str) -> DescribedStreamsGroup | None:
        """Return a group for StreamsGroupDescribe. None if it does not exist, or has another protocol."""
        group = self._groups.get(group_id)
        return group.describe_streams() if isinstance(group, StreamsGroup) else None

    # -- records -----------------------------------------------------------------------------------------------

    def _append_to_group(self, group: StreamsGroup, records: Sequence[StreamsRecord]) -> None:
        """Append records of a group, and apply each one that was appended. Raises KafkaError unless all were."""
        replaced = self._replaced.get(group.group_id)
        encoded: list[KeyAndValue] = []
        if replaced is not None and not replaced.is_unwritten:
            # The tombstones come first. If a crash cuts the append, the next load finds no group or the new
            # one, but never both.
            encoded = [(key, None) for key in replaced.record_keys()]
        tombstone_count = len(encoded)
        encoded += [STREAMS_RECORDS.encode(*record) for record in records]

        def apply(number: int) -> None:
            self._unwritten.pop(group.group_id, None)
            self._replaced.pop(group.group_id, None)
            if number >= tombstone_count:
                group.state.apply(*records[number - tombstone_count])

        self._append(encoded, apply)
        self.records.count_rebalances(records)
