"""MetadataLog: the controller's records on disk, synced before any other role gets them.

    <data>/__cluster_metadata-0/
        00000000000000000000.log                     record batches, one per delta
        00000000000000004711-0000000000.checkpoint   a snapshot of version 4711: record batches, too

A version is a count of records, so a batch's base offset is the version that its delta follows, and Kafka's
DumpLogSegments can walk the file. A record's value is one metadata record (`records.py`, which has the
procedure for changing it); its key is null. The first record of a snapshot registers the cluster, and its header tells
how many records the snapshot has. Older versions of kproc ignore the header, and their snapshots have none. The first
commit replaces such a snapshot.

`open` loads the newest snapshot and replays the log behind it (metadata_replay.py).

When a log is much larger than a snapshot would be, `compact_if_large` writes a snapshot and starts a new log. A crash
between any two of its steps leaves a directory that opens to the same image.

metadata_files.py has the names and reads the batches. The controller owns the log and holds the lock of the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage, ImageChange
from kproc.broker.cluster.image_records import snapshot_records
from kproc.broker.cluster.metadata_files import (
    LOG_NAME,
    RECORD_COUNT_HEADER,
    SNAPSHOT_BATCH_RECORDS,
    SNAPSHOT_NAME,
    START_WITHOUT,
    TEMPORARY_SUFFIX,
    NewerRecord,
    version_in,
)
from kproc.broker.cluster.metadata_replay import MetadataReplay
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.broker.storage.fs import Fs, Shortage, StorageFailure, is_unlinked, sync_directory
from kproc.common.clock import Clock
from kproc.common.errors import Corrupt, ErrorCode, FatalError, KafkaError
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

logger = logging.getLogger(__name__)

# A log is not compacted below this size. Replaying 1 MiB takes about 0.4 s, which is acceptable for a start.
COMPACT_BYTES: Final = 1 << 20
# Compact a log that is this many times larger than the last snapshot, because it is then mostly history.
COMPACT_FACTOR: Final = 4


class MetadataLog:
    """The open metadata log. The controller creates it by `open` and closes it when it stops."""

    __slots__ = ("_clock", "_compact_at", "_descriptor", "_directory", "_fs", "_path", "_size", "version")

    def __init__(self, directory: Path, clock: Clock, fs: Fs) -> None:
        self._directory = directory
        self._clock = clock
        self._fs = fs
        self._descriptor = -1
        self._path = directory
        self._size = 0
        self._compact_at = COMPACT_BYTES
        self.version = 0

    @classmethod
    def open(cls, data_directory: Path, clock: Clock, fs: Fs) -> tuple[MetadataLog, ClusterImage]:
        """Open or create the log in `data_directory`. Return it with the image that results from its records.

        Raises Corrupt if the log is damaged, and FatalError on I/O errors.
        """
        log = cls(data_directory / METADATA_DIRECTORY, clock, fs)
        try:
            if fs.make_directory(log._directory):
                # Sync the parent directory. Otherwise a power loss could remove the directory with all metadata,
                # although its files were synced.
                sync_directory(fs, data_directory)
            return log, log._load()
        except OSError as error:
            log.close()
            raise FatalError(f"cannot open the metadata log in {log._directory}: {error}") from error
        # The log is whole, and a newer version can read it. Do not advise the user to replace it with a copy.
        except NewerRecord:
            log.close()
            raise
        except Corrupt as error:
            log.close()
            raise Corrupt(
                f"{error}; restore a copy of {METADATA_DIRECTORY}, or move it away and start with "
                f"{START_WITHOUT}=true: then every topic is unknown and its files are set aside"
            ) from error

    @property
    def size_bytes(self) -> int:
        """Bytes of the current log file."""
        return self._size

    def commit(self, image: ClusterImage, records: Sequence[r.Record]) -> tuple[bytes, ImageChange]:
        """Write `records` to the disk, apply them to the controller's image, and return the delta for the other roles.

        Raises KafkaError(KAFKA_STORAGE_ERROR) after a Shortage, such as a full disk. Then nothing has changed.
        """
        delta = r.encode_delta(image.version, records)
        if is_unlinked(self._fs, self._descriptor, self._path):
            self._write_again(image)
        self.append(records)
        change = image.apply(delta)
        self.compact_if_large(image)
        return delta, change

    def _write_again(self, image: ClusterImage) -> None:
        """Write the metadata to a new log, because another program has removed the present one.

        The writes and syncs of the removed file would succeed, and the next start would lack all of its changes.
        """
        logger.error(
            "metadata_log=removed path=%s: another program has removed it; writing it again", self._path
        )
        try:
            self._fs.make_directory(self._directory)
            sync_directory(self._fs, self._directory.parent)
            self._write_snapshot(image)
            self._start_log(self.version)
        except OSError as error:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The metadata log was removed and cannot be written again: {error.strerror}.",
            ) from error

    def append(self, records: Sequence[r.Record]) -> None:
        """Append one delta's records and sync the file. Raise like `commit`, and FatalError for any other error."""
        batch = self._batch(records, self.version)
        try:
            self._fs.write(self._descriptor, [batch], position=self._size)
        except OSError as error:
            self._fail_write(error)
        try:
            self._fs.sync(self._descriptor)
        except OSError as error:
            # After a failed fsync Linux marks the pages as clean, so a second sync would succeed without writing them.
            # The next start rewrites the last batch (_continue_log).
            raise FatalError(f"cannot sync {self._path}, so the controller restarts: {error}") from error
        self._size += len(batch)
        self.version += len(records)
        # Store the synced size now and not at the next append, because this batch will be acknowledged: a start after
        # `kill -9` must notice if it is missing.
        self._mark_synced(self._descriptor)

    def compact_if_large(self, image: ClusterImage) -> None:
        """Replace a log that is much larger than a snapshot by a snapshot. `image` must be at the log's version."""
        assert image.version == self.version, f"image {image.version}, log {self.version}"
        if self._size < self._compact_at:
            return
        try:
            snapshot_bytes = self._write_snapshot(image)
            self._start_log(self.version)
        except OSError as error:
            # The log is intact and only long. Most likely the disk is full. Try again when the log has doubled.
            self._compact_at = 2 * self._size
            logger.warning(
                "metadata_log=not_compacted reason=%s size_bytes=%d next_attempt_at_bytes=%d",
                error, self._size, self._compact_at,
            )  # fmt: skip
            return
        self._compact_at = max(COMPACT_BYTES, COMPACT_FACTOR * snapshot_bytes)
        try:
            self._remove_older_than(self.version)
        except OSError as error:
            # The next compaction or the next start removes the older files.
            logger.warning("metadata_log=older_files_not_removed reason=%s", error)

    def close(self) -> None:
        """Close the file. All acknowledged records are on disk already."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        self._mark_synced(descriptor)
        try:
            self._fs.close(descriptor)
        except StorageFailure as failure:
            logger.warning("metadata_log=not_closed reason=%s", failure)

    def _mark_synced(self, descriptor: int) -> None:
        """Record in an extended attribute that the whole file was synced."""
        try:
            self._fs.write_synced_mark(descriptor, self._size)
        except StorageFailure as failure:
            # Only warn, because no record is lost. Without the mark the next start cannot tell some kinds of
            # damage from a torn write.
            logger.warning(
                "metadata_log=not_marked: cannot store the number of synced bytes; reason=%s", failure
            )

    # -- opening

    def _load(self) -> ClusterImage:
        replay = MetadataReplay(self._fs, self._directory)
        replay.run()
        image = replay.image
        self.version = image.version
        if replay.is_uncounted:
            self._compact_at = 0
        if replay.current is not None:
            self._continue_log(replay.current, replay.last_batch)
        else:
            self._start_log(image.version)
        self._remove_older_than(replay.snapshot_version, replay.needed)
        return image

    def _continue_log(self, path: Path, last_batch: tuple[int, bytes]) -> None:
        """Continue a log file after making sure that everything that was read from it is on the disk.

        The last controller may have died between the write of a batch and its sync, or because the sync failed. Then
        the page cache has data that the disk lacks, in pages that count as clean. So the last batch is written again.
        """
        position, batch = last_batch
        self._adopt(self._fs.open(path), path, position + len(batch))
        if batch:
            self._fs.write(self._descriptor, [batch], position=position)
            self._fs.sync(self._descriptor)
            self._fs.write_synced_mark(self._descriptor, self._size)
        sync_directory(self._fs, self._directory)

    def _start_log(self, version: int) -> None:
        path = self._directory / f"{version:020d}.log"
        # Create the file only if it does not exist, because a compaction that crashed leaves an empty one.
        descriptor = self._fs.open(path, create=not self._fs.exists(path))
        try:
            sync_directory(self._fs, self._directory)
            size = self._fs.facts(descriptor).st_size
        except StorageFailure:
            # Continue with the current log. If the new file cannot be removed, the next start ignores it, because it is
            # empty.
            try:
                self._fs.close(descriptor)
            finally:
                self._fs.unlink(path)
            raise
        self._adopt(descriptor, path, size)

    def _adopt(self, descriptor: int, path: Path, size: int) -> None:
        """Close the present log file and append to this one from now on.

        The caller makes its directory entry durable.
        """
        self.close()
        self._descriptor = descriptor
        self._path = path
        self._size = size

    # -- writing

    def _batch(self, records: Sequence[r.Record], base_offset: int, snapshot_count: int = 0) -> bytearray:
        """Encode one batch. The first record of a snapshot tells its number of records, `snapshot_count`."""
        now_ms = self._clock.wall_ms()
        encoded = [Record(None, r.encode_record(record), now_ms) for record in records]
        if snapshot_count:
            encoded[0] = encoded[0]._replace(headers=[(RECORD_COUNT_HEADER, b"%d" % snapshot_count)])
        return encode_batch(encoded, base_offset=base_offset, leader_epoch=0)

    def _fail_write(self, error: OSError) -> None:
        """Raise FatalError for a failed write. After a Shortage cut off its bytes and raise KafkaError."""
        # After any error but a Shortage, the content of the disk is unknown. The controller ends, and its successor
        # reads the file again.
        if not isinstance(error, Shortage):
            raise FatalError(f"cannot write to {self._path}, so the controller restarts: {error}") from error
        try:
            # Cut off the failed write. Otherwise the next batch would follow half a batch, and a start would take it
            # for a torn tail.
            self._fs.truncate(self._descriptor, self._size)
        except OSError as second:
            raise FatalError(
                f"cannot truncate {self._path} after a failed write, so the controller restarts: {second}"
            ) from second
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata log cannot grow: {error.strerror}."
        ) from error

    def _write_snapshot(self, image: ClusterImage) -> int:
        """Write a snapshot of the image and return its size in bytes.

        The file is synced before the rename, so that a file with the final name is always complete.
        """
        path = self._directory / f"{image.version:020d}-{0:010d}.checkpoint"
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        records = snapshot_records(image)
        # Count the records in a pass of their own, because a list of all records of a large cluster would take memory.
        record_count = sum(1 for _ in snapshot_records(image))
        base_offset = 0
        size = 0
        self._fs.unlink(temporary)
        descriptor = self._fs.open(temporary, create=True)
        try:
            while chunk := list(islice(records, SNAPSHOT_BATCH_RECORDS)):
                batch = self._batch(chunk, base_offset, 0 if base_offset else record_count)
                self._fs.write(descriptor, [batch], position=size)
                base_offset += len(chunk)
                size += len(batch)
            self._fs.sync(descriptor)
        finally:
            self._fs.close(descriptor)
        # From the rename on the snapshot counts, so everything before must be on the disk.
        self._fs.rename(temporary, path)
        sync_directory(self._fs, self._directory)
        return size

    def _remove_older_than(self, version: int, needed: Collection[str] = ()) -> None:
        """Remove the files that the snapshot of `version` replaces, except the current log and the `needed` ones."""
        for name in self._fs.list_directory(self._directory):
            is_ours = LOG_NAME.fullmatch(name) or SNAPSHOT_NAME.fullmatch(name)
            is_needed = name == self._path.name or name in needed
            if is_ours and version_in(name) < version and not is_needed:
                self._fs.unlink(self._directory / name)
