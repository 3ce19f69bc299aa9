"""ShareGroups: the share groups of one coordinator, and requests to them (KIP-932).

The groups are in the coordinator's dictionary, because all types of groups share one name space. The share coordinators
store how far a group has read each partition. This class has these states created for newly subscribed partitions,
replaced when start offsets are altered, and deleted with the group, its offsets or its topics. Record 15 says which
partitions have a state. Record 15 is written before the call to the share coordinators and after it, so that no state
is orphaned by a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.recorded_states import StateReplay, append_and_apply
from kproc.broker.coordinator.rules import Code, DeletedTopics, OnCode, Timing, Write, write_error
from kproc.broker.coordinator.steps import Work
from kproc.broker.share.membership.group import ShareGroup, ShareGroupEnvironment
from kproc.broker.share.membership.messages import (
    JOIN_EPOCH,
    AlterShareOffsets,
    ChangedShareOffsets,
    DeleteShareOffsets,
    InitializedPartitions,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from kproc.broker.share.membership.records import (
    SHARE_RECORDS,
    NamedPartitions,
    ShareEpoch,
    ShareRecord,
    ShareTopics,
)
from kproc.broker.share.membership.share_states import ShareStates
from kproc.broker.share.membership.state import (
    ShareGroupState,
    with_deleting,
    with_initialized,
    with_initializing,
    without_topics,
)
from kproc.broker.share.state.messages import NO_OFFSET, InitializeState, SharePartitionKey
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.consumer.topics import ConsumerCluster
    from kproc.broker.group.coordinator import Group

logger = logging.getLogger(__name__)

ALL_PARTITIONS: Final = -1  # The partition number of an outcome for a whole topic.
# The time in ms until the states of new partitions are initialized again after an error.
_RETRY_MS: Final = 1_000
_GROUP_COST: Final = 5
_DOUBLED_EPOCH_MAX: Final = 1 << 29  # Larger epochs are not doubled: an epoch has 31 bits.
_OnChanged = Callable[[ChangedShareOffsets], None]


class ShareGroups:
    """The part of a GroupCoordinator that handles requests to share groups.

    `groups` and `unwritten` are the coordinator's own: all groups, and the ids of those without a record in the log.
    `on_change` is called with a group's id when its deadlines may have changed without a request.
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
        self._unwritten = unwritten
        self._topics = cluster.topics
        self._states: ShareStates = cluster.share_states
        self._timing = timing
        self._log = log
        self._on_change = on_change
        self._environment = ShareGroupEnvironment(cluster, config, timing.wall_ms, self._append_to_group)
        self._large_subscriptions = cluster.large_subscriptions
        self._replay = StateReplay(self._make_state)
        self._gone: DeletedTopics | None = None
        self._rebalances = 0

    def _make_state(self, group_id: str) -> ShareGroupState:
        return ShareGroupState(group_id, self._large_subscriptions)

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

    def drain_rebalances(self) -> int:
        """Return how often a group's epoch rose since the last call. Kafka counts this as rebalances."""
        rebalances, self._rebalances = self._rebalances, 0
        return rebalances

    # -- loading -----------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replay one record, in the order of the log. Raises Corrupt if it cannot be read."""
        self._replay.replay(*SHARE_RECORDS.decode(key, value))

    def pop_replayed(self) -> list[ShareGroupState]:
        """Return the states that exist after the replay, once."""
        return self._replay.pop()

    def add(self, state: ShareGroupState) -> ShareGroup:
        """Add a group with this state."""
        group = self._groups[state.group_id] = ShareGroup(state, self._environment)
        return group

    # -- members -----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Handle a ShareGroupHeartbeat."""
        try:
            group = self._group_of(group_id, request)
            result = group.heartbeat(request, self._timing.now_ms())
            self._initialize(group)
        except KafkaError as error:
            return ShareHeartbeatResult(error_code=error.code, error_message=error.message)
        return result

    def _group_of(self, group_id: str, request: ShareHeartbeat) -> ShareGroup:
        """Return the group of a heartbeat. A member that joins creates a missing group."""
        if group_id not in self._groups and request.member_epoch >= JOIN_EPOCH:
            if request.member_epoch > JOIN_EPOCH:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
            return self._create(group_id)
        return self.get(group_id)

    def _create(self, group_id: str) -> ShareGroup:
        self._unwritten[group_id] = None
        return self.add(self._make_state(group_id))

    # -- states of new partitions ------------------------------------------------------------------------------

    def _initialize(self, group: ShareGroup) -> None:
        """Request the initialization of states that are missing, unless such a request is open."""
        if self._timing.now_ms() < group.initialize_after_ms:
            return
        missing = group.uninitialized()
        if not missing:
            return
        # In new partitions of a known topic a group reads from offset 0, so that it gets every record. In a new topic
        # share.auto.offset.reset decides when the first record is fetched.
        known = group.state.topics.initialized
        offsets = {
            (topic_id, partition): 0 if topic_id in known else NO_OFFSET
            for topic_id, topic in missing.items()
            for partition in sorted(topic.partitions)
        }
        group.set_topics(with_initializing(group.state.topics, missing))
        group.initialize_after_ms = 1 << 62
        self._send_initialize(group, offsets, lambda codes: self._on_initialized(group, missing, codes))

    def restore_state(self, key: SharePartitionKey, on_code: OnCode) -> None:
        """Create the state of an initialized partition again, unless it exists.

        With kproc.flush=none, a power loss can remove the state although the group's record 15 survives. Then
        share.auto.offset.reset decides where the group continues, as for a consumer group without committed offsets.
        Raises KafkaError (INVALID_REQUEST) if the partition is not to have a state.
        """
        group, place = self.find(key.group_id), (key.topic_id, key.partition)
        topic = None if group is None else group.state.topics.initialized.get(key.topic_id)
        if group is None or topic is None or key.partition not in topic.partitions:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        logger.warning(
            "share group %s: the state of %s-%d is lost; the group restarts it at share.auto.offset.reset",
            key.group_id,
            topic.name,
            key.partition,
        )
        self._send_initialize(
            group, {place: NO_OFFSET}, lambda codes: on_code(codes[place]), keeps_existing=True
        )

    def _send_initialize(
        self,
        group: ShareGroup,
        offsets: Mapping[tuple[bytes, int], int],
        on_done: Callable[[dict[tuple[bytes, int], int]], None],
        *,
        keeps_existing: bool = False,
    ) -> None:
        """Initialize states with these start offsets. `on_done` gets an error code for each of them."""
        epoch = group.state.epoch.epoch
        states = {each: InitializeState(epoch, offset, keeps_existing) for each, offset in offsets.items()}
        topic_ids = {topic_id for topic_id, _ in offsets}

        def is_over() -> bool:
            # Stop if the states are being deleted, or if another Handler coordinates the group. It may initialize them
            # at the same epoch, and our later calls would reset them.
            topics = group.state.topics
            known = topics.initialized if keeps_existing else topics.initializing
            return not (self._is_current(group) and topic_ids <= known.keys())

        def on_codes(codes: list[int]) -> None:
            if ErrorCode.FENCED_STATE_EPOCH in codes:
                self._double_epoch(group)
            on_done(dict(zip(offsets, codes, strict=True)))

        def send(code: Code) -> None:
            if code:
                on_codes([write_error(code)] * len(offsets))
            else:
                self._states.initialize_all(group.group_id, states, is_over, on_codes)

        # Send the calls after a sync. A power loss could remove an epoch that is not synced, and the share coordinator
        # rejects lower epochs than it has stored.
        self._log.write(Write([], send))

    def _double_epoch(self, group: ShareGroup) -> None:
        """Double the epoch of a group, because a stored state has a higher one.

        With kproc.flush=none, a power loss can remove records of the group although the states survive. Without the
        doubling, the states could not be initialized until the group's epoch had risen as far once more.
        """
        epoch = group.state.epoch.epoch
        if not self._is_current(group) or epoch > _DOUBLED_EPOCH_MAX:
            return
        try:
            group.raise_epoch(2 * epoch)
        except KafkaError as error:
            logger.warning("share group %s: records were not written: %s", group.group_id, error.code.name)

    def _on_initialized(
        self,
        group: ShareGroup,
        topics: Mapping[bytes, NamedPartitions],
        codes: dict[tuple[bytes, int], int],
    ) -> None:
        """Write record 15 for the states that were initialized, and assign their partitions."""
        now_ms = self._timing.now_ms()
        first_error = next((code for code in codes.values() if code), 0)
        group.initialize_after_ms = now_ms + _RETRY_MS if first_error else 0
        if not self._is_current(group):
            return
        if first_error:
            logger.warning(
                "share group %s: states of partitions were not initialized: %s",
                group.group_id,
                ErrorCode(first_error).name,
            )
        try:
            self._record_initialized(group, topics, codes)
            group.assign(now_ms)
        except KafkaError as error:
            logger.warning("share group %s: records were not written: %s", group.group_id, error.code.name)
            group.initialize_after_ms = now_ms + _RETRY_MS
        self._on_change(group.group_id)

    def _record_initialized(
        self,
        group: ShareGroup,
        topics: Mapping[bytes, NamedPartitions],
        codes: Mapping[tuple[bytes, int], int],
    ) -> None:
        done = {
            topic_id: NamedPartitions(
                topic.name, frozenset(each for each in topic.partitions if not codes[topic_id, each])
            )
            for topic_id, topic in topics.items()
        }
        # Skip a topic that was deleted while its states were being initialized.
        present = {
            topic_id: topic
            for topic_id, topic in done.items()
            if topic.partitions and topic_id in group.state.topics.initializing
        }
        group.set_topics(with_initialized(group.state.topics, present))

    def _is_current(self, group: ShareGroup) -> bool:
        """Return True unless the group was deleted, or the coordinator has resigned."""
        return self._groups.get(group.group_id) is group

    # -- start offsets -----------------------------------------------------------------------------------------

    def initialized_partitions(self, group_id: str) -> InitializedPartitions:
        """Return the partitions of a group that have a state. Raises GROUP_ID_NOT_FOUND."""
        topics = self.get(group_id).state.topics.initialized
        return InitializedPartitions({topic_id: topic.partitions for topic_id, topic in topics.items()})

    def alter_offsets(self, group_id: str, request: AlterShareOffsets, reply: _OnChanged) -> None:
        """Handle an AlterShareGroupOffsets. The group must be empty; it is created if it does not exist.

        The states get a higher epoch. An owner that still has the old state in memory is fenced at its next write.
        """
        try:
            group = self._create(group_id) if group_id not in self._groups else self.get(group_id)
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
                if self._is_current(group):
                    self._record_initialized(group, topics, outcomes)
                reply(ChangedShareOffsets(codes=codes))
            except KafkaError as error:
                reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))

        self._send_initialize(group, new_offsets, on_done)

    def delete_offsets(self, group_id: str, request: DeleteShareOffsets, reply: _OnChanged) -> None:
        """Handle a DeleteShareGroupOffsets. The group must be empty."""
        try:
            group = self.get(group_id)
            _check_empty(group)
            topics = group.state.topics
            names: dict[bytes, str] = {}
            codes = {name: {ALL_PARTITIONS: int(ErrorCode.NONE)} for name in request.topic_names}
            for name in request.topic_names:
                topic_id = self._topics.id_of(name)
                if topic_id is None:
                    codes[name] = {ALL_PARTITIONS: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
                elif topic_id in topics.initialized or topic_id in topics.deleting:
                    names[topic_id] = name
                else:
                    # The group has no offsets for this topic. The empty dict lets the API return its own message for
                    # that.
                    codes[name] = {}
            doomed = self._partitions_of(topics, names)
            group.set_topics(with_deleting(topics, names))
        except KafkaError as error:
            reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))
            return

        def on_done(deleted: set[bytes], code: int) -> None:
            for topic_id in doomed.keys() - deleted:
                codes[names[topic_id]][ALL_PARTITIONS] = code
            try:
                if self._is_current(group):
                    group.set_topics(without_topics(group.state.topics, frozenset(deleted)))
                reply(ChangedShareOffsets(codes=codes))
            except KafkaError as error:
                reply(ChangedShareOffsets(error_code=error.code, error_message=error.message))

        self._delete(group, doomed, on_done)

    # -- deletion ----------------------------------------------------------------------------------------------

    def delete_states(self, group: ShareGroup, on_done: Callable[[Code], None]) -> None:
        """Delete all states of a group that is being deleted. `on_done` gets an error code."""
        topics = group.state.topics
        names = {
            topic_id: topic.name for topic_id, topic in {**topics.initializing, **topics.initialized}.items()
        }
        doomed = self._partitions_of(topics, {**topics.deleting, **names})
        try:
            group.set_topics(ShareTopics({}, {}, {**topics.deleting, **names}))
        except KafkaError as error:
            on_done(error.code)
            return
        self._delete(group, doomed, lambda _deleted, code: on_done(code))

    def remove_topics(self, topics: DeletedTopics) -> Work:
        """Delete the states of deleted topics in all groups. `retry_removal` retries failed deletions."""
        self._gone = topics
        for group_id in list(self._groups):
            group = self.find(group_id)
            if group is not None:
                self._remove_topics_of(group, topics)
                yield _GROUP_COST

    def retry_removal(self) -> Work:
        """Delete the states of topics that were deleted since the load and that a group still has."""
        if self._gone is not None:
            yield from self.remove_topics(self._gone)

    def _remove_topics_of(self, group: ShareGroup, gone: DeletedTopics) -> None:
        topics = group.state.topics
        ids = {*topics.initializing, *topics.initialized, *topics.deleting}
        doomed = self._partitions_of(topics, {each: "" for each in ids if each in gone.ids})
        if not doomed:
            return

        def on_done(deleted: set[bytes], _code: int) -> None:
            if self._is_current(group):
                try:
                    group.set_topics(without_topics(group.state.topics, frozenset(deleted)))
                except KafkaError as error:
                    logger.warning(
                        "share group %s: records were not written: %s", group.group_id, error.code.name
                    )

        self._delete(group, doomed, on_done)

    def _partitions_of(self, topics: ShareTopics, names: Mapping[bytes, str]) -> dict[bytes, NamedPartitions]:
        """Return the partitions of some topics that may have a state."""
        found = {}
        for topic_id, name in names.items():
            partitions: frozenset[int] = frozenset()
            for known in (topics.initializing, topics.initialized):
                if topic_id in known:
                    partitions |= known[topic_id].partitions
            # Record 15 does not say which partitions of a deleting topic still have a state, so name all.
            if topic_id in topics.deleting and self._topics.name_of(topic_id) is not None:
                partitions |= frozenset(range(self._topics.partition_count(topic_id)))
            found[topic_id] = NamedPartitions(name, partitions)
        return found

    def _delete(
        self,
        group: ShareGroup,
        topics: Mapping[bytes, NamedPartitions],
        on_done: Callable[[set[bytes], int], None],
    ) -> None:
        """Delete the states of topics, after the record with these `deleting` topics was synced."""

        def send(code: Code) -> None:
            if code:
                on_done(set(), write_error(code))
            else:
                self._states.delete_all(group.group_id, topics, on_done)

        self._log.write(Write([], send))

    # -- records -----------------------------------------------------------------------------------------------

    def _append_to_group(self, group: ShareGroup, records: Sequence[ShareRecord]) -> None:
        """Append records of a group, and apply each one that was appended. Raises KafkaError unless all were."""
        self._unwritten.pop(group.group_id, None)
        encoded = [SHARE_RECORDS.encode(*record) for record in records]
        apply = partial(_apply, group, records)
        append_and_apply(self._log, encoded, apply)
        self._rebalances += sum(isinstance(value, ShareEpoch) for _key, value in records)


def _apply(group: ShareGroup, records: Sequence[ShareRecord], number: int) -> None:
    group.state.apply(*records[number])


def _check_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
