"""MetadataReplay: reads the snapshot and the logs of the metadata into an image, when the controller starts.

A crash in the middle of a write leaves a torn tail. Its records were never acknowledged, so the replay truncates it. A
damaged batch with good batches behind it, and one below the last confirmed sync, raise Corrupt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_files import (
    LOG_NAME,
    SNAPSHOT_BATCH_RECORDS,
    SNAPSHOT_NAME,
    TEMPORARY_SUFFIX,
    apply_to,
    batches_in,
    check_directories,
    has_batch_after,
    read_snapshot,
    records_of,
    version_in,
)
from kproc.broker.storage.fs import Fs
from kproc.common.errors import Corrupt
from kproc.wire.record_batch import parse_header

logger = logging.getLogger(__name__)


class MetadataReplay:
    """One replay of the metadata. `run` fills the image and the fields that MetadataLog needs to continue the log."""

    __slots__ = (
        "_directory", "_fs", "current", "image", "is_uncounted", "last_batch", "needed", "snapshot_version",
    )  # fmt: skip

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self.image = ClusterImage()
        self.snapshot_version = 0
        # True if an older kproc wrote the snapshot, without the number of its records.
        self.is_uncounted = False
        # The log to append to. None if the directory has no log.
        self.current: Path | None = None
        # The position and the bytes of the last batch in `current`.
        self.last_batch = (0, b"")
        # The names of the log files with records after the snapshot.
        self.needed: set[str] = set()

    def run(self) -> None:
        """Replay all files into `image`, and remove the files that a crash has left incomplete or empty.

        Raises Corrupt if the metadata are damaged, and StorageFailure.
        """
        # Versions are padded with zeros, so that the order of names is that of versions.
        names = sorted(self._fs.list_directory(self._directory))
        for name in names:
            # Remove a temporary snapshot. A crash while it was written has left it, so it can be incomplete.
            if name.endswith(TEMPORARY_SUFFIX):
                self._fs.unlink(self._directory / name)
        snapshots = [self._directory / name for name in names if SNAPSHOT_NAME.fullmatch(name)]
        may_be_cut = bool(snapshots) and self._read_snapshot(snapshots[-1])
        # The log before the snapshot may still exist, if a crash came before MetadataLog._remove_older_than().
        self.snapshot_version = self.image.version
        logs = [self._directory / name for name in names if LOG_NAME.fullmatch(name)]
        if logs:
            self.current = self._find_current(logs)
            self._replay_logs(logs, self.current)
        if may_be_cut:
            check_directories(self._fs, snapshots[-1], self.image)
        if snapshots and not logs:
            # A crash cannot cause this, because the new log is durable before the old one is removed.
            raise Corrupt(f"the log that follows the snapshot {snapshots[-1]} is missing")
        for path in logs:
            # Remove an empty log behind the current one, because an older kproc would append to it.
            if self.current is not None and path > self.current:
                self._fs.unlink(path)

    def _replay_logs(self, logs: Sequence[Path], current: Path) -> None:
        """Apply the logs behind the snapshot to the image."""
        image = self.image
        for path in logs:
            if version_in(path.name) > image.version:
                raise Corrupt(
                    f"{path}: the records from {image.version} on, which come before this file, are missing"
                )
            before = image.version
            last_batch = self._replay(path, is_last=path >= current)
            if path == current:
                self.last_batch = last_batch
            if image.version > before:
                self.needed.add(path.name)

    def _find_current(self, logs: Sequence[Path]) -> Path:
        """Return the log to append to: the last one with content, or the first one if all are empty.

        A compaction that fails or crashes after it has created the new log leaves that log empty. After a failure,
        later changes are in the log before it.
        """
        for path in reversed(logs):
            if (facts := self._fs.facts_at(path)) is not None and facts.st_size:
                return path
        return logs[0]

    def _read_snapshot(self, path: Path) -> bool:
        """Apply a snapshot. Return True if its end may be missing, because an older kproc wrote it without a count.

        All batches of a snapshot but the last one are full. So a last batch that is not full shows that no batch is
        missing.
        """
        data = self._fs.read_file(path) or b""
        records, has_count = read_snapshot(data, path)
        self.is_uncounted = not has_count
        # A snapshot has fewer records than versions, so its version comes from the file's name, as in KRaft (KIP-630).
        apply_to(self.image, records, version_in(path.name), path)
        return self.is_uncounted and len(records) % SNAPSHOT_BATCH_RECORDS == 0

    def _replay(self, path: Path, *, is_last: bool) -> tuple[int, bytes]:
        """Apply one log's batches to the image. Return the position and the bytes of the last batch."""
        image = self.image
        data = self._fs.read_file(path) or b""
        position = end = 0
        for position, end in batches_in(data):
            batch = data[position:end]
            header = parse_header(batch)
            after = header.base_offset + header.record_count
            if after <= self.snapshot_version:
                # The snapshot contains this batch. A compaction crashed before it removed the old log.
                continue
            # The offset of a batch is the version before it. A gap means that a file or a batch in the middle is
            # missing.
            if header.base_offset != image.version:
                raise Corrupt(
                    f"{path}: the batch at byte {position} with records {header.base_offset} to {after} "
                    f"follows version {image.version}: a file or batch is missing"
                )
            apply_to(image, records_of(batch, path), after, path)
        self._check_synced(path, end)
        if end < len(data):
            self._cut_tail(path, data, end, is_last=is_last)
        return position, data[position:end]

    def _check_synced(self, path: Path, end: int) -> None:
        """Raise Corrupt if a file's valid batches end below its last confirmed sync. No torn write can cause that."""
        descriptor = self._fs.open(path)
        try:
            synced = self._fs.read_synced_mark(descriptor)
        finally:
            self._fs.close(descriptor)
        # A crash takes only bytes that no sync had confirmed. Below the mark the disk or somebody else has changed the
        # file.
        if end < synced:
            raise Corrupt(f"{path}: damaged or truncated at byte {end}, but {synced} bytes had been synced")

    def _cut_tail(self, path: Path, data: bytes, end: int, *, is_last: bool) -> None:
        """Truncate a file at `end`, behind its last valid batch, because a crash has torn the write behind it.

        is_last: no newer log file exists. Raise Corrupt if it is False or if valid batches follow, because no torn
        write causes that.
        """
        # A torn write is the last thing in the last file. A good batch behind the damage was written later, after a
        # sync of all bytes before it, so no torn write has caused the damage.
        if not is_last or has_batch_after(data, end):
            raise Corrupt(f"{path}: damaged at byte {end}, although a later batch or file is intact")
        logger.warning("metadata_log=%s torn_at=%d cut_bytes=%d", path.name, end, len(data) - end)
        descriptor = self._fs.open(path)
        try:
            self._fs.truncate(descriptor, end)
            self._fs.sync(descriptor)
        finally:
            self._fs.close(descriptor)
