"""Partitions: the partitions that one Handler owns. It opens, transfers, reconfigures and deletes them.

Only this Handler writes these logs and their rows in the shared table. A log is opened at its first use
(log_opener.py). group_commit.py syncs the logs that requests wait for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.config.descriptor_limit import share_of_descriptors
from kproc.broker.handler.checkpoint import Checkpoint
from kproc.broker.handler.close_logs import close_logs
from kproc.broker.handler.deletions import PartitionDeletions
from kproc.broker.handler.group_commit import GroupCommit
from kproc.broker.handler.hanging_transactions import HangingTransaction, find_hanging
from kproc.broker.handler.log_opener import LogOpener
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.syncer import Syncer
from kproc.broker.request.context import PartitionKey
from kproc.broker.role.partition_table import PartitionRow, PartitionTable, released_word
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import Fs, Shortage, StorageFailure
from kproc.broker.storage.inspection import InspectionBudget
from kproc.broker.storage.log import Log
from kproc.broker.storage.log_state import LogTraffic
from kproc.broker.storage.segments import ColdSegments
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.errors import Corrupt, ErrorCode, KafkaError

logger = logging.getLogger(__name__)

# Limit of producers that all partitions of a Handler remember together: about 100 MB.
PRODUCERS_MAX: Final = 200_000
# Logs whose deleted segments one tick unlinks. The number is limited, because each log's start is synced first.
_UNLINKED_TOGETHER: Final = 16


class Partitions:
    """All open partitions of one Handler, by (topic, index)."""

    def __init__(
        self,
        directory: Path,
        *,
        handler_index: int,
        config: Config,
        image: Callable[[], ClusterImage],
        clock: Clock,
        table: PartitionTable,
        purgatory: Purgatory,
        syncer: Syncer,
        checkpoint: Checkpoint,
        is_clean: bool,
        fs: Fs,
    ) -> None:
        self._directory = directory
        self.fs = fs
        self.handler_index = handler_index
        self._config = config
        self._image = image
        self._clock = clock
        self._table = table
        self.purgatory = purgatory
        self.containment = purgatory.containment
        self._waits_for_sync = config.waits_for_sync
        self._opener = LogOpener(
            directory,
            config=config,
            image=image,
            clock=clock,
            table=table,
            checkpoint=checkpoint,
            is_clean=is_clean,
            fs=fs,
        )
        self._open: dict[PartitionKey, OwnedPartition] = {}
        self.group_commit = GroupCommit(syncer, purgatory, self._open.get)
        self.deletions = PartitionDeletions(self._opener, purgatory)
        self._damaged: dict[PartitionKey, str] = {}
        # Partitions that were offline at the last tick, with the reason.
        self.offline: dict[PartitionKey, str] = {}
        # Transactions that were open for too long at the last tick.
        self.hanging: set[HangingTransaction] = set()
        self.traffic: dict[str, LogTraffic] = {}  # By topic.
        # The sealed segments whose files stay open. Each has up to 3 open files. Together they use a quarter of the
        # descriptor limit, and at most 3,000 descriptors.
        self._cold = ColdSegments(share_of_descriptors(12, most=1000))
        # Bounds the records of produced batches that are read in one duty cycle.
        self.inspection = InspectionBudget()
        self.since_ns = clock.now_ns()
        # Called with (partition, topic id, epoch) if a log has a higher leader epoch than the metadata. Set by the
        # Handler.
        self.raise_epoch: Callable[[PartitionKey, bytes, int], None] = lambda _key, _topic_id, _epoch: None
        # Raises PartitionMoving while another Handler may have the log open. Set by PartitionTransfer.
        self.before_open: Callable[[PartitionKey, PartitionRow | None], None] = lambda _key, _row: None

    def __len__(self) -> int:
        return len(self._open)

    def get(self, topic: str, partition: PartitionImage) -> OwnedPartition:
        """Return an open partition. Open its log first if necessary, which can include its recovery.

        Raises PartitionMoving while another Handler may have the log open or its opening is deferred. Raises KafkaError
        for another owner or a log that cannot be opened.
        """
        owned = self._open.get((topic, partition.index))
        if owned is not None:
            if not owned.log.state.is_offline:
                return owned
            # Reject requests if the log cannot be opened again, or not now: a log that a running sync uses must not be
            # closed.
            if not owned.log.state.can_reopen or owned.log in self.group_commit.syncing:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{topic}-{partition.index} is offline: {owned.log.state.offline_reason}",
                )
            return self._reopen(owned, partition)
        return self._open_log((topic, partition.index), partition)

    def _reopen(self, owned: OwnedPartition, partition: PartitionImage) -> OwnedPartition:
        """Close and open a log whose files a Shortage (no space or no descriptors) left half changed.

        Return the open partition. The recovery at opening completes the change.
        """
        logger.warning(
            "reopening the offline log of %s-%d, so that its recovery repairs it: %s",
            *owned.key,
            owned.log.state.offline_reason,
        )
        del self._open[owned.key]
        self.group_commit.unsynced.pop(owned, None)
        owned.log.close(clean=False)
        try:
            return self._open_log(owned.key, partition)
        finally:
            # Call back the waiting requests last, because a callback may get the partition and must then find the log
            # that was opened here.
            owned.on_synced(OSError(owned.log.state.offline_reason))

    def find(self, key: PartitionKey) -> OwnedPartition | None:
        """Return the partition, or None if it is not open."""
        return self._open.get(key)

    def opened(self) -> list[OwnedPartition]:
        return list(self._open.values())

    def traffic_of(self, topic: str) -> LogTraffic:
        """Return this Handler's traffic counters of a topic."""
        found = self.traffic.get(topic)
        if found is None:
            found = self.traffic[topic] = LogTraffic()
        return found

    @property
    def damaged_count(self) -> int:
        """Number of partitions of this Handler that cannot be opened."""
        return len(self._damaged)

    def discard_damage(self, key: PartitionKey) -> None:
        """Forget that a partition could not be opened, because its topic was deleted or it has another owner now.

        If this Handler gets it again, or a topic of the same name is created, the log is opened from its files.
        """
        self._damaged.pop(key, None)

    def _open_log(self, key: PartitionKey, partition: PartitionImage) -> OwnedPartition:
        topic = self._image().topics_by_name[key[0]]
        if partition.owner != self.handler_index:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key[0]}-{key[1]} is owned by another Handler"
            )
        # Do not try again to open a damaged log. Each attempt would find the same damage and log it.
        if key in self._damaged:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._damaged[key])
        row = self._table.read(partition)
        self.before_open(key, row)
        # The former owner's fdatasync failed, and then the owner died. The page cache may hold bytes that the disk
        # lacks, so the log must not be opened before the broker's next start.
        if row is not None and row.has_failed:
            self._damaged[key] = (
                f"a sync of {key[0]}-{key[1]} failed: it is offline until the broker's next start"
            )
            logger.error("%s", self._damaged[key])
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._damaged[key])
        try:
            log = self._opener.open(topic, partition, row)
        except (Corrupt, OSError) as error:
            self._record_failed_opening(key, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        owned = self._adopt(key, log, partition)
        if self._waits_for_sync:
            owned.hide_unconfirmed(row)
        owned.publish()
        return owned

    def _record_failed_opening(self, key: PartitionKey, error: Corrupt | OSError) -> None:
        """Log that a partition's log cannot be opened, and remember it until the broker's next start.

        A Shortage passes, so it is not remembered, and the next request tries again.
        """
        if isinstance(error, Shortage):
            logger.warning(
                "cannot open partition %s-%d now, the next request tries again: %s", key[0], key[1], error
            )
            return
        logger.error(
            "cannot open partition %s-%d, so it is offline until the broker's next start: %s", *key, error
        )
        self._damaged[key] = str(error)
        self.offline = {**self.offline, key: str(error)}

    def _adopt(
        self, key: PartitionKey, log: Log, partition: PartitionImage, *, is_distrusted: bool = False
    ) -> OwnedPartition:
        """Register a log that this Handler has just opened. Request a higher leader epoch if the log has one.

        is_distrusted: a sync of the log has failed at its former owner.
        """
        log.state.on_surprise = self.containment.caught
        log.state.traffic = self.traffic_of(key[0])
        log.state.segments.cold = self._cold
        log.state.inspection = self.inspection
        owned = OwnedPartition(
            key,
            log,
            self._table.writer(partition.slot),
            partition,
            handler_index=self.handler_index,
            purgatory=self.purgatory,
            unsynced=self.group_commit.unsynced,
        )
        if is_distrusted:
            owned.distrust()
        logger.debug("opened %s-%d: offsets %d to %d", *key, log.state.start_offset, log.state.end_offset)
        self._open[key] = owned
        if log.state.leader_epoch > partition.leader_epoch:
            self.raise_epoch(key, log.state.topic_id, log.state.leader_epoch)
        return owned

    # -- transfer ----------------------------------------------------------------------------------------------

    def export(self, key: PartitionKey, topic_id: bytes) -> dict[str, Any] | None:
        """Close an open partition and return its state for the next owner, as plain values.

        The metadata already name the next owner, so the log is not opened here again. Returns {} if the next owner must
        open the log from its files.

        Returns None while requests or hidden records wait for a sync, or a sync round uses the log. Call again at the
        end of the round. Other unsynced records are in the page cache, which survives the death of a role, and the
        state's recovery point does not cover them.
        """
        owned = self._open[key]
        log = owned.log
        is_waited_for = owned.is_waited_for or log.state.unconfirmed
        if log in self.group_commit.syncing or (is_waited_for and not log.state.is_offline):
            return None
        self.group_commit.unsynced.pop(owned, None)
        # Remove the partition before the callbacks, because a callback may `get` it, which would open an offline log
        # again.
        del self._open[key]
        owned.on_synced(None)
        try:
            is_ours = checkpoints.read_partition_metadata(self.fs, log.state.directory) == topic_id
            # If the directory has another topic id, the topic was deleted and the next owner has metadata that we lack.
            # If a Shortage left the log half changed, the next owner must open it from its files. Otherwise export the
            # state, which also writes a snapshot of the producers into the directory.
            state = log.export_state() if is_ours and not log.state.can_reopen else None
        except (StorageFailure, Corrupt) as error:
            # Without the state, the next owner opens the log from its files and recovers it.
            logger.error(
                "cannot export the state of %s-%d for its transfer, so the next owner opens it from its files: %s",
                *key,
                error,
            )
            state = None
        owned.publish()
        log.close(clean=False)
        self.purgatory.check(key)
        return state or {}

    def abandon(self, key: PartitionKey) -> None:
        """Close a partition of a deleted topic that has another owner by now. That Handler renames the directory."""
        owned = self._open.pop(key)
        self.group_commit.unsynced.pop(owned, None)
        owned.log.close(clean=False)
        owned.on_synced(OSError("the topic was deleted"))
        self.purgatory.check(key)

    def row(self, partition: PartitionImage) -> PartitionRow | None:
        """Return the row of a partition in the shared partition table, as last published.

        None if no owner wrote it, or one died while writing it.
        """
        return self._table.read(partition)

    def row_stores(self, partition: PartitionImage) -> int:
        """Return a number that changes whenever a Handler publishes the partition's row."""
        return self._table.stores(partition)

    def disown(self, partition: PartitionImage) -> None:
        """Publish in the row that no Handler has the partition, because its next owner did not claim the state."""
        row = self._table.read(partition)
        if row is not None and row.holder == self.handler_index:
            self._table.writer(partition.slot).publish((released_word(row), *row.behind_holder))

    def import_state(
        self, topic: TopicImage, partition: PartitionImage, state: dict[str, Any]
    ) -> OwnedPartition:
        """Open a partition with its former owner's state: same offsets, producers and leader epoch."""
        key = (topic.name, partition.index)
        assert key not in self._open, f"{key} is open here already"
        log = self._opener.import_state(topic, partition, state)
        row = self._table.read(partition)
        owned = self._adopt(key, log, partition, is_distrusted=row is not None and row.has_failed)
        owned.publish()
        return owned

    # -- changes of the metadata -------------------------------------------------------------------------------

    def delete(self, topic: TopicImage) -> None:
        """Remove this Handler's partitions of a deleted topic. `deletions` then renames their directories in steps."""
        self.traffic.pop(topic.name, None)
        for partition in topic.partitions:
            key = (topic.name, partition.index)
            self.discard_damage(key)
            if partition.owner != self.handler_index:
                continue
            owned = self._open.pop(key, None)
            if owned is not None:
                self.group_commit.unsynced.pop(owned, None)
            self.deletions.add(topic, partition.index, owned)

    def reconfigure(self, topic: TopicImage) -> None:
        """Apply a topic's changed settings to its open logs."""
        config = self._opener.config_of(topic)
        for partition in topic.partitions:
            owned = self._open.get((topic.name, partition.index))
            if owned is not None:
                owned.log.state.reconfigure(config)

    def tick(self) -> None:
        """Do the periodic work of the open logs. Called once a second.

        Unlink files that are due, request syncs for flush.ms and hidden records, find offline logs and hanging
        transactions, and trim the tables of producers.
        """
        now_ms, monotonic_ms = self._clock.wall_ms(), self._clock.now_ns() // NS_PER_MS
        offline = dict(self._damaged)
        hanging: set[HangingTransaction] = set()
        unlinked = 0
        for owned in self._open.values():
            if unlinked < _UNLINKED_TOGETHER:
                unlinked += bool(owned.log.retention.unlink_due(monotonic_ms))
            if owned.log.retention.rest_below and not owned.log.state.is_offline:
                owned.log.retention.delete_rest()
                owned.publish()
            owned.log.durability.check_grown()
            log, offline_reason = owned.log, owned.log.state.offline_reason
            if log.state.producers.first_open_offset is not None:
                hanging |= find_hanging(owned, self._config, now_ms, self.hanging)
            if offline_reason is not None:
                offline[owned.key] = offline_reason
            # Request no sync while a running round uses the log. If that round does not cover all its records, the next
            # tick requests one.
            elif log not in self.group_commit.syncing:
                log.durability.mark_active()
                if log.state.unconfirmed or log.durability.is_flush_due(now_ms):
                    self.group_commit.unsynced[owned] = None
        self.offline = offline
        self.hanging = hanging
        self._trim_producers()

    def count_syncs(self) -> int:
        """Return the number of logs with a sync that is requested, in progress, or due at the next tick."""
        now_ms, commit = self._clock.wall_ms(), self.group_commit
        due = sum(
            owned not in commit.unsynced
            and owned.log not in commit.syncing
            and owned.log.state.offline_reason is None
            and owned.log.durability.is_flush_due(now_ms)
            for owned in self._open.values()
        )
        return len(commit.unsynced) + len(commit.syncing) + due

    def _trim_producers(self) -> None:
        """Remove idle producers of the largest tables if all partitions together remember too many."""
        tables = [owned.log.state.producers for owned in self._open.values() if owned.log.state.producers]
        if sum(map(len, tables)) > PRODUCERS_MAX:
            share = PRODUCERS_MAX // len(tables)
            for table in tables:
                table.trim(share)

    def enforce_retention(self, key: PartitionKey) -> int:
        """Delete the segments of one partition that are past their retention. Return their number.

        0 for an offline log and for another Handler's. Raises KafkaError or PartitionMoving if it cannot be opened.
        """
        partition = self._image().partition(*key)
        if partition is None or partition.owner != self.handler_index:
            return 0
        before = self._open.get(key)
        if key in self._damaged or (before is not None and before.log.state.is_offline):
            return 0  # The error was logged when it happened.
        owned = self.get(key[0], partition)
        now_ms = self._clock.wall_ms()
        owned.log.state.expire_producers(now_ms)
        count = owned.log.retention.enforce_retention(now_ms)
        owned.publish()
        return count

    def unknown_log(self) -> str | None:
        """Return the name of a log that the next start must recover even after a clean stop, or None.

        Such a log is offline, or was not opened since an unclean start or since the death of its owner.
        """
        for topic in self._image().topics_by_name.values():
            for partition in topic.partitions:
                key = (topic.name, partition.index)
                owned = self._open.get(key)
                if partition.owner != self.handler_index or (
                    owned is not None and not owned.log.state.is_offline
                ):
                    continue
                name = f"{key[0]}-{key[1]}"
                is_untouched = owned is None and self._opener.is_untouched(partition)
                if not is_untouched and self.fs.exists(self._directory / name):
                    return name
        return None

    def close(self, *, is_clean: bool) -> None:
        """Close every log, cleanly if `is_clean`. Raises the first error after all logs are closed."""
        self.deletions.finish()
        try:
            close_logs(self.opened(), is_clean=is_clean)
        finally:
            self._open.clear()
