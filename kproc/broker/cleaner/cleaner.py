"""Cleaner: retention checks, compaction, checkpoint files and deleted topics' directories, away from the Handlers.

The cleaner never changes a log itself: the owner deletes segments and swaps compacted ones (see compactor.py). Only the
cleaner writes recovery-point-offset-checkpoint, log-start-offset-checkpoint and the clean-shutdown marker, from the
rows of the shared partition table. Only the cleaner removes the directories that owners renamed because their topic was
deleted (deleted_directories.py). It is the last role to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kproc.broker.calls.call_links import CallHandlers, handle_raw_call
from kproc.broker.calls.calls import B, Call, FromImage, Lost, OnResult, R
from kproc.broker.calls.cleaner_calls import (
    DESCRIBE_LOG_DIR,
    ENFORCE_RETENTION,
    READ_LOG_FIGURES,
    SHOW_CLEANER_ACTIVITY,
    WRITE_CHECKPOINTS,
    CleanerActivity,
    Deleted,
    Done,
    PartitionRequest,
)
from kproc.broker.cleaner.checkpoint_writer import CheckpointWriter
from kproc.broker.cleaner.compactor import Compactor
from kproc.broker.cleaner.deleted_directories import DeletedDirectories
from kproc.broker.cleaner.strays import StrayDirectories
from kproc.broker.cluster.dynamic_settings import log_overrides
from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.observe.log_dir_usage import log_dir_usage, read_log_figures
from kproc.broker.observe.uncleanable_partitions import REPORT_UNCLEANABLE, make_report
from kproc.broker.role.linked_role import LinkedPeer, LinkedRole
from kproc.broker.role.partition_table import PartitionTable
from kproc.broker.role.roles import CONTROLLER, HANDLER, handler_id
from kproc.broker.storage import checkpoints
from kproc.broker.storage.format import LOG_SUFFIX
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import CALL, DELTA, REPLY, SNAPSHOT
from kproc.common.clock import NS_PER_MS, Clock

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper

logger = logging.getLogger(__name__)

# Limit of partitions checked in one duty cycle. Each costs a few stat calls, and a cycle must not delay a stop.
_PARTITIONS_PER_PASS: Final = 64


class Cleaner(LinkedRole):
    """The cleaner role: retention, compaction, checkpoints, and the removal of deleted directories.

    One per broker.
    """

    def __init__(
        self,
        agent_id: AgentId,
        *,
        doze: Sleeper,
        metrics: MetricsRow,
        clock: Clock,
        config: Config,
        table: PartitionTable,
        fs: Fs,
    ) -> None:
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock)
        self._config = config
        self._table = table
        self._fs = fs
        self._directory = Path(config.log_dirs)
        self._image = ClusterImage()
        self._round: Iterator[tuple[TopicImage, PartitionImage]] = iter(())
        self._has_round = False  # True until the partitions of the current round are checked.
        self._retention_calls = 0  # Calls to owners that have not replied.
        self._needs_compaction_check = False  # True if time was moved since the last check of compaction.
        self._next_round_ns = clock.now_ns() + config.log_retention_check_interval_ms * NS_PER_MS
        self._next_checkpoint_ns = self._checkpoint_due()
        self._checkpoints = CheckpointWriter(fs, self._directory, table)
        # (version of the metadata that the caller knows, callback for the reply after the checkpoints are written)
        self._wait_for_checkpoint: list[tuple[int, OnResult[Done]]] = []
        self._served = self._make_calls()
        self._strays = self._make_strays()
        self._deleted = self._make_deleted()
        self._reported = make_report({})
        self._compactor = self._make_compactor()

    def _make_strays(self) -> StrayDirectories:
        return StrayDirectories(
            self._fs,
            self._directory,
            delay_ms=self._config.log_segment_delete_delay_ms,
            interval_ms=self._config.log_retention_check_interval_ms,
            when_let_go=self._when_let_go,
        )

    def _make_deleted(self) -> DeletedDirectories:
        return DeletedDirectories(
            self._fs,
            self._directory,
            delay_ms=self._config.log_segment_delete_delay_ms,
            clock=self._clock,
            image=lambda: self._image,
            when_let_go=self._when_let_go,
        )

    def _make_compactor(self) -> Compactor:
        return Compactor(
            config=self._config,
            clock=self._clock,
            fs=self._fs,
            table=self._table,
            image=lambda: self._image,
            ask=self.send_to_handler,
            metrics=self._metrics,
        )

    def _make_calls(self) -> CallHandlers:
        calls = CallHandlers(self.containment)
        calls.add(WRITE_CHECKPOINTS, self._await_checkpoint)
        calls.add(READ_LOG_FIGURES, lambda body, on_reply: on_reply(read_log_figures(self._directory, body)))
        calls.add(SHOW_CLEANER_ACTIVITY, lambda _body, on_reply: on_reply(self._activity()))
        calls.add(DESCRIBE_LOG_DIR, lambda body, on_reply: on_reply(log_dir_usage(self._directory, body)))
        return calls

    def _activity(self) -> CleanerActivity:
        checks_retention = self._has_round or self._retention_calls > 0
        return CleanerActivity(checks_retention=checks_retention, compacts=not self._compactor.is_idle)

    def attach(self, link: Link) -> None:
        super().attach(link)
        if link.peer == CONTROLLER:  # A new controller has no report yet.
            self._reported = make_report({})

    def _due_ms(self, now_ns: int) -> int:
        due_ms = super()._due_ms(now_ns)
        return due_ms if self._is_stopping else min(due_ms, self._compactor.next_deadline_ms())

    def _work(self) -> int:
        work = self._drain_records(self._handle_record)
        if self._wait_for_checkpoint:
            self._answer_checkpoint()
        if not self._is_stopping:
            work += self._step_retention()
            work += self._compactor.work()
        return work

    def _handle_record(self, peer: LinkedPeer, kind: int, view: memoryview) -> None:
        if kind == SNAPSHOT:
            self._adopt(ClusterImage.from_snapshot(view))
        elif kind == DELTA:
            self._deleted.add(self._image.apply(view).deleted)
        elif kind == CALL:
            handle_raw_call(view, peer.outbox, self._served.handle_raw, self.containment)
        else:
            assert kind == REPLY, kind
            self._calls.handle_reply(view)

    def send_to_handler(
        self, index: int, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None], /
    ) -> None:
        """Send a call to a Handler. `on_reply` gets the reply, or Lost if the Handler has ended."""
        owner = handler_id(index)
        self._calls.send(self._outbox(owner), owner, call, body, on_reply)

    def _await_checkpoint(self, body: FromImage, on_reply: OnResult[Done]) -> None:
        self._wait_for_checkpoint.append((body.image, on_reply))

    def _answer_checkpoint(self) -> None:
        """Write the log starts once for all waiting calls, then respond to them.

        A log start that a DeleteRecords moved must be on the disk before the response. A checkpoint lists the
        partitions of our metadata, so a caller that knows newer metadata waits until we have them.
        """
        version = self._image.version
        waiting = [on_reply for known, on_reply in self._wait_for_checkpoint if known <= version]
        # Before the first snapshot the partitions are unknown, and a checkpoint would lack them all.
        if not version or not waiting:
            return
        self._wait_for_checkpoint = [each for each in self._wait_for_checkpoint if each[0] > version]
        try:
            self._checkpoints.write_log_starts(self._image)
        except StorageFailure as error:
            # The waiting DeleteRecords get KAFKA_STORAGE_ERROR.
            logger.error(
                "cannot write the checkpoint of log starts, so DeleteRecords requests fail: %s", error
            )
            reply = Done(str(error))
        else:
            reply = Done(None)
        for on_reply in waiting:
            on_reply(reply)

    def _report_uncleanable(self) -> None:
        report = make_report(self._compactor.survey.uncleanable())
        outbox = self._outbox(CONTROLLER)
        # Send the report only if it has changed, because each report is a call with a reply.
        if report != self._reported and outbox is not None:
            self._reported = report
            self._calls.send(outbox, CONTROLLER, REPORT_UNCLEANABLE, report, lambda _reply: None)

    def _on_tick(self, now_ns: int) -> None:
        run = self.containment.run
        run("reporting uncleanable partitions", None, self._report_uncleanable)
        if self._deleted.next_ns is not None and now_ns >= self._deleted.next_ns:
            run("removing deleted directories", None, self._deleted.remove_due)
        run("looking for directories of no topic", None, self._scan_for_strays, now_ns)
        if now_ns >= self._next_round_ns:
            self._next_round_ns = now_ns + self._config.log_retention_check_interval_ms * NS_PER_MS
            if self._deleted.next_ns is None:
                self._deleted.next_ns = now_ns
            self._round = iter([(t, p) for t in self._image.topics_by_name.values() for p in t.partitions])
            self._has_round = True
        if now_ns >= self._next_checkpoint_ns:
            self._next_checkpoint_ns = self._checkpoint_due()
            run("writing checkpoints", None, self._write_checkpoints_due)

    def follow_time(self, on_done: Callable[[], None]) -> None:
        """Check retention and compaction now, because the broker's time was moved. See Role.follow_time."""
        super().follow_time(on_done)
        self._next_round_ns = 0
        self._needs_compaction_check = True

    def _has_followed(self) -> bool:
        if self._has_round or len(self._calls):
            return False
        if self._needs_compaction_check:
            # Compact after the retention checks: in these the owners publish the offset of the last sync, which limits
            # compaction.
            self._needs_compaction_check = False
            self._compactor.follow_time()
            return False
        return self._compactor.is_idle

    def _scan_for_strays(self, now_ns: int) -> None:
        try:
            self._strays.scan(self._image, now_ns)
        except StorageFailure as error:
            logger.warning("cannot scan for stray directories, trying again later: %s", error)

    def _write_checkpoints_due(self) -> None:
        try:
            self._checkpoints.write(self._image)
        except StorageFailure as error:
            logger.error(
                "cannot write the checkpoints of recovery points and log starts, trying again later; the old ones "
                "stay: %s",
                error,
            )

    def _adopt(self, image: ClusterImage) -> None:
        before, self._image = self._image, image
        # Remove directories of deleted topics at once, because earlier runs may have left some.
        self._deleted.next_ns = self._clock.now_ns()
        gone = [
            topic for topic_id, topic in before.topics_by_id.items() if topic_id not in image.topics_by_id
        ]
        self._deleted.add(gone)

    def finish(self, *, is_clean: bool) -> None:
        """Write the last checkpoints, and the clean-shutdown marker if the stop is clean.

        Called after the Handlers have closed their logs. Writes nothing if the data are temporary.
        """
        # Read the metadata that the controller may have sent before it closed the link.
        self._drain_records(self._handle_record)
        self._compactor.close()
        if not self._config.keeps_data:
            return
        if not self._image.version:
            # This cleaner started during the stop. Without the metadata it cannot tell which logs were closed in order.
            logger.info(
                "the cleaner got no metadata, so it does not mark the stop as clean; the next start recovers all logs"
            )
            return
        # Write the marker last, because it makes the next start believe the checkpoints without reading the logs. A
        # crash in between must not leave the marker with old checkpoints.
        self._checkpoints.write(self._image)
        unclosed = self._table.unclosed(self._image)
        if unclosed is not None:
            logger.info(
                "the Handler that owned %s did not close its log, so the next start recovers all logs",
                unclosed,
            )
        elif is_clean:
            checkpoints.write_clean_shutdown(self._fs, self._directory, self._image.broker_epoch)
        self._deleted.remove(at_once=True)

    def _checkpoint_due(self) -> int:
        # Kafka writes the two files in different intervals. One write of both is simpler, and the shorter interval
        # keeps both promises.
        interval_ms = min(
            self._config.log_flush_offset_checkpoint_interval_ms,
            self._config.log_flush_start_offset_checkpoint_interval_ms,
        )
        # Wait at least 1 s, because each write replaces and syncs several files.
        return self._clock.now_ns() + max(1000, interval_ms) * NS_PER_MS

    def _step_retention(self) -> int:
        try:
            return self._check_retention()
        except Exception as error:  # noqa: BLE001 - contained: the next partition's turn
            self.containment.caught("a look at a partition's retention", error)
            return 1

    def _check_retention(self) -> int:
        """Check the next partitions of the current round. Request retention from the owners if it may be due.

        Returns the number of partitions that were checked.
        """
        looked_at = 0
        for topic, partition in self._round:
            looked_at += 1
            if self._may_be_due(topic, partition):
                # With version 0 the owner handles the call at once and does not wait for our metadata. A topic that it
                # does not know yet has no old segments.
                body = PartitionRequest(0, topic.name, partition.index)
                self._retention_calls += 1
                self.send_to_handler(partition.owner, ENFORCE_RETENTION, body, self._on_retention_checked)
            if looked_at >= _PARTITIONS_PER_PASS:
                return looked_at
        self._has_round = False
        return looked_at

    def _on_retention_checked(self, _reply: Deleted | Lost) -> None:
        self._retention_calls -= 1

    def _may_be_due(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Return True if a partition's owner must check retention.

        The owner of an open log knows its segments and always checks. A log that is not open is opened only if sizes
        and modification times of its files show that retention may be due.
        """
        if self._table.read(partition) is not None:
            return True
        config = LogConfig.of(self._config, log_overrides(self._image, topic, self._config.node_id))
        directory = self._directory / f"{topic.name}-{partition.index}"
        total, oldest_ms = 0, self._clock.wall_ms()
        try:
            for name in self._fs.list_directory(directory):
                facts = self._fs.facts_at(directory / name) if name.endswith(LOG_SUFFIX) else None
                if facts is not None:
                    total += facts.st_size
                    oldest_ms = min(oldest_ms, facts.st_mtime_ns // NS_PER_MS)
        except StorageFailure:
            # The directory does not exist, because nothing was ever written to the log.
            return False
        is_old = 0 <= config.retention_ms < self._clock.wall_ms() - oldest_ms
        return total > 0 and (is_old or 0 <= config.retention_bytes < total)

    def _when_let_go(self, then: Callable[[], None]) -> None:
        """Call `then` when every running Handler has the cleaner's version of the metadata and applied its deletions.

        Then no Handler has the directory of a topic open that this version lacks. A Handler can receive a version much
        later than the cleaner, because it has its own link to the controller and may be busy or suspended.
        """
        handlers = [peer.index for peer in self._peers if peer.role == HANDLER]
        left = len(handlers)

        def on_reply(_reply: Deleted | Lost) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                then()

        if not handlers:
            then()
        for index in handlers:
            # Use this call without a partition as a barrier: a Handler replies only when it has the caller's metadata
            # version and has renamed the directories of all deleted partitions.
            self.send_to_handler(
                index, ENFORCE_RETENTION, PartitionRequest(self._image.version, "", 0), on_reply
            )
