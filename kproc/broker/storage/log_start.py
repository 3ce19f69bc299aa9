"""Stores where a log begins, so that opening the log detects the loss of its first segments.

The first offset in `leader-epoch-checkpoint` is the log's start. A deletion (retention, DeleteRecords) has three steps:

1. The new start is written to `leader-epoch-checkpoint`, without a sync.
2. The segments are renamed to `.deleted`.
3. After file.delete.delay.ms the file is written again and synced, and then the renamed files are unlinked.

Therefore a log never begins above its recorded start after a crash of the broker. After a power loss the recorded start
can be older than the renames, but then the renamed files exist. If neither explains where the log begins, files were
lost, and the log is not opened. A start in `log-start-offset-checkpoint.by-id` counts, too: it is exact after a clean
stop.

`user.kproc.start`, an attribute of the partition's directory, repeats the start of the last DeleteRecords that was
answered. It counts if the log has no entry in `log-start-offset-checkpoint.by-id`, because both files of log starts
were damaged or removed. It also counts if the log's owner died while it wrote its row of the partition table, because
the next owner may have read the file before that DeleteRecords. It is the offset and a checksum of the offset and the
topic id, so that neither a damaged attribute nor one of another topic hides records.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.storage import checkpoints
from kproc.broker.storage.format import DELETED_SUFFIX, LOG_SUFFIX, parse_segment_file_name
from kproc.broker.storage.fs import Fs, Shortage, sync_directory
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.segment_files import holds_synced_records
from kproc.common.errors import Corrupt

logger = logging.getLogger(__name__)

_OFFSET_DIGITS_MAX: Final = 19  # Of a 64-bit integer.

_WAY_OUT: Final = (
    "files are missing; restore them and restart the broker, or see MOVING.md, 'A log that lost its first "
    "segments'"
)


def write_start(fs: Fs, directory: Path, epochs: LeaderEpochs, *, durable: bool = False) -> None:
    """Write leader-epoch-checkpoint of a log whose start has moved. `durable` makes the file survive a power loss.

    If the disk has no space for the file, remove the old one: the next opening rebuilds the epochs from the batches. A
    file with a lower start would make the log look as if it had lost segments.
    """
    try:
        checkpoints.write_leader_epochs(fs, directory, epochs.entries(), durable=durable)
    except Shortage as failure:
        logger.warning(
            "leader_epochs=removed directory=%s: the next opening of the log rebuilds them; reason=%s",
            directory,
            failure,
        )
        fs.unlink(directory / checkpoints.LEADER_EPOCH_FILE)
        if durable:
            sync_directory(fs, directory)


def write_start_mark(fs: Fs, directory: Path, topic_id: bytes, start: int) -> None:
    """Repeat a log start in the directory's attribute. `start` must be in the synced checkpoint already.

    The journal commits the attribute some time later, so that it costs no sync. Until then the old mark stays, which is
    lower.
    """
    descriptor = fs.open_directory(directory)
    try:
        fs.write_start_mark(descriptor, _encode_start(topic_id, start))
    finally:
        fs.close(descriptor)


def read_start_mark(fs: Fs, directory: Path, topic_id: bytes) -> int:
    """Return the log start of a topic id in the directory's attribute.

    Returns 0 if the directory or a valid mark does not exist. Raises StorageFailure.
    """
    if not fs.exists(directory):
        return 0
    descriptor = fs.open_directory(directory)
    try:
        content = fs.read_start_mark(descriptor)
    finally:
        fs.close(descriptor)
    digits = b"" if content is None else content.partition(b" ")[0]
    if not digits.isdigit() or len(digits) > _OFFSET_DIGITS_MAX:
        return 0
    start = int(digits)
    return start if content == _encode_start(topic_id, start) else 0


def _encode_start(topic_id: bytes, start: int) -> bytes:
    return b"%d %08x" % (start, zlib.crc32(b"%s %d" % (topic_id, start)))


class StartRecords(NamedTuple):
    """Starts of a log that were recorded outside its directory, and information about the last stop.

    They determine if the first segments of the log may be missing.
    """

    # The largest start in the checkpoints of the data directory and in the dead owner's row. None if neither records a
    # start.
    recorded_start: int | None
    recovery_point: int
    is_clean: bool  # The last stop was clean, so that only lost files explain a missing segment.
    may_lack_names: bool  # The host may have lost power, and with it names and files that were not synced.


def check_start(
    fs: Fs, directory: Path, names: Iterable[str], first: int, records: StartRecords, *, is_deleting: bool
) -> None:
    """Raise Corrupt if a log's first segment begins above the log's recorded start. Complete an interrupted deletion.

    `names` are the files of the directory, and `first` is the base offset of the first segment. `is_deleting` is True
    if cleanup.policy has delete: compaction renames segments to .deleted, too, but never without a new first segment.
    """
    has_deleted = any(base < first for name in names if (base := _deleted_base(name)) is not None)
    is_explained = records.recorded_start is not None and first <= records.recorded_start
    # Usual case: the checkpoint or the dead owner's row explains where the log begins, and no deletion was interrupted.
    if is_explained and (records.is_clean or not has_deleted):
        return
    epochs = LeaderEpochs(_read_epochs(fs, directory))
    start = epochs.first_offset
    # leader-epoch-checkpoint has no entry: the log is empty, or a power loss removed the file before its first sync.
    if start is None:
        if records.recorded_start is not None and not is_explained:
            _judge_without_epochs(directory, first, records.recorded_start, is_clean=records.is_clean)
        return
    # Corrupt, unless a power loss kept the renames to .deleted (step 2) and lost the new start (step 1), because
    # neither is synced. Then the .deleted files explain the missing records.
    if not is_explained and start < first and not (has_deleted and is_deleting and records.may_lack_names):
        _judge_missing(fs, directory, first, max(start, records.recorded_start or 0), records)
        return
    if has_deleted and not records.is_clean:
        # The crash came between the renames (step 2) and the sync of the new start (step 3). The opening will unlink
        # the .deleted files, so sync the start before that.
        epochs.truncate_to(first)
        write_start(fs, directory, epochs, durable=True)


def _judge_missing(fs: Fs, directory: Path, first: int, start: int, records: StartRecords) -> None:
    """Check a log whose records from `start`, its recorded start, to `first` are missing.

    Raise Corrupt if one of them can have been synced. Otherwise log a warning.
    """
    found = f"{directory} begins at offset {first}, but its recorded start is {start}"
    if not records.may_lack_names or records.recovery_point > start or holds_synced_records(fs, directory):
        raise Corrupt(f"{found}: {_WAY_OUT}")
    # No loss: before the first sync of the log a power loss can remove the names of its first segments.
    logger.warning(
        "%s: opening the log without the records in between, which were not synced before a crash, or whose files are "
        "missing",
        found,
    )


def _judge_without_epochs(directory: Path, first: int, recorded_start: int, *, is_clean: bool) -> None:
    """Check a log that begins above the start in the data directory's checkpoint, and has no leader epochs.

    A power loss can remove leader-epoch-checkpoint, and the checkpoint can be a minute older than the last deletion.
    Then only log a warning. After a clean stop the checkpoint is exact, so raise Corrupt.
    """
    found = (
        f"{directory} begins at offset {first}, the checkpoint says {recorded_start}, and "
        f"{checkpoints.LEADER_EPOCH_FILE} is missing or damaged"
    )
    if is_clean:
        raise Corrupt(f"{found}: {_WAY_OUT}")
    logger.warning(
        "%s: opening the log without the records in between, which were deleted, or whose files are missing",
        found,
    )


def _deleted_base(name: str) -> int | None:
    return parse_segment_file_name(name, LOG_SUFFIX + DELETED_SUFFIX)


def _read_epochs(fs: Fs, directory: Path) -> list[tuple[int, int]]:
    try:
        return checkpoints.read_leader_epochs(fs, directory) or []
    except Corrupt:
        # Treat a damaged leader epoch checkpoint as empty, because recovery logs the damage and rebuilds the epochs
        # from the batches.
        return []
