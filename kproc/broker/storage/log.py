"""Log: one partition's records on the disk. Owned by exactly one Handler, so nothing here is locked.

An append checks each batch, writes its offset into it in place, writes all batches with one system call, and only then
changes what readers and indexes see. A write that fails leaves no trace: the file is cut back to its former size.

- No disk space, descriptor or memory (fs.Shortage): those batches get KAFKA_STORAGE_ERROR, the log stays open, and the
  next append tries again.
- Any other error of a write or a sync: the log goes offline. Reads still work, and appends are rejected until the log
  is opened again.

All records below `recovery_point` are known to be on the disk. A sync thread advances it (sync_point, fdatasync of the
descriptors, mark_synced). Clients read records below the high watermark. Records of acks=all are hidden until a sync
confirms them. The high watermark is the first hidden record, or the log's end if no record is hidden, so visible
records are always a prefix of the log.

A Log is composed of parts that share one LogState (log_state.py: files, ends, producers): LogAppender (log_append.py,
the hot path), LogReader (log_read.py), LogDurability (log_durability.py), LogRetention (log_retention.py) and
SegmentSwap (log_compact.py). Callers use the parts directly: `log.state.end_offset`, `log.reader.epoch_of(offset)`. The
Log itself only opens, closes, deletes and transfers the files. No part refers to the Log, so that reference counting
alone frees an unused Log, without a garbage collection.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from kproc.broker.storage import checkpoints
from kproc.broker.storage.format import INT32_MAX
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.last_stop import LastStop, TrustedEnd
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_append import LogAppender
from kproc.broker.storage.log_compact import SegmentSwap
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.log_durability import LogDurability
from kproc.broker.storage.log_open import (
    EndsBelowStart,
    OtherTopic,
    check_not_lost,
    check_topic,
    create_empty,
    load_from,
)
from kproc.broker.storage.log_read import LogReader
from kproc.broker.storage.log_retention import LogRetention
from kproc.broker.storage.log_start import write_start
from kproc.broker.storage.log_state import LogIdentity, LogState
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.recovery import Loaded
from kproc.broker.storage.results import AppendResult, ReadResult, RecordPosition, SyncPoint
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segments import Doomed
from kproc.broker.storage.set_aside import rename_for_deletion
from kproc.common.clock import Clock
from kproc.common.errors import Corrupt

__all__ = [
    "AppendResult", "EndsBelowStart", "LastStop", "Log", "LogConfig", "LogIdentity", "OtherTopic", "ReadResult",
    "RecordPosition", "SyncPoint", "TrustedEnd",
]  # fmt: skip

logger = logging.getLogger(__name__)

_STATE_VERSION: Final = 4
# LastStop for the log of a partition that no owner has had before.
NEVER_STOPPED: Final = LastStop()


class Log:
    """The log of one partition. open() and import_state() create it; close() and rename_for_delete() end it."""

    __slots__ = (
        "aborted_in", "append", "appender", "compaction", "durability", "read", "reader", "retention", "state",
        "truncated_bytes",
    )  # fmt: skip

    def __init__(self, state: LogState) -> None:
        self.state = state
        self.appender = LogAppender(state)
        self.reader = LogReader(state)
        self.durability = LogDurability(state)
        self.retention = LogRetention(state)
        self.compaction = SegmentSwap(state)
        # Bind the methods of the parts once, because every request calls them.
        self.append, self.read, self.aborted_in = (
            self.appender.append,
            self.reader.read,
            self.reader.aborted_in,
        )
        self.truncated_bytes = 0  # Bytes that open() truncated from a torn tail.

    # -- opening and closing -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        identity: LogIdentity,
        config: LogConfig,
        *,
        leader_epoch: int,
        clock: Clock,
        fs: Fs,
        last: LastStop = NEVER_STOPPED,
    ) -> Log:
        """Open a partition's directory, or create it with Kafka's files if it does not exist.

        If the log's records have a higher leader epoch than the given one, the log gets an epoch above theirs.
        Raises Corrupt for damage and for records that are missing, OtherTopic for another topic's files,
        EndsBelowStart for a log that must be set aside, StorageFailure for a failed system call.
        """
        directory, now_ms = identity.directory, clock.wall_ms()
        found, loaded = _load(fs, identity, config, last, now_ms)
        is_empty = loaded is None
        if loaded is None:
            loaded = create_empty(fs, directory, last.effective_start, now_ms=now_ms)
        start_offset = max(last.effective_start, loaded.segments[0].base_offset)
        is_start_stale = loaded.epochs.truncate_to(start_offset)
        state = LogState(
            identity, config, leader_epoch=_epoch_not_below(loaded.epochs, leader_epoch), clock=clock, fs=fs,
            segments=loaded.segments, epochs=loaded.epochs, producers=loaded.producers,
            end_offset=loaded.end_offset, start_offset=start_offset,
        )  # fmt: skip
        state.snapshots.offsets = loaded.snapshots
        log = cls(state)
        log.truncated_bytes = loaded.truncated_bytes
        try:
            # A crash came after a DeleteRecords and before leader-epoch-checkpoint was written. Write it now.
            if is_start_stale:
                write_start(fs, directory, loaded.epochs)
            log._complete(loaded, last, is_named=found is not None, is_empty=is_empty)
        except StorageFailure:
            log.close_files()
            raise
        return log

    def _complete(self, loaded: Loaded, last: LastStop, *, is_named: bool, is_empty: bool) -> None:
        """Write the small files that are missing, and record which files the next sync must cover.

        `is_named`: partition.metadata exists. `is_empty`: the directory had no segment.
        """
        state = self.state
        unsynced, fs, directory = state.unsynced, state.fs, state.directory
        if not is_named:
            checkpoints.write_partition_metadata(fs, directory, state.topic_id)
            unsynced.add_file(directory / checkpoints.PARTITION_METADATA_FILE)
            unsynced.add_directory(directory)
        if is_empty:
            checkpoints.write_leader_epochs(fs, directory, (), durable=False)
        clean = last.clean and not loaded.is_suspect
        if clean:
            state.recovery_point = loaded.end_offset
        else:
            self.durability.trust(min(last.recovery_point, loaded.end_offset))
        # An empty log may be younger than the clean stop: its owner may have died, or run out of disk space, after it
        # had created the files and before it published a row. Its names may be unsynced. A log with records is older
        # than the stop.
        if not clean or loaded.end_offset == state.active_base:
            unsynced.add_inherited(directory, state.active, state.recovery_point)
        unsynced.segments += [segment for segment in loaded.rebuilt if segment not in unsynced.segments]
        # The log has a note about a failed sync: the page cache may have bytes that are not on the disk.
        if loaded.is_suspect:
            self.durability.write_again()

    def close(self, *, clean: bool = True) -> None:
        """Close all files. If `clean`, first sync all files and write the producer snapshot."""
        try:
            if clean and self.state.offline_reason is None:
                self.durability.sync_now(self.prepare_close())
        finally:
            self.close_files()

    def prepare_close(self) -> SyncPoint:
        """Start a clean close. Return the sync point that must be synced before close_files()."""
        active = self.state.active
        # This raises DiskFull if the disk has no space for the last time index entry. The stop is then not clean.
        active.finish_time_index()
        if active.reserved_end:
            active.release_reserved()
        active.write_aborted_mark()
        self.state.write_snapshot()
        self.durability.sync_most()
        return self.durability.sync_point(closes=True)

    def close_files(self) -> None:
        """Close all files without syncing them."""
        self.state.offline_reason = self.state.offline_reason or "the log is closed"
        self.state.segments.close()

    def mark_deleted(self) -> None:
        """Reject appends from now on, because the partition is deleted."""
        self.state.offline_reason = "the partition is deleted"

    def rename_for_delete(self) -> Path | None:
        """Close the log and rename its directory to `....<hex>-delete`. The caller removes the directory later.

        Returns the new path, or None if the directory does not exist or belongs to another topic.
        """
        self.mark_deleted()
        state = self.state
        state.segments.close()
        if _is_of_another_topic(state.fs, state.directory, state.topic_id):
            logger.error("not deleting directory %s: it belongs to a topic with another id", state.directory)
            return None
        target = rename_for_deletion(state.fs, state.directory)
        if target is not None:
            state.directory = target
            state.segments.move(target)
        return target

    # -- transfer to another Handler -----------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        """Return the log's state as plain values, for import_state() in another process.

        Also writes a producer snapshot, because the new owner may die before it writes its own. After this call only
        close(clean=False) is allowed.
        """
        state = self.state
        state.write_snapshot()
        return {
            "version": _STATE_VERSION,
            "start_offset": state.start_offset,
            "end_offset": state.end_offset,
            "leader_epoch": state.leader_epoch,
            "recovery_point": state.recovery_point,
            "high_watermark": state.high_watermark,
            "undecided": list(state.undecided),
            "flushed_ms": self.durability.flushed_ms,
            "offline": state.offline_reason,
            "epochs": [list(entry) for entry in state.epochs.entries()],
            "producers": state.producers.export(),
            "snapshots": list(state.snapshots.offsets),
            "segments": [segment.export() for segment in state.segments.all()],
            "doomed": [[due_ms, path.name] for due_ms, path in state.segments.doomed()],
            "directories_dirty": [str(path) for path in state.unsynced.directories],
            "files_dirty": [str(path) for path in state.unsynced.files],
        }

    @classmethod
    def import_state(
        cls, identity: LogIdentity, config: LogConfig, exported: dict[str, Any], *, clock: Clock, fs: Fs
    ) -> Log:
        """Open a log with the state that its last owner exported. Scans nothing and keeps the leader epoch."""
        if exported["version"] != _STATE_VERSION:
            raise Corrupt(
                f"the last owner sent the log's state in version {exported['version']}; only version {_STATE_VERSION} "
                "is known"
            )
        directory = identity.directory
        segments = []
        for each in exported["segments"]:
            segments.append(LogSegment.adopt(fs, directory, each))
            # Close each segment at once, because a log may have more segments than a process may have descriptors.
            segments[-1].close()
        end_offset = exported["end_offset"]
        state = LogState(
            identity, config, leader_epoch=exported["leader_epoch"], clock=clock, fs=fs, segments=segments,
            epochs=LeaderEpochs((epoch, start) for epoch, start in exported["epochs"]),
            producers=ProducerTable.from_export(exported["producers"], end_offset),
            end_offset=end_offset, start_offset=exported["start_offset"],
        )  # fmt: skip
        state.snapshots.offsets = list(exported["snapshots"])
        # Hide the records that the former owner hid. Only a log that is offline is transferred with such records,
        # because no sync will confirm them.
        if exported["high_watermark"] < end_offset:
            state.hide(exported["high_watermark"], end_offset)
        state.undecided.extend((end, stable) for end, stable in exported["undecided"])
        state.offline_reason = exported["offline"]
        state.segments.doom([Doomed(due_ms, directory / name) for due_ms, name in exported["doomed"]])
        log = cls(state)
        log.durability.trust(exported["recovery_point"])
        log.durability.flushed_ms = exported["flushed_ms"]
        state.unsynced.directories = [Path(path) for path in exported["directories_dirty"]]
        state.unsynced.files = [Path(path) for path in exported["files_dirty"]]
        return log


def _epoch_not_below(epochs: LeaderEpochs, leader_epoch: int) -> int:
    """Return the leader epoch with which a log is opened: the given one, or an epoch above those of the records."""
    if epochs.latest <= leader_epoch:
        return leader_epoch
    # The batches have a newer epoch than the metadata: the files are from another broker, or the metadata is an older
    # copy. Use an epoch above theirs, because a leader epoch must never decrease.
    return min(epochs.latest + 1, INT32_MAX)


def _load(
    fs: Fs, identity: LogIdentity, config: LogConfig, last: LastStop, now_ms: int
) -> tuple[bytes | None, Loaded | None]:
    """Return (the topic id in the directory or None, the loaded log or None if it has no segment).

    Creates the directory if it does not exist. Raises Corrupt instead if `last` shows that it had records.
    """
    directory = identity.directory
    found = checkpoints.read_partition_metadata(fs, directory)
    if found is None and not fs.exists(directory):
        check_not_lost(directory, None, confirmed=last.confirmed_end, start_offset=last.effective_start)
        if fs.make_directory(directory):
            return None, None
    check_topic(
        fs, directory, found, identity.topic_id,
        is_trusted=last.trusted is not None, recovery_point=last.recovery_point,
    )  # fmt: skip
    return found, load_from(fs, directory, config, last, now_ms=now_ms)


def _is_of_another_topic(fs: Fs, directory: Path, topic_id: bytes) -> bool:
    try:
        found = checkpoints.read_partition_metadata(fs, directory)
    except Corrupt as problem:
        logger.warning("%s", problem)
        return False
    return found is not None and found != topic_id
