"""StreamsGroups: the streams groups of one coordinator, and requests to them (KIP-1071).

The groups are in the coordinator's dictionary, because all types of groups share one name space. Records are appended
at once, so that the next step of a request sees their effect. The coordinator responds when they are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.coordinator.member_phase import JOIN_EPOCH
from kproc.broker.coordinator.recorded_states import RecordedGroups
from kproc.broker.coordinator.rules import Timing
from kproc.broker.streams.environment import StreamsEnvironment
from kproc.broker.streams.group import StreamsGroup
from kproc.broker.streams.messages import DescribedStreamsGroup, StreamsHeartbeat, StreamsHeartbeatResult
from kproc.broker.streams.records import STREAMS_RECORDS, StreamsGroupEpoch
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
        self._timing = timing
        self.records = RecordedGroups(
            STREAMS_RECORDS,
            StreamsGroupEpoch,
            StreamsGroupState,
            self._make_group,
            groups,
            unwritten,
            timing,
            log,
        )
        self._environment = StreamsEnvironment(cluster, config, timing.wall_ms, self.records.append)

    def _make_group(self, state: StreamsGroupState) -> StreamsGroup:
        return StreamsGroup(state, self._environment)

    # -- requests ----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsHeartbeatResult:
        """Handle a StreamsGroupHeartbeat. Return the member's tasks or an error, and never raise KafkaError."""
        try:
            return self._group_of(group_id, request).heartbeat(request, self._timing.now_ms())
        except KafkaError as error:
            self.records.restore_replaced(group_id)
            return StreamsHeartbeatResult(error_code=error.code, error_message=error.message)
        except Exception:
            # The runtime resigns the coordinator, which answers the requests that wait in the classic group.
            self.records.restore_replaced(group_id)
            raise

    def _group_of(self, group_id: str, request: StreamsHeartbeat) -> StreamsGroup:
        """Return the group of a heartbeat. A member that joins creates it, and may replace an empty classic group."""
        group = self._groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group
        if group is None and request.member_epoch != JOIN_EPOCH:
            # As in Kafka, the error message differs between a member that leaves and any other member.
            kind = "Streams group" if request.member_epoch > JOIN_EPOCH else "Group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id} not found.")
        # KIP-1071: a classic group of Kafka Streams can be replaced only when it is empty, because there is no online
        # migration as for consumer groups.
        is_replaceable = group is None or (group.group_type == "classic" and group.is_empty)
        if request.member_epoch != JOIN_EPOCH or not is_replaceable:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return self.records.create(group_id)

    def describe(self, group_id: str) -> DescribedStreamsGroup | None:
        """Return a group for StreamsGroupDescribe. None if it does not exist, or has another protocol."""
        group = self._groups.get(group_id)
        return group.describe_streams() if isinstance(group, StreamsGroup) else None
