"""ShareGroups: the share groups of one coordinator, and requests to them (KIP-932).

The groups are in the coordinator's dictionary, because all types of groups share one name space. stored_states.py keeps
the states of their partitions in the share coordinators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.member_phase import JOIN_EPOCH
from kproc.broker.coordinator.recorded_states import RecordedGroups
from kproc.broker.coordinator.rules import Timing
from kproc.broker.share.membership.environment import ShareGroupEnvironment
from kproc.broker.share.membership.group import ShareGroup
from kproc.broker.share.membership.messages import (
    AlterShareOffsets,
    ChangedShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from kproc.broker.share.membership.records import (
    SHARE_RECORDS,
    NamedPartitions,
    ShareEpoch,
    ShareTopics,
)
from kproc.broker.share.membership.state import (
    ShareGroupState,
    with_deleting,
    with_initializing,
    without_topics,
)
from kproc.broker.share.membership.stored_states import StoredStates
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.consumer.topics import ConsumerCluster
    from kproc.broker.group.coordinator import Group

ALL_PARTITIONS: Final = -1  # The partition number of an outcome for a whole topic.
_OnChanged = Callable[[ChangedShareOffsets], None]


class ShareGroups:
    """The part of a GroupCoordinator that handles requests to share groups.

    `groups` and `unwritten` are the coordinator's own: all groups, and the ids of those without a record in the log.
    `on_change` is called with a group's id after an attempt to initialize its states, which can change its deadlines.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        unwritten: dict[str, None],
        config: Config,
        cluster: ConsumerCluster,
        timing: Timing,
        log: CoordinatorLog[Any],
        on_change: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._topics = cluster.topics
        self.states = StoredStates(groups, cluster, timing, log, on_change)
        self._timing = timing
        self._member_memory = cluster.member_memory
        self.records = RecordedGroups(
            SHARE_RECORDS, ShareEpoch, self._make_state, self._make_group, groups, unwritten, timing, log
        )
        self._environment = ShareGroupEnvironment(cluster, config, timing.wall_ms, self.records.append)

    def _make_state(self, group_id: str) -> ShareGroupState:
        return ShareGroupState(group_id, self._member_memory)

    def _make_group(self, state: ShareGroupState) -> ShareGroup:
        return ShareGroup(state, self._environment)

    def find(self, group_id: str) -> ShareGroup | None:
        """Return a share group. None if no group has this id, or if the group has another protocol."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ShareGroup) else None

    def get(self, group_id: str) -> ShareGroup:
        """Return a share group. Raises GROUP_ID_NOT_FOUND if no share group has this id."""
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup):
            problem = "not found" if group is None else "is not a share group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {problem}.")
        return group

    # -- members -----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Handle a ShareGroupHeartbeat. Return the member's assignment or an error, and never raise KafkaError.

        Also starts to initialize the missing states of partitions to which the group subscribes.
        """
        try:
            group = self._group_of(group_id, request)
            result = group.heartbeat(request, self._timing.now_ms())
            self.states.initialize(group)
        except KafkaError as error:
            return ShareHeartbeatResult(error_code=error.code, error_message=error.message)
        return result

    def _group_of(self, group_id: str, request: ShareHeartbeat) -> ShareGroup:
        """Return the group of a heartbeat. A member that joins creates a missing group."""
        if group_id not in self._groups and request.member_epoch >= JOIN_EPOCH:
            # KIP-932: the group was deleted while the member was away. The member gets an error and joins again
            # with epoch 0, and only a join creates a group.
            if request.member_epoch > JOIN_EPOCH:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
            return self.records.create(group_id)
        return self.get(group_id)

    # -- start offsets -----------------------------------------------------------------------------------------

    def initialized_partitions(self, group_id: str) -> dict[bytes, frozenset[int]]:
        """Return the partitions of a group that have a state in a share coordinator, by topic id.

        As in Kafka, a group that does not exist has none.
        """
        group = self.find(group_id)
        topics = {} if group is None else group.state.topics.initialized
        return {topic_id: topic.partitions for topic_id, topic in topics.items()}

    def alter_offsets(self, group_id: str, request: AlterShareOffsets, reply: _OnChanged) -> None:
        """Handle an AlterShareGroupOffsets. The group must be empty; it is created if it does not exist.

        The states get a higher epoch. An owner that still has the old state in memory is fenced at its next write.
        """
        try:
            group = self.records.create(group_id) if group_id not in self._groups else self.get(group_id)
            _check_empty(group)
            codes = {
                name: dict.fromkeys(offsets, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                for name, offsets in request.offsets.items()
            }
            topics: dict[bytes, NamedPartitions] = {}
            new_offsets: dict[tuple[bytes, int], int] = {}
            for name, by_partition in request.offsets.items():
                topic_id = self._topics.id_of(name)
                known = () if topic_id is None else range(self._topics.partition_count(topic_id))
                found = [partition for partition in by_partition if partition in known]
                if topic_id is not None and found:
                    topics[topic_id] = NamedPartitions(name, frozenset(found))
                    new_offsets |= {(topic_id, partition): by_partition[partition] for partition in found}
            if topics:
                group.raise_epoch(group.state.epoch.epoch + 1)
                group.set_topics(with_initializing(group.state.topics, topics))
        except KafkaError as error:
            reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))
            return

        def on_done(outcomes: dict[tuple[bytes, int], int]) -> None:
            for (topic_id, partition), code in outcomes.items():
                codes[topics[topic_id].name][partition] = code
            try:
                if self.states.is_current(group):
                    self.states.record_initialized(group, topics, outcomes)
                reply(ChangedShareOffsets(codes=codes))
            except KafkaError as error:
                reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))

        self.states.send_initialize(group, new_offsets, on_done)

    def delete_offsets(self, group_id: str, request: DeleteShareOffsets, reply: _OnChanged) -> None:
        """Handle a DeleteShareGroupOffsets: delete the states of all partitions of the topics.

        The group must be empty.
        """
        try:
            group = self.get(group_id)
            _check_empty(group)
            topics = group.state.topics
            names, codes = self._deletions(topics, request.topic_names)
            doomed = self.states.partitions_of(topics, names)
            group.set_topics(with_deleting(topics, names))
        except KafkaError as error:
            reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))
            return

        def on_done(deleted: set[bytes], code: int) -> None:
            # Some states could not be deleted. These topics stay in `deleting`, so that a repeated request
            # finds them.
            for topic_id in doomed.keys() - deleted:
                codes[names[topic_id]][ALL_PARTITIONS] = code
            try:
                if self.states.is_current(group):
                    group.set_topics(without_topics(group.state.topics, deleted))
                reply(ChangedShareOffsets(codes=codes))
            except KafkaError as error:
                reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))

        self.states.delete(group, doomed, on_done)

    def _deletions(
        self, topics: ShareTopics, topic_names: Iterable[str]
    ) -> tuple[dict[bytes, str], dict[str, dict[int, int]]]:
        """Return (name of each topic whose states must be deleted, by topic id; error codes of all topics, by name).

        topics: the topics of the group.
        """
        names: dict[bytes, str] = {}
        codes = {name: {ALL_PARTITIONS: int(ErrorCode.NONE)} for name in topic_names}
        for name in codes:
            topic_id = self._topics.id_of(name)
            if topic_id is None:
                codes[name] = {ALL_PARTITIONS: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
            # A topic in `deleting` is left from a request that failed or that a crash has interrupted. Deleting its
            # states again finishes that request.
            elif topic_id in topics.initialized or topic_id in topics.deleting:
                names[topic_id] = name
            else:
                # The group has no offsets for this topic. The empty dict lets the API return its own message for that.
                codes[name] = {}
        return names, codes


def _check_empty(group: ShareGroup) -> None:
    # KIP-932: members may hold records of the share partition. If its state were replaced meanwhile, other
    # members could get the same records at the same time.
    if not group.is_empty:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
