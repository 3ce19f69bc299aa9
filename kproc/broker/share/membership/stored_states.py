"""StoredStates: the states of share partitions that the share coordinators store for a coordinator's groups (KIP-932).

The share coordinators store how far a group has read each partition. StoredStates calls them to create the states of
newly subscribed partitions, to replace states when start offsets are altered, and to delete states together with the
group or its offsets. Record 15 says which partitions have a state. Record 15 is written before the call to the share
coordinators and after it, so that no state is orphaned by a crash. The share coordinators delete the states of deleted
topics themselves. StoredStates then removes these topics from record 15.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.rules import Code, DeletedTopics, OnCode, Timing, Write, write_error
from kproc.broker.coordinator.steps import Work
from kproc.broker.share.membership.group import ShareGroup
from kproc.broker.share.membership.records import NamedPartitions, ShareTopics
from kproc.broker.share.membership.share_states import ShareStates
from kproc.broker.share.membership.state import (
    with_deleting,
    with_initialized,
    with_initializing,
    without_topics,
)
from kproc.broker.share.state.messages import NO_OFFSET, InitializeState, SharePartitionKey
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.consumer.topics import ConsumerCluster
    from kproc.broker.group.coordinator import Group

logger = logging.getLogger(__name__)

# The time in ms until the states of new partitions are initialized again after the first failed attempt, and its limit.
_RETRY_MS: Final = 1_000
_RETRY_MS_MAX: Final = 15_000
# Costs of steps, in units of about 1 us: of checking a group, and of writing its record 15.
_GROUP_COST: Final = 5
_WRITE_COST: Final = 60
_DOUBLED_EPOCH_MAX: Final = 1 << 29  # Larger epochs are not doubled: an epoch has 31 bits.


class StoredStates:
    """The states of all share groups of one coordinator.

    `groups` is the coordinator's own dictionary. `on_change` is called with a group's id when its deadlines may have
    changed without a request.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        cluster: ConsumerCluster,
        timing: Timing,
        log: CoordinatorLog[Any],
        on_change: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._topics = cluster.topics
        self._states: ShareStates = cluster.share_states
        self._timing = timing
        self._log = log
        self._on_change = on_change
        self._gone: DeletedTopics | None = None

    # -- states of new partitions ------------------------------------------------------------------------------

    def initialize(self, group: ShareGroup) -> None:
        """Request the initialization of missing states, unless such a request is open or has just failed."""
        # Otherwise heartbeats of many members would repeat the request at once.
        if self._timing.now_ms() < group.initialize_after_ms:
            return
        missing = group.missing_states()
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
        self.send_initialize(group, offsets, lambda codes: self._on_initialized(group, missing, codes))

    def restore(self, key: SharePartitionKey, on_code: OnCode) -> None:
        """Create the state of an initialized partition again, unless it exists.

        With kproc.flush=none, a power loss can remove the state although the group's record 15 survives. Then
        share.auto.offset.reset decides where the group continues, as for a consumer group without committed offsets.
        Raises COORDINATOR_LOAD_IN_PROGRESS while the state is still being initialized, and INVALID_REQUEST if the
        group's record 15 does not have the partition.
        """
        group, place = self._groups.get(key.group_id), (key.topic_id, key.partition)
        if not isinstance(group, ShareGroup):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        topic = group.state.topics.initialized.get(key.topic_id)
        if topic is None or key.partition not in topic.partitions:
            starting = group.state.topics.initializing.get(key.topic_id)
            # The share coordinator has not created the state yet. Under load this takes longer than the way of a
            # member's first ShareFetch.
            if starting is not None and key.partition in starting.partitions:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            # Record 15 does not have this partition, for example because the group's offsets were deleted. A state
            # that is created now would bring them back.
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        logger.warning(
            "share group %s: the state of %s-%d is lost; the group restarts it at share.auto.offset.reset",
            key.group_id,
            topic.name,
            key.partition,
        )
        self.send_initialize(
            group, {place: NO_OFFSET}, lambda codes: on_code(codes[place]), keeps_existing=True
        )

    def send_initialize(
        self,
        group: ShareGroup,
        offsets: Mapping[tuple[bytes, int], int],
        on_done: Callable[[dict[tuple[bytes, int], int]], None],
        *,
        keeps_existing: bool = False,
    ) -> None:
        """Initialize states of share partitions with these start offsets. `on_done` gets their error codes.

        keeps_existing: do not reset a state that exists already.
        """
        epoch = group.state.epoch.epoch
        states = {each: InitializeState(epoch, offset, keeps_existing) for each, offset in offsets.items()}
        topic_ids = {topic_id for topic_id, _ in offsets}

        def is_over() -> bool:
            # Stop if the states are being deleted, or if another Handler coordinates the group. That Handler may have
            # initialized them at the same epoch, and our later calls would reset them. Do not stop because a concurrent
            # request has initialized a topic meanwhile.
            topics = group.state.topics
            known = set(topics.initialized)
            if not keeps_existing:
                known |= topics.initializing.keys()
            return not (self.is_current(group) and topic_ids <= known)

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

        With kproc.flush=none, a power loss can remove records of the group although the states survive. Until the
        group's epoch is as high as that of the states, they cannot be initialized. Single steps could take very long.
        """
        epoch = group.state.epoch.epoch
        if not self.is_current(group) or epoch > _DOUBLED_EPOCH_MAX:
            return
        try:
            group.raise_epoch(2 * epoch)
        except KafkaError as error:
            logger.warning(
                "share group %s: cannot write a higher group epoch, which it needs because a stored state has a higher "
                "one: %s",
                group.group_id,
                error.code.name,
            )

    def _on_initialized(
        self,
        group: ShareGroup,
        topics: Mapping[bytes, NamedPartitions],
        codes: dict[tuple[bytes, int], int],
    ) -> None:
        """Write record 15 for the states that were initialized, and assign their partitions to members.

        A new topic is written only when all its states are initialized. Otherwise the next attempt would find a known
        topic, and begin its other partitions at offset 0 instead of where share.auto.offset.reset says.
        """
        now_ms = self._timing.now_ms()
        first_error = next((code for code in codes.values() if code), 0)
        group.initialize_after_ms = 0
        # After FENCED_STATE_EPOCH the group's epoch is doubled, so that the next attempts can succeed soon.
        if not first_error or ErrorCode.FENCED_STATE_EPOCH in codes.values():
            group.initialize_pause_ms = 0
        if first_error:
            _pause(group, now_ms)
        # The group was deleted, or this Handler resigned, while the call was open. A record 15 written now
        # would bring back a part of the group.
        if not self.is_current(group):
            return
        if first_error:
            logger.warning(
                "share group %s: the states of some share partitions were not initialized, trying again: %s",
                group.group_id,
                ErrorCode(first_error).name,
            )
        complete = {
            topic_id: topic
            for topic_id, topic in topics.items()
            if topic_id in group.state.topics.initialized
            or not any(codes[topic_id, each] for each in topic.partitions)
        }
        try:
            self.record_initialized(group, complete, codes)
            group.assign(now_ms)
        except KafkaError as error:
            logger.warning(
                "share group %s: the record of its initialized share partitions was not written, trying again: %s",
                group.group_id,
                error.code.name,
            )
            _pause(group, now_ms)
        self._on_change(group.group_id)

    def record_initialized(
        self,
        group: ShareGroup,
        topics: Mapping[bytes, NamedPartitions],
        codes: Mapping[tuple[bytes, int], int],
    ) -> None:
        """Record partitions without an error code as initialized, in ShareGroupStatePartitionMetadata (record 15)."""
        done = {}
        for topic_id, topic in topics.items():
            partitions = frozenset(each for each in topic.partitions if not codes[topic_id, each])
            # Skip a topic that was deleted while its states were being initialized.
            if partitions and topic_id in group.state.topics.initializing:
                done[topic_id] = NamedPartitions(topic.name, partitions)
        group.set_topics(with_initialized(group.state.topics, done))

    def is_current(self, group: ShareGroup) -> bool:
        """Return True if this coordinator still has the group, which is neither deleted nor coordinated elsewhere."""
        return self._groups.get(group.group_id) is group

    # -- deletion ----------------------------------------------------------------------------------------------

    def delete_group(self, group: ShareGroup, on_done: Callable[[Code], None]) -> None:
        """Delete all states of a group that is being deleted. `on_done` gets NONE or an error code."""
        topics = group.state.topics
        names = {
            topic_id: topic.name for topic_id, topic in {**topics.initializing, **topics.initialized}.items()
        }
        doomed = self.partitions_of(topics, {**topics.deleting, **names})
        try:
            group.set_topics(with_deleting(topics, names))
        except KafkaError as error:
            on_done(error.code)
            return
        self.delete(group, doomed, lambda _deleted, code: on_done(code))

    def remove_topics(self, topics: DeletedTopics) -> Work:
        """Remove deleted topics from record 15 of all groups. If a write fails, `retry_removal` does it again.

        The share coordinators delete the states of a deleted topic themselves.
        """
        self._gone = topics
        for group_id in list(self._groups):
            group = self._groups.get(group_id)
            if isinstance(group, ShareGroup):
                has_deleted = self._remove_topics_of(group, topics)
                yield _WRITE_COST if has_deleted else _GROUP_COST

    def retry_removal(self) -> Work:
        """Remove deleted topics that a group still has, because an earlier write failed.

        Does nothing before the first `remove_topics`.
        """
        if self._gone is not None:
            yield from self.remove_topics(self._gone)

    def _remove_topics_of(self, group: ShareGroup, gone: DeletedTopics) -> bool:
        """Remove deleted topics from a group's record 15. Return False if it has none of them."""
        topics = group.state.topics
        # A topic can be in each phase, because a crash can leave it there.
        ids = {*topics.initializing, *topics.initialized, *topics.deleting}
        deleted = frozenset(each for each in ids if each in gone.ids)
        if not deleted:
            return False
        try:
            group.set_topics(without_topics(topics, deleted))
        except KafkaError as error:
            logger.warning(
                "share group %s: the record without its deleted topics was not written, trying again later: %s",
                group.group_id,
                error.code.name,
            )
        return True

    def partitions_of(self, topics: ShareTopics, names: Mapping[bytes, str]) -> dict[bytes, NamedPartitions]:
        """Return the partitions that may have a state, of the topics in `names` (topic id -> topic name)."""
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

    def delete(
        self,
        group: ShareGroup,
        topics: Mapping[bytes, NamedPartitions],
        on_done: Callable[[set[bytes], int], None],
    ) -> None:
        """Delete the states of topics, when the record that has them in `deleting` is synced.

        `on_done` gets the ids of the topics that have no state left, and the first error code or 0.
        """

        def send(code: Code) -> None:
            if code:
                on_done(set(), write_error(code))
            else:
                self._states.delete_all(group.group_id, topics, on_done)

        # The record with `deleting` must be durable first. After a crash in between, it shows the next
        # coordinator which states still have to be deleted.
        self._log.write(Write([], send))


def _pause(group: ShareGroup, now_ms: int) -> None:
    """Delay the next attempt to initialize states. Each failed attempt in a row doubles the delay up to a limit."""
    # An error can last, for example if the share coordinators have no memory for more states, and each attempt writes
    # all states of a new topic.
    group.initialize_pause_ms = min(max(2 * group.initialize_pause_ms, _RETRY_MS), _RETRY_MS_MAX)
    group.initialize_after_ms = now_ms + group.initialize_pause_ms
