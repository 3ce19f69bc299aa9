"""Records a failed sync, and writes the log again at its next opening.

After a failed fdatasync the kernel marks the pages that it could not write as clean. Reads still return them, the next
fdatasync of the file succeeds, and a power loss removes them. The page cache outlives every role and the broker, so its
content above the recovery point may differ from the disk. The sync thread leaves a note in the partition's directory.
The next opening of the log finds the note, verifies all batches above the recovery point, writes them again and syncs
them. If that fails, the log is not opened and the note stays.

The note needs no sync, because a power loss also clears the page cache. The files then show what is on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kproc.broker.storage.format import LOG_SUFFIX
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_lookup import locate

logger = logging.getLogger(__name__)

NOTE_FILE: Final = "sync-failed"
_CHUNK_BYTES: Final = 1 << 20


def write_note(fs: Fs, directory: Path) -> None:
    """Record that a sync of this log failed, by an empty file in the partition's directory.

    Only log an error if the file cannot be created. Until the broker stops, the partition table has the same record.
    """
    path = directory / NOTE_FILE
    try:
        # An earlier failure has left the note already. One note is enough, because the next opening rewrites
        # everything behind the recovery point.
        if not fs.exists(path):
            fs.close(fs.open(path, create=True))
    except StorageFailure as failure:
        logger.error(
            "a sync of the log failed, and the file %s that records this cannot be created: %s", path, failure
        )


def remove_note(fs: Fs, directory: Path) -> None:
    """Remove the file that records a failed sync, because the log was written again and synced."""
    fs.unlink(directory / NOTE_FILE)


def write_again(fs: Fs, segments: Sequence[LogSegment], offset: int) -> int:
    """Write the batches of these segments from `offset` on over themselves, and return the number of bytes.

    This makes their pages dirty again, so that the next sync writes them to the disk. Recovery has rebuilt the offset
    and time indexes already; this function also writes the transaction indexes again.
    """
    written = 0
    for segment in segments:
        # Bytes below the recovery point were confirmed by a sync before the failed one, so they are on the
        # disk.
        found = locate(segment, offset) if offset > segment.base_offset else (0, 0)
        if found is not None:
            written += _over_itself(fs, segment.path(LOG_SUFFIX), found[0])
        if fs.exists(segment.txn_index_path):
            written += _over_itself(fs, segment.txn_index_path, 0)
    return written


def _over_itself(fs: Fs, path: Path, position: int) -> int:
    descriptor = fs.open(path)
    start = position
    try:
        modified_ns = fs.facts(descriptor).st_mtime_ns
        while content := fs.read(descriptor, _CHUNK_BYTES, position=position):
            fs.write(descriptor, [content], position=position)
            position += len(content)
        # Restore the modification time, because retention may use it.
        fs.set_modified(descriptor, modified_ns)
    finally:
        fs.close(descriptor)
    return position - start
