"""Log: one partition's records on the disk. Owned by exactly one Handler, so nothing here is locked.

An append checks each batch, writes its offset into it in place, writes all batches with one system call, and only then
changes what readers and indexes see. A write that fails leaves no trace: the file is cut back to its former size.

- No room (ENOSPC): those batches get KAFKA_STORAGE_ERROR, the log stays open, the next append tries again.
- Any other error of a write or a sync: the log goes offline. Reads go on; appends are refused until it is opened anew.

The high watermark is the log's end, because there is one replica. Everything below `recovery_point` is known to be on
the disk; a sync thread moves it (sync_point, fdatasync of the descriptors, mark_synced).

One class in five files, by concern: log_state (fields, rolling, snapshots), log_append (the hot path),
log_read, log_compact (the swap of compacted segments), and here the life of a log: opening, syncing,
retention, transfer to another Handler.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from pathlib import Path
from typing import Any, Final

from kproc.clock import Clock
from kproc.errors import Corrupt, ErrorCode, KafkaError
from kproc.storage import checkpoints, failed_sync
from kproc.storage.format import (
    DELETE_DIRECTORY_SUFFIX,
    SNAPSHOT_SUFFIX,
    parse_partition_directory_name,
    segment_file_name,
    set_aside_directory_name,
)
from kproc.storage.fs import DiskFull, Fs, StorageFailure
from kproc.storage.leader_epochs import LeaderEpochs
from kproc.storage.log_append import AppendingLog
from kproc.storage.log_compact import CompactableLog
from kproc.storage.log_config import LogConfig
from kproc.storage.log_read import ReadableLog
from kproc.storage.producer_state import ProducerTable
from kproc.storage.recovery import Loaded, TrustedEnd, load
from kproc.storage.results import AppendResult, ReadResult, RecordPosition, SyncPoint
from kproc.storage.retention import SegmentFacts, below_start, victims
from kproc.storage.segment import LogSegment
from kproc.storage.segment_files import holds_records
from kproc.storage.segments import Doomed

__all__ = ["AppendResult", "Log", "LogConfig", "ReadResult", "RecordPosition", "SyncPoint", "TrustedEnd"]

logger = logging.getLogger(__name__)

_STATE_VERSION: Final = 2


class OtherTopic(Corrupt):
    """The directory holds the files of another topic of this name, probably a deleted one."""


class NoTopic(OtherTopic):
    """The directory holds records without partition.metadata: no sync of them has ever succeeded."""


class Log(AppendingLog, ReadableLog, CompactableLog):
    """The log of one partition. Made by open() or import_state(), ended by close() or rename_for_delete()."""

    # -- opening and closing -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        leader_epoch: int,
        clock: Clock,
        fs: Fs,
        trusted: TrustedEnd | None = None,
        recovery_point: int = 0,
        start_offset: int = 0,
        clean: bool = False,
    ) -> Log:
        """Open a partition's directory, made with Kafka's files when it is not there.

        Raises Corrupt for damage, OtherTopic for another topic's files, StorageFailure when the disk refuses.
        """
        found = checkpoints.read_partition_metadata(fs, directory)
        is_new = found is None and fs.make_directory(directory)
        if not is_new:
            _check_topic(fs, directory, found, topic_id, is_trusted=trusted is not None)
        now_ms = clock.wall_ms()
        loaded = None if is_new else load(
            fs, directory, config, now_ms=now_ms, recovery_point=recovery_point, clean=clean, trusted=trusted
        )  # fmt: skip
        if trusted is not None:
            start_offset = max(start_offset, trusted.start_offset)
        if loaded is not None and start_offset > loaded.end_offset:
            logger.warning(
                "log=discarded directory=%s end=%d start=%d", directory, loaded.end_offset, start_offset
            )
            _discard(fs, directory, loaded)
            loaded = None
        if loaded is None:
            segments = [LogSegment.create(fs, directory, start_offset, now_ms=now_ms)]
            epochs, producers, end_offset = LeaderEpochs(), ProducerTable(start_offset), start_offset
        else:
            segments, epochs, producers = loaded.segments, loaded.epochs, loaded.producers
            end_offset = loaded.end_offset
        start_offset = max(start_offset, segments[0].base_offset)
        epochs.truncate_to(start_offset)
        log = cls(
            directory, config, topic=topic, topic_id=topic_id, partition=partition, leader_epoch=leader_epoch,
            clock=clock, fs=fs, segments=segments, epochs=epochs, producers=producers, end_offset=end_offset,
            start_offset=start_offset,
        )  # fmt: skip
        if found is None:
            checkpoints.write_partition_metadata(fs, directory, topic_id)
            log._files_dirty = [directory / checkpoints.PARTITION_METADATA_FILE]
        if loaded is None:
            checkpoints.write_leader_epochs(fs, directory, (), durable=False)
            log._directories_dirty = [directory, directory.parent]
        else:
            log._snapshots = loaded.snapshots
            log.truncated_bytes = loaded.truncated_bytes
            if loaded.has_removed:  # If a power loss brings one back, it must not overlap new records.
                log._directories_dirty = [directory]
        if clean:
            log.recovery_point = end_offset
        else:
            log._trust_synced(min(recovery_point, end_offset))
            log._take_over_unsynced()
        if loaded is not None:
            log._unsynced += [segment for segment in loaded.rebuilt if segment not in log._unsynced]
            if loaded.is_suspect:
                log._write_again()
        return log

    def _write_again(self) -> None:
        """After a failed sync: write again what no sync has confirmed, or raise StorageFailure."""
        segments = [*self._unsynced, self.active]
        try:
            written = failed_sync.write_again(self._fs, segments, self.recovery_point)
            # Written completely before it replaces the old one: without the file the log would belong to no topic.
            checkpoints.write_partition_metadata(self._fs, self.directory, self.topic_id, durable=True)
            self._directories_dirty = [self.directory, self.directory.parent]
            self._files_dirty = [segment.txn_index_path for segment in segments]
            self.sync()
        except StorageFailure:
            self.end_close()
            raise
        failed_sync.forget(self._fs, self.directory)
        logger.warning(
            "log=written_again partition=%s-%d bytes=%d: a sync of it had failed",
            self.topic, self.partition, written,
        )  # fmt: skip

    def _trust_synced(self, offset: int) -> None:
        """Make an offset the recovery point, and mark the sealed segments behind it as not synced.

        A segment that ends exactly there is marked, too: its records may have been synced while it was active, but not
        its indexes.
        """
        self.recovery_point = offset
        held = self._segments.all()
        self._unsynced = [
            sealed for sealed, following in itertools.pairwise(held) if following.base_offset >= offset
        ]

    def _take_over_unsynced(self) -> None:
        """Mark the names and small files for a sync that a dead owner did not sync after its last round.

        Its last round covered the active segment, names included, if it confirmed anything in it.
        """
        if self.recovery_point <= self.active.base_offset:
            self._directories_dirty = [self.directory, self.directory.parent]
            self._files_dirty = [self.directory / checkpoints.PARTITION_METADATA_FILE]
        segments = (*self._unsynced, self.active)
        if indexes := [each.txn_index_path for each in segments if each.txn_index.exists]:
            self._files_dirty += indexes
            self._directories_dirty = self._directories_dirty or [self.directory]  # May be new, or cut.

    def close(self, *, clean: bool = True) -> None:
        """Close all files. Clean: first everything is synced and the producers' snapshot is written."""
        try:
            if clean and self.offline_reason is None:
                point = self.begin_close()
                self._run(point)
        finally:
            self.end_close()

    def begin_close(self) -> SyncPoint:
        """The first half of a clean close: what must be synced before `end_close`, as of sync_point()."""
        self.active.finish_time_index()  # If there is no room for it, the stop is not clean.
        if self.active.reserved_end:
            self.active.give_back()
        self._take_snapshot()
        return self.sync_point(closes=True)

    def end_close(self) -> None:
        """Close all files as they are."""
        self.offline_reason = self.offline_reason or "the log is closed"
        self._segments.close()

    def rename_for_delete(self) -> Path | None:
        """End the log and rename its directory to `....<hex>-delete`; the caller removes it later.

        None when it is gone already, or is another topic's.
        """
        self.offline_reason = "the partition is deleted"
        self._segments.close()
        target = self.set_aside(self.directory, self._fs, topic_id=self.topic_id)
        if target is not None:
            self.directory = target
            self._segments.move(target)
        return target

    @staticmethod
    def set_aside(
        directory: Path,
        fs: Fs,
        *,
        topic_id: bytes | None = None,
        kind: str = DELETE_DIRECTORY_SUFFIX,
    ) -> Path | None:
        """Rename the directory of a partition that is not open, by default for its deletion; None when there is none.

        With a topic's id nothing is done to a directory that says it is another topic's.
        """
        parsed = parse_partition_directory_name(directory.name)
        assert parsed is not None, directory
        if topic_id is not None and _is_of_another_topic(fs, directory, topic_id):
            logger.error("%s is left alone: it is another topic's", directory)
            return None
        target = directory.with_name(set_aside_directory_name(*parsed, uuid.uuid4().hex, kind))
        return target if fs.rename(directory, target) else None

    def reconfigure(self, config: LogConfig) -> None:
        """Use changed settings of the topic, from the next append on."""
        self.config = config

    # -- durability ----------------------------------------------------------------------------------------

    def sync_point(self, *, closes: bool = False) -> SyncPoint:
        """What must be synced for everything appended so far; no descriptors when nothing is new.

        New files need their directory synced as well, or a power loss takes the file's name away. Sealed
        segments are synced with their indexes: below the recovery point those are believed. So is, by who
        `closes` the log, the active one. Give the point back with mark_synced() or sync_failed(), always.
        """
        segments: list[LogSegment] = []
        extra: list[int] = []
        if self.recovery_point < self.end_offset or self._directories_dirty or self._unsynced:
            segments = [*self._unsynced, self.active]
            extra = [self._fs.open_directory(path) for path in self._directories_dirty]
            # A transaction index is not rebuilt from batches below the recovery point, so it must be synced. Without
            # partition.metadata the checkpoints' entries for this log are not believed.
            extra += [self._fs.open(path) for path in self._files_dirty if self._fs.exists(path)]
            self._directories_dirty, self._files_dirty = [], []
        elif closes:
            segments = [self.active]
        fds = [fd for segment in segments for fd in segment.pin(indexes=closes or segment is not self.active)]
        return SyncPoint(
            (*fds, *extra),
            self.end_offset,
            tuple(segments),
            tuple([segment.size for segment in segments]),
            tuple(extra),
        )

    def mark_synced(self, point: SyncPoint) -> None:
        """All descriptors of the point were synced without an error.

        The segment that was active at the point may have grown since, and been sealed: it stays to be synced, now
        with its indexes.
        """
        self._give_back(point)
        self.recovery_point = max(self.recovery_point, point.end_offset)
        for segment, size in zip(point.segments, point.sizes, strict=True):
            segment.synced_bytes = size
        sealed = point.segments[:-1]
        self._unsynced = [segment for segment in self._unsynced if segment not in sealed]
        self._flushed_ms = self._clock.wall_ms()

    def sync_failed(self, point: SyncPoint, reason: str) -> None:
        """A sync failed: the log goes offline, for the kernel may have dropped what it could not write."""
        self._give_back(point)
        self.take_offline(reason)

    def take_offline(self, reason: str) -> None:
        """Refuse appends from now on: what is on the disk is no longer known."""
        self._note_failure(StorageFailure(reason))

    def run_sync(self, point: SyncPoint) -> None:
        """The fdatasync calls of a point; raises StorageFailure. For a sync thread: no state of the log changes."""
        for segment in point.segments:
            segment.note_synced()
        try:
            for descriptor in point.fds:
                self._fs.sync(descriptor)
        except StorageFailure:
            failed_sync.leave_note(self._fs, self.directory)
            raise

    def _give_back(self, point: SyncPoint) -> None:
        for segment in point.segments:
            segment.unpin()
            self._segments.warm(segment)  # Its descriptor may have been opened for the sync only.
        for descriptor in point.extra_fds:
            self._fs.close(descriptor)

    def sync(self) -> None:
        """Sync everything now, blocking; raises StorageFailure (and the log is offline) when that fails."""
        self._run(self.sync_point())

    def _run(self, point: SyncPoint) -> None:
        try:
            self.run_sync(point)
        except StorageFailure as failure:
            self.sync_failed(point, str(failure))
            raise
        self.mark_synced(point)

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages, flush.ms or a sealed segment asks for a sync, without acks=all."""
        unsynced = self.end_offset - self.recovery_point
        if not unsynced:
            return False
        return (
            unsynced >= self.config.flush_messages
            or now_ms - self._flushed_ms >= self.config.flush_ms
            or bool(self._unsynced)
        )

    # -- retention and deletion ----------------------------------------------------------------------------

    def retention_victims(self, now_ms: int) -> tuple[str, list[SegmentFacts]]:
        """(reason, oldest segments that may go): by the log's start, by retention.ms, by retention.bytes."""
        facts = self.segment_facts()
        reason, count = victims(facts, self.config, now_ms=now_ms, start_offset=self.start_offset)
        return reason, facts[:count]

    def enforce_retention(self, now_ms: int) -> int:
        """Delete what retention_victims() names; returns how many segments."""
        reason, doomed = self.retention_victims(now_ms)
        return self.delete_segments_before(doomed[-1].next_offset, reason) if doomed else 0

    def delete_segments_before(self, offset: int, reason: str) -> int:
        """Delete the segments that end at or before an offset; returns how many.

        The files are renamed to .deleted now and unlinked by unlink_due() after file.delete.delay.ms, so
        that whoever sends from them can finish.
        """
        now_ms = self._clock.wall_ms()
        count = below_start(self.segment_facts(), start_offset=min(offset, self.end_offset))
        if not count:
            return 0
        with self._done_or_offline("a deletion of segments"):
            if count == len(self._segments):
                try:
                    self._roll(self.end_offset, now_ms)
                except DiskFull:
                    count -= 1  # A full disk must not prevent the deletion of the others.
            gone = self._segments.delete_oldest(count, due_ms=now_ms + self.config.file_delete_delay_ms)
            self._unsynced = [segment for segment in self._unsynced if segment not in gone]
            self._snapshots = [held for held in self._snapshots if held >= self._segments.first_base]
            self._move_start(max(self.start_offset, self._segments.first_base))
        logger.info(
            "segments=deleted partition=%s-%d count=%d before=%d reason=%s",
            self.topic, self.partition, len(gone), self._segments.first_base, reason,
        )  # fmt: skip
        return len(gone)

    def advance_start(self, offset: int) -> int:
        """DeleteRecords: the log begins at `offset` from now on; whole segments below go. Returns the start.

        The caller writes the new start to log-start-offset-checkpoint: one file for all logs of a directory.
        """
        if offset > self.end_offset or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is above the high watermark {self.end_offset}",
            )
        if offset > self.start_offset:
            with self._done_or_offline("a move of the log's start"):
                self._move_start(offset)
            self.delete_segments_before(offset, "log start offset")
        return self.start_offset

    def _move_start(self, offset: int) -> None:
        self.start_offset = offset
        if self._epochs.truncate_to(offset):
            self._write_epochs()

    def unlink_due(self, now_ms: int) -> int:
        """Unlink deleted segments' files that have waited file.delete.delay.ms; returns how many."""
        return self._segments.unlink_due(now_ms)

    def next_unlink_ms(self) -> int | None:
        """When unlink_due() has work again, or None."""
        return self._segments.next_due_ms()

    def expire_producers(self, now_ms: int) -> int:
        """Forget idle producers (producer.id.expiration.ms); returns how many."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # -- transfer to another Handler -----------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        """Everything the owner knows, as plain values, for import_state() in another process.

        Also writes a producer snapshot: it is what the new owner falls back to if it dies at once. The log
        must not be appended to any more; close(clean=False) ends it.
        """
        self._take_snapshot()
        return {
            "version": _STATE_VERSION,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "leader_epoch": self.leader_epoch,
            "recovery_point": self.recovery_point,
            "bytes_since_snapshot": self._bytes_since_snapshot,
            "flushed_ms": self._flushed_ms,
            "offline": self.offline_reason,
            "epochs": [list(entry) for entry in self._epochs.entries()],
            "producers": self.producers.export(),
            "snapshots": list(self._snapshots),
            "segments": [segment.export() for segment in self._segments.all()],
            "doomed": [[due_ms, path.name] for due_ms, path in self._segments.doomed()],
            "directories_dirty": [str(path) for path in self._directories_dirty],
            "files_dirty": [str(path) for path in self._files_dirty],
        }

    @classmethod
    def import_state(
        cls,
        directory: Path,
        config: LogConfig,
        state: dict[str, Any],
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        clock: Clock,
        fs: Fs,
    ) -> Log:
        """Continue a log with the state that its last owner exported: nothing is scanned, the leader epoch stays."""
        if state["version"] != _STATE_VERSION:
            raise Corrupt(f"log state of version {state['version']} is not known")
        segments = []
        for exported in state["segments"]:
            segments.append(LogSegment.adopt(fs, directory, exported))
            segments[-1].close()
        end_offset = state["end_offset"]
        log = cls(
            directory, config, topic=topic, topic_id=topic_id, partition=partition,
            leader_epoch=state["leader_epoch"], clock=clock, fs=fs, segments=segments,
            epochs=LeaderEpochs((epoch, start) for epoch, start in state["epochs"]),
            producers=ProducerTable.from_export(state["producers"], end_offset),
            end_offset=end_offset, start_offset=state["start_offset"],
        )  # fmt: skip
        log._trust_synced(state["recovery_point"])
        log._snapshots = list(state["snapshots"])
        log._bytes_since_snapshot = state["bytes_since_snapshot"]
        log._flushed_ms = state["flushed_ms"]
        log.offline_reason = state["offline"]
        log._directories_dirty = [Path(path) for path in state["directories_dirty"]]
        log._files_dirty = [Path(path) for path in state["files_dirty"]]
        log._segments.doom([Doomed(due_ms, directory / name) for due_ms, name in state["doomed"]])
        return log


def _is_of_another_topic(fs: Fs, directory: Path, topic_id: bytes) -> bool:
    try:
        found = checkpoints.read_partition_metadata(fs, directory)
    except Corrupt as problem:
        logger.warning("%s", problem)
        return False
    return found is not None and found != topic_id


def _check_topic(fs: Fs, directory: Path, found: bytes | None, topic_id: bytes, *, is_trusted: bool) -> None:
    if found is not None and found != topic_id:
        raise OtherTopic(f"{directory} belongs to topic id {found.hex()}, not {topic_id.hex()}")
    if found is None and not is_trusted and holds_records(fs, directory):
        raise NoTopic(f"{directory} has records, and no partition.metadata says of which topic")


def _discard(fs: Fs, directory: Path, loaded: Loaded) -> None:
    """Remove all segments and snapshots: a power loss took the records that the log's start refers to."""
    for segment in loaded.segments:
        segment.close()
        for doomed in segment.mark_deleted():
            fs.unlink(doomed)
    for offset in loaded.snapshots:
        fs.unlink(directory / segment_file_name(offset, SNAPSHOT_SUFFIX))
