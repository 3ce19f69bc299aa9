"""Recovery: loads a partition's directory after a clean stop, after the owner's death, or after a power loss.

load() runs in the Handler that opens a log. It finishes renames, compactions and deletions that a crash of the last
owner interrupted, and opens the segments. It then finds the log's end (log_end.py), which depends on how the last owner
stopped (last_stop.py). It loads the leader epochs and the producers up to that end. It raises Corrupt for damage and
truncates a torn tail.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set
from pathlib import Path

import msgspec

from kproc.broker.storage.batch_scan import BadBatch, walk_headers
from kproc.broker.storage.checkpoints import read_leader_epochs
from kproc.broker.storage.compaction_files import finish_swaps
from kproc.broker.storage.directory_names import (
    WAY_OUT_OF_LOSS,
    check_newest,
    finish_interrupted,
    log_bases,
    read_newest_mark,
)
from kproc.broker.storage.failed_sync import NOTE_FILE
from kproc.broker.storage.format import LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file_name
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.last_stop import LastStop
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.log_end import LogEndFinder, refuse_old_format
from kproc.broker.storage.log_start import StartRecords, check_start
from kproc.broker.storage.producer_replay import ProducerReplay
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.segment import LogSegment
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import BASE_OFFSET, LEADER_EPOCH

logger = logging.getLogger(__name__)


class Loaded(msgspec.Struct):
    """The segments, leader epochs and producers of a log that was opened, as loaded from its files."""

    segments: list[LogSegment]
    epochs: LeaderEpochs
    producers: ProducerTable
    snapshots: list[int]  # Offsets of the .snapshot files, ascending.
    end_offset: int
    # Segments below the believed end whose indexes were rebuilt. The new indexes are not synced yet.
    rebuilt: list[LogSegment]
    truncated_bytes: int = 0
    # True if a sync of the log had failed, so that the page cache may hold bytes that are not on the disk.
    is_suspect: bool = False


def load(fs: Fs, directory: Path, config: LogConfig, last: LastStop, *, now_ms: int) -> Loaded | None:
    """Load the segments, leader epochs and producers of a partition's directory.

    Returns None if the directory has no segment. Raises Corrupt for damage, StorageFailure for a failed system call.
    """
    # Finish a swap of compacted segments first. A crash in the middle of it leaves one segment under .swap names and
    # others under .deleted names, and all following checks expect final names.
    names = set(finish_swaps(fs, directory))
    # Check both ends of the log before finish_interrupted() unlinks anything. A refused log keeps all of its files, and
    # .deleted files are the evidence that a deletion explains its start.
    whole_below = _check_bounds(fs, directory, config, last, names)
    # Finish the deletions and writes that a crash of the last owner interrupted, before any segment is opened.
    bases, snapshots = finish_interrupted(fs, directory, names)
    if not bases:
        return None
    is_suspect = NOTE_FILE in names
    # A sync had failed, and the kernel may have dropped dirty pages. So neither a published row nor a clean stop proves
    # that bytes are on the disk.
    if is_suspect:
        last = msgspec.structs.replace(last, clean=False, trusted=None)
    segments: list[LogSegment] = []
    try:
        _open_segments(fs, directory, bases, names, segments, is_checked=last.trusted is None)
        loaded = _Loader(fs, directory, config, segments).load(snapshots, last, whole_below, now_ms)
    # Close the files after any failure, because the Handler continues with its other logs and must not leak
    # descriptors.
    except BaseException as problem:
        for segment in segments:
            segment.close()
        if isinstance(problem, BadBatch):
            # LogEndFinder handles torn tails. A bad header elsewhere is in the synced or published part of the log, so
            # it is damage.
            raise Corrupt(f"{directory}: {problem}") from problem
        raise
    loaded.is_suspect = is_suspect
    return loaded


def _check_bounds(fs: Fs, directory: Path, config: LogConfig, last: LastStop, names: Set[str]) -> int:
    """Raise Corrupt if segments are missing at the start or the end of the log, by the directory's mark and `last`.

    Returns the base offset below which all segments were synced as a whole; 0 if that is unknown.
    """
    found = log_bases(names)
    whole_below: int | None = None
    # Without the row of a dead owner, the directory's mark must show that no segment is missing. With a row skip this
    # check, because LogEndFinder checks the published segment, and the log opens with fewer system calls.
    if last.trusted is None:
        whole_below = read_newest_mark(fs, directory)
        check_newest(directory, found, whole_below, last.effective_start)
    if found:
        # If only the owner died (`trusted`), the kernel still has every name. A power loss, or the death of the whole
        # broker with its published rows, may have lost names that no sync had confirmed.
        is_after_crash = not last.clean and last.trusted is None
        records = StartRecords(last.explained_start, last.recovery_point, last.clean, is_after_crash)
        check_start(fs, directory, names, found[0], records, is_deleting=config.is_deleting)
    return whole_below or 0


def _open_segments(
    fs: Fs,
    directory: Path,
    bases: Iterable[int],
    names: Set[str],
    segments: list[LogSegment],
    *,
    is_checked: bool,
) -> None:
    """Open the segments with these base offsets and append them to `segments`. Only the last one stays open.

    If one cannot be opened, the caller must close those in `segments`.
    """
    for base in bases:
        if segments:
            # Close each segment before the next one, because a log may have more segments than a process may have
            # descriptors.
            segments[-1].close()
        segments.append(_open_segment(fs, directory, base, names, is_checked=is_checked))


def _open_segment(fs: Fs, directory: Path, base: int, names: Set[str], *, is_checked: bool) -> LogSegment:
    """Open a segment, and with `is_checked` check its size and format. If only the owner died, it had checked both."""
    segment = LogSegment.open(fs, directory, base)
    try:
        if is_checked:
            _check_size(segment)
            # If a segment has messages from before Kafka 0.11, the first one is such a message, because a log's format
            # never goes back.
            refuse_old_format(fs, segment, 0)
    except BaseException:
        segment.close()
        raise
    # Record that the segment has no transaction index, as most have none, so that no Fetch needs a system call to look
    # for the file.
    if segment_file_name(base, TXN_INDEX_SUFFIX) not in names:
        segment.txn_index.mark_absent()
    return segment


def _check_size(segment: LogSegment) -> None:
    """Raise Corrupt if a segment's file is shorter than its last sync confirmed."""
    if segment.size < (synced := segment.read_synced_mark()):
        found = f"{segment.path(LOG_SUFFIX)} has {segment.size} bytes, but {synced} had been synced"
        raise Corrupt(f"{found}: {WAY_OUT_OF_LOSS}")


class _Loader:
    """The steps of load() behind the opening of the segments: the log's end, the leader epochs, the producers."""

    def __init__(self, fs: Fs, directory: Path, config: LogConfig, segments: list[LogSegment]) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._segments = segments

    def load(self, snapshots: list[int], last: LastStop, whole_below: int, now_ms: int) -> Loaded:
        """Find the log's end, then load the epochs and the producers up to there."""
        fs, segments, trusted = self._fs, self._segments, last.trusted
        checkpointed = self._read_epochs()
        epochs = LeaderEpochs(checkpointed or ())
        finder = LogEndFinder(fs, self._directory, self._config, segments, epochs, whole_below=whole_below)
        end_offset = finder.find_end(last)
        if checkpointed is None:
            self._rebuild_epochs(epochs)
        # Remove epochs behind the log's end. An epoch is recorded before its first batch is written, and then the owner
        # may have died, or the tail was torn.
        epochs.truncate_from(end_offset)
        # If the dead owner knew no producer, its row says so. Then the replay skips all batches before the row's end,
        # which makes the takeover of a large log fast.
        known_none = trusted.end_offset if trusted is not None and not trusted.has_producers else 0
        replay = ProducerReplay(fs, self._directory, self._config, segments, finder.first_transactional)
        producers = replay.load(snapshots, end_offset, now_ms, known_none=known_none)
        # ProducerReplay has filled these transaction indexes again. Write the new checksums only now: if the process
        # dies before this, the old ones do not match, and the next opening rebuilds the indexes again.
        for segment in finder.without_aborts:
            segment.write_aborted_mark()
            if segment is not segments[-1]:
                segment.close()
        return Loaded(
            segments, epochs, producers, snapshots, end_offset, finder.rebuilt, finder.truncated_bytes
        )

    def _read_epochs(self) -> list[tuple[int, int]] | None:
        """Return the entries of leader-epoch-checkpoint. None if it is missing or damaged."""
        try:
            return read_leader_epochs(self._fs, self._directory)
        except Corrupt as problem:
            # A power loss after a replacement of the file can leave it empty. _rebuild_epochs() reads the epochs from
            # the batches, so nothing is lost.
            logger.warning("leader_epochs=rebuild directory=%s reason=%s", self._directory, problem)
            return None

    def _rebuild_epochs(self, epochs: LeaderEpochs) -> None:
        """Read the epochs from the batches.

        leader-epoch-checkpoint is missing or damaged after a power loss, or write_start() removed it on a full disk.
        """
        for segment, following in zip(self._segments, [*self._segments[1:], None], strict=True):
            first = self._first_epoch(segment)
            if following is not None and first == self._first_epoch(following):
                # Epochs never decrease, so all batches of this segment have the epoch of the first one.
                epochs.assign_newer(first, segment.base_offset)
                continue
            for _, header in walk_headers(self._fs, segment.descriptor(), 0, segment.size):
                epochs.assign_newer(header[LEADER_EPOCH], header[BASE_OFFSET])

    def _first_epoch(self, segment: LogSegment) -> int | None:
        for _, header in walk_headers(self._fs, segment.descriptor(), 0, segment.size, chunk_bytes=64):
            return header[LEADER_EPOCH]
        return None
