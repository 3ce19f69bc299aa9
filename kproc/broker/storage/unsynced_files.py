"""UnsyncedFiles: the files and names of a log that no sync has confirmed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

from kproc.broker.storage.checkpoints import PARTITION_METADATA_FILE
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.segment import LogSegment


class UnsyncedFiles:
    """Files and directories that the next sync point covers besides the active segment. Owned by one LogState."""

    __slots__ = ("directories", "files", "segments")

    def __init__(self) -> None:
        self.segments: list[LogSegment] = []  # Sealed segments with unsynced bytes or indexes.
        # Directories with unsynced names. The partition's directory comes first.
        self.directories: list[Path] = []
        self.files: list[Path] = []  # Transaction indexes and partition.metadata.

    def add_directory(self, directory: Path) -> None:
        """Record that a file of the partition's directory was created, renamed or removed."""
        # Keep an existing list: after the opening of a log it also contains the parent of the partition's directory.
        if not self.directories:
            self.directories = [directory]

    def add_file(self, path: Path) -> None:
        """Record that a small file has changed."""
        if path not in self.files:
            self.files.append(path)

    def remove_segments(self, segments: Collection[LogSegment]) -> None:
        """Remove segments from the list, because they were synced or deleted."""
        self.segments = [segment for segment in self.segments if segment not in segments]

    def open_names(self, fs: Fs) -> tuple[int | None, tuple[int, ...]]:
        """Open the directories and small files, and remove them from this list.

        Returns (the descriptor of the partition's directory or None, all descriptors). If one of them cannot be opened,
        close the others, keep the list and raise StorageFailure.
        """
        if not self.directories and not self.files:
            return None, ()
        descriptors: list[int] = []
        try:
            # Use extend() with generators: if one raises, the descriptors that were opened before are in the list
            # already.
            descriptors.extend(fs.open_directory(path) for path in self.directories)
            # A transaction index is not rebuilt from batches below the recovery point, so it must be synced.
            # partition.metadata must be synced, because without the file a start ignores the offsets of this log in the
            # data directory's checkpoints.
            descriptors.extend(fs.open(path) for path in self.files if fs.exists(path))
        except StorageFailure:
            for descriptor in descriptors:
                fs.close(descriptor)
            raise
        directory_fd = descriptors[0] if self.directories else None
        self.directories, self.files = [], []
        return directory_fd, tuple(descriptors)

    def add_sealed(self, held: Sequence[LogSegment], recovery_point: int) -> None:
        """Add the sealed segments that end at or behind the recovery point.

        A segment that ends exactly at the recovery point counts as not synced: a sync may have covered its records
        while it was active, but not its indexes.
        """
        self.segments = [
            sealed
            for sealed, following in itertools.pairwise(held)
            if following.base_offset >= recovery_point
        ]

    def add_inherited(self, directory: Path, active: LogSegment, recovery_point: int) -> None:
        """Add the directories and small files that the last owner may not have synced.

        If the recovery point is inside the active segment, the last owner's sync covered the segment's names, too.
        """
        if recovery_point <= active.base_offset:
            self.directories = [directory, directory.parent]
            self.files = [directory / PARTITION_METADATA_FILE]
        segments = (*self.segments, active)
        if indexes := [each.txn_index_path for each in segments if each.txn_index.exists]:
            self.files += indexes
            self.add_directory(directory)  # The files' names may be unsynced.
