"""Recovery: loads a partition's directory after a clean stop, after the owner's death, or after a power loss.

load() runs in the Handler that opens a log. It decides which bytes to believe, which to scan and which to truncate.
The end of the last owner decides:

- clean     The clean-shutdown marker says that all logs were closed and synced. No checksum is verified. The headers
            behind the last index entry are walked to find the log's end.
- trusted   The owner died, but the host did not. The page cache is intact, and the owner's published row says up to
            which position batches are complete. Batches behind it were never acknowledged. They are verified and kept
            up to the first incomplete one.
- unclean   Neither is known: the host lost power, the whole broker died with its published rows, or a sync had failed.
            All batches from the recovery point on are verified: lengths, order of offsets, CRC-32C.

A bad batch, or a segment that ends before the next one begins, is one of two things:

- Damage, if it is below an offset or position that a sync had confirmed or a dead owner had published. Recovery raises
  Corrupt and leaves the files as they are. The confirmed end is known from the recovery point, and from marks in
  attributes: of each .log file (fs.write_synced_mark), which may lag by a page and one sync, and of the directory
  (fs.write_newest_mark), which may lag by a segment.
- A torn tail, if it is above. No such record was acknowledged to acks=all, and a power loss keeps unsynced pages in
  any order. Recovery truncates the log there, including good batches behind the bad one.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kproc.broker.storage.batch_scan import (
    BadBatch,
    describe_old_format,
    find_good_batch,
    find_old_format,
    walk_checked,
    walk_headers,
)
from kproc.broker.storage.checkpoints import read_leader_epochs
from kproc.broker.storage.compaction_files import finish_swaps
from kproc.broker.storage.directory_names import (
    check_newest,
    finish_interrupted,
    log_bases,
    read_newest_mark,
    sync_names,
)
from kproc.broker.storage.failed_sync import NOTE_FILE
from kproc.broker.storage.format import (
    LOG_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.index_checks import has_right_times, rewind_indexes
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.log_start import StartRecords, check_start
from kproc.broker.storage.producer_replay import ProducerReplay
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_rebuild import SegmentRebuild
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import (
    BASE_OFFSET,
    LEADER_EPOCH,
    last_offset_of,
)
from kproc.wire.primitives import INT64_MAX

logger = logging.getLogger(__name__)


class TrustedEnd(NamedTuple):
    """The end of a log by its dead owner's published row. All batches of the segment before `position` are complete."""

    end_offset: int
    segment_base: int
    position: int
    start_offset: int
    # False if the owner knew no producer. The replay of producers can then skip all batches before `end_offset`.
    has_producers: bool = True


@dataclass(frozen=True, slots=True)
class LastStop:
    """Information about a log from outside its directory: checkpoints, and the row that its last owner published."""

    recovery_point: int = 0  # A sync has confirmed every record below it.
    start_offset: int = 0  # DeleteRecords has moved the log's start there.
    recorded_start: int | None = None  # The largest start in the data directory's checkpoints (log_start.py).
    clean: bool = False  # The broker stopped in order, so that all logs were closed and synced.
    trusted: TrustedEnd | None = None  # The published end, if only the owner died and the host did not.

    @property
    def effective_start(self) -> int:
        """The log's start by its checkpoint and its dead owner's row."""
        return (
            self.start_offset if self.trusted is None else max(self.start_offset, self.trusted.start_offset)
        )

    @property
    def explained_start(self) -> int | None:
        """The largest start at which the log may begin, by all records outside its directory. None: there is none."""
        if self.effective_start or self.trusted is not None:
            return max(self.effective_start, self.recorded_start or 0)
        return self.recorded_start

    @property
    def confirmed_end(self) -> int:
        """The offset that the log certainly reached: a sync confirmed it, or an owner published it and died."""
        return (
            self.recovery_point if self.trusted is None else max(self.recovery_point, self.trusted.end_offset)
        )


@dataclass(slots=True)
class Loaded:
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
    # others under .deleted names, and every check below reads final names.
    names = set(finish_swaps(fs, directory))
    # Check both ends of the log before finish_interrupted() unlinks anything. A refused log keeps all of its files, and
    # .deleted files are the evidence that a deletion explains its start.
    found = log_bases(names)
    whole_below: int | None = None
    # Without the row of a dead owner, the directory's mark must show that no segment is missing. With a row skip this:
    # _check_published() checks the last segment, and the log opens with fewer calls.
    if last.trusted is None:
        whole_below = read_newest_mark(fs, directory)
        check_newest(directory, found, whole_below, last.effective_start)
    if found:
        # If only the owner died (`trusted`), the kernel still has every name. A power loss, or the death of the whole
        # broker with its published rows, may have lost names that no sync had confirmed.
        is_after_crash = not last.clean and last.trusted is None
        records = StartRecords(last.explained_start, last.recovery_point, last.clean, is_after_crash)
        check_start(fs, directory, names, found[0], records, is_deleting=config.is_deleting)
    # Finish the deletions and writes that a crash of the last owner interrupted, before any segment is opened.
    bases, snapshots = finish_interrupted(fs, directory, names)
    if not bases:
        return None
    is_suspect = NOTE_FILE in names
    # A sync failed before the last owner ended, and the kernel may have dropped dirty pages. Neither a published row
    # nor a clean stop then proves that bytes are on the disk.
    if is_suspect:
        last = replace(last, clean=False, trusted=None)
    segments: list[LogSegment] = []
    try:
        for base in bases:
            if segments:
                # Close each segment before the next one, because a log may have more segments than a process may have
                # descriptors.
                segments[-1].close()
            segments.append(_open_segment(fs, directory, base, names, is_checked=last.trusted is None))
        loaded = _Loader(fs, directory, config, segments, whole_below or 0).load(snapshots, last, now_ms)
    # Close the files after any failure, because the Handler goes on with its other logs and must not leak descriptors.
    except BaseException as problem:
        for segment in segments:
            segment.close()
        if isinstance(problem, BadBatch):
            # _scan() handles torn tails. A bad header elsewhere is in the synced or published part, so it is damage.
            raise Corrupt(f"{directory}: {problem}") from problem
        raise
    loaded.is_suspect = is_suspect
    return loaded


def _open_segment(fs: Fs, directory: Path, base: int, names: Set[str], *, is_checked: bool) -> LogSegment:
    """Open a segment. `is_checked` is False if only the owner died, because it has checked the segment itself."""
    segment = LogSegment.open(fs, directory, base)
    try:
        if is_checked:
            _check_size(segment)
            # The message format of a log only goes up, so a segment with old messages begins with one.
            _refuse_old_format(fs, segment, 0)
    except BaseException:
        segment.close()
        raise
    # Most logs have no aborted transaction. Record that now, so that no later Fetch pays a system call to look for the
    # file.
    if segment_file_name(base, TXN_INDEX_SUFFIX) not in names:
        segment.txn_index.mark_absent()
    return segment


def _refuse_old_format(fs: Fs, segment: LogSegment, position: int) -> None:
    """Raise Corrupt if a message of format 0 or 1 (Kafka before 0.11) is at a position of a segment.

    Without this check, the first start after a crash would take such a log for a torn tail and truncate it.
    """
    magic = find_old_format(fs, segment.descriptor(), position, segment.size)
    if magic is not None:
        raise Corrupt(describe_old_format(segment.path(LOG_SUFFIX), magic))


def _check_size(segment: LogSegment) -> None:
    """Raise Corrupt if a segment's file is shorter than its last sync confirmed."""
    if segment.size < (synced := segment.read_synced_mark()):
        raise Corrupt(f"{segment.path(LOG_SUFFIX)} has {segment.size} bytes, but {synced} had been synced")


class _Loader:
    """The steps of load(), and the state that they share."""

    def __init__(
        self, fs: Fs, directory: Path, config: LogConfig, segments: list[LogSegment], whole_below: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._segments = segments
        self._whole_below = whole_below  # Segments below this base offset were synced as a whole.
        self.epochs = LeaderEpochs()
        self.epochs_known = False
        self.truncated_bytes = 0
        self.rebuilt: list[LogSegment] = []
        # The first transactional offset that was scanned. ProducerReplay rebuilds transaction indexes from there on.
        self.first_transactional: int | None = None
        self.without_aborts: list[LogSegment] = []  # Segments whose whole transaction index must be rebuilt.
        self._read_epochs()

    def _read_epochs(self) -> None:
        try:
            entries = read_leader_epochs(self._fs, self._directory)
        except Corrupt as problem:
            # A power loss after a replacement of the file can leave it empty. load_epochs() reads the epochs from the
            # batches, so nothing is lost.
            logger.warning("leader_epochs=rebuild directory=%s reason=%s", self._directory, problem)
            entries = None
        if entries is not None:
            self.epochs = LeaderEpochs(entries)
            self.epochs_known = True

    def load(self, snapshots: list[int], last: LastStop, now_ms: int) -> Loaded:
        """Find the log's end, then load the epochs and the producers up to there."""
        segments, trusted = self._segments, last.trusted
        end_offset = self.find_end(recovery_point=last.recovery_point, clean=last.clean, trusted=trusted)
        self.load_epochs(end_offset)
        # A dead owner without producers had published that. The replay then skips all batches before its end, which
        # makes the takeover of a large log fast.
        known_none = trusted.end_offset if trusted is not None and not trusted.has_producers else 0
        replay = ProducerReplay(self._fs, self._directory, self._config, segments, self.first_transactional)
        producers = replay.load(snapshots, end_offset, now_ms, known_none=known_none)
        # ProducerReplay has filled these transaction indexes again. Write the new checksums only now: if the process
        # dies before this, the old ones do not match, and the next opening rebuilds the indexes again.
        for segment in self.without_aborts:
            segment.write_aborted_mark()
            if segment is not segments[-1]:
                segment.close()
        return Loaded(
            segments, self.epochs, producers, snapshots, end_offset, self.rebuilt, self.truncated_bytes
        )

    def find_end(self, *, recovery_point: int, clean: bool, trusted: TrustedEnd | None) -> int:
        """Verify the segments as the module describes, truncate a torn tail, and complete the indexes.

        Returns the log's end offset. Raises Corrupt for damage.
        """
        # A clean stop has synced everything. Otherwise only batches below the recovery point are believed, unless a
        # dead owner has published more.
        believed_end = INT64_MAX if clean else recovery_point
        if trusted is not None:
            self._check_published(trusted)
            believed_end = trusted.end_offset
        end_offset = self._segments[0].base_offset
        ends: list[int] = []
        for number, segment in enumerate(self._segments):
            # No crash leaves overlapping segments, because every removal of a segment is synced before new records take
            # its offsets. So a file was copied into the directory.
            if segment.base_offset < end_offset:
                raise Corrupt(f"{segment.path(LOG_SUFFIX)} begins below {end_offset}, where the last ends")
            is_last = number == len(self._segments) - 1
            following = INT64_MAX if is_last else self._segments[number + 1].base_offset
            # Believe sealed segments below the believed end. One that ends exactly at the recovery point is scanned:
            # it may have been synced while it was active, and then without its indexes.
            if not is_last and (
                following < believed_end or (following == believed_end and trusted is not None)
            ):
                self._believe_sealed(segment, following, is_checked=trusted is None)
                end_offset = following
                ends.append(end_offset)
                continue
            # After a power loss any page of an unsynced index may be missing, so indexes are rebuilt from the first
            # batch on. After a clean stop, or if only the owner died, all pages exist, and the indexes are continued.
            can_go_on = clean or trusted is not None
            # Only a clean close records the checksum of the active segment's transaction index, so only then can it be
            # compared.
            if clean:
                self._check_aborts(segment)
            walk_from = rewind_indexes(self._fs, segment, believed_end) if can_go_on else 0
            if not walk_from:
                segment.reset_indexes()
            end_offset = self._scan(number, walk_from, believed_end)
            ends.append(end_offset)
            segment.close_indexes()
        return self._drop_empty_end(ends, believed_end)

    def _drop_empty_end(self, ends: list[int], believed_end: int) -> int:
        """Remove empty segments behind a gap, and return the log's end.

        A power loss after a roll causes this: the new, empty segment's name is on the disk, but the last batches before
        it are not. Compaction may leave a gap, too, but always with records behind it.
        """
        segments = self._segments
        while not (lost := segments[-1]).size and believed_end < lost.base_offset:
            if len(segments) == 1 or ends[len(segments) - 2] == lost.base_offset:
                break
            # The batches before it were synced as well as its name, so no power loss has taken any. Kafka's cleaner has
            # left the gap.
            if lost.base_offset <= self._whole_below:
                break
            logger.warning(
                "log=truncated end_offset=%d segment=%s", ends[len(segments) - 2], lost.path(LOG_SUFFIX)
            )
            self._remove_from(len(segments) - 1)
        return ends[len(segments) - 1]

    def _check_published(self, trusted: TrustedEnd) -> None:
        """Raise Corrupt unless the segment that the dead owner published exists and is as long as published.

        Retention may have deleted it since.
        """
        for segment in self._segments:
            if segment.base_offset == trusted.segment_base:
                # The owner published its row after its write had returned, so no crash of a role makes the file
                # shorter.
                if trusted.position > segment.size:
                    size = f"{segment.path(LOG_SUFFIX)} has {segment.size} bytes"
                    raise Corrupt(f"{size}, {trusted.position} had been published")
                return
        if self._segments[0].base_offset == trusted.end_offset:
            # Retention deleted the published segment, and the owner died before it published the new one.
            return
        raise Corrupt(f"{self._directory} has no segment {trusted.segment_base}, which had been published")

    def _check_gap(self, number: int, end_offset: int) -> None:
        """Raise BadBatch if a segment ends before the next one begins, unless compaction may have left the gap.

        A power loss can keep the next segment and lose the last pages of this one.
        """
        if number == len(self._segments) - 1:
            return
        segment, following = self._segments[number], self._segments[number + 1].base_offset
        if end_offset >= following or not self._ends_are_joined(segment):
            return
        raise BadBatch(segment.size, f"the next segment begins at offset {following}, not at {end_offset}")

    def _check_sealed_end(self, segment: LogSegment, following: int) -> None:
        """Raise Corrupt if a believed segment does not end where the next one begins.

        No crash causes this below the believed end: a file was truncated or removed outside the broker. Reads only the
        headers behind the last index entry, in one small read per segment.
        """
        if not self._ends_are_joined(segment):
            return
        last = segment.index.last()
        end_offset = segment.base_offset
        try:
            for _, header in walk_headers(
                self._fs, segment.descriptor(), last[1] if last is not None else 0, segment.size
            ):
                end_offset = last_offset_of(header) + 1
        except BadBatch as problem:
            raise Corrupt(f"{segment.path(LOG_SUFFIX)}: {problem}") from problem
        if end_offset != following:
            raise Corrupt(
                f"{segment.path(LOG_SUFFIX)} ends at offset {end_offset}, but the next segment begins at {following}: "
                "a file is missing or truncated"
            )

    def _ends_are_joined(self, segment: LogSegment) -> bool:
        """Return True unless compaction may have removed records from a segment's end.

        A file that Kafka's cleaner has written has no mark of synced bytes. A compacted file is never empty: kproc's
        cleaner keeps the last batch without its records, and `import-log` adds one where Kafka's cleaner kept none.
        """
        is_deleting_only = "compact" not in self._config.cleanup_policy
        return is_deleting_only or not segment.size or bool(segment.read_synced_mark())

    def _believe_sealed(self, segment: LogSegment, following: int, *, is_checked: bool) -> None:
        """Believe a segment below the believed end. Complete its indexes, and check that the next one follows it."""
        self._complete_sealed(segment, is_checked=is_checked)
        # A dead owner has checked the ends when it opened the log, so its successor need not read them again.
        if is_checked:
            self._check_sealed_end(segment, following)
        segment.close()

    def _complete_sealed(self, segment: LogSegment, *, is_checked: bool) -> None:
        """Complete the indexes of a segment below the believed end, without verifying its batches.

        With `is_checked` its transaction and time index are checked first, because the host may have lost power.
        """
        if is_checked:
            self._check_aborts(segment)
        if is_checked and not segment.needs_index and not has_right_times(self._fs, segment):
            segment.reset_indexes()
            segment.needs_index = True
        if segment.needs_index:
            logger.info("index=rebuild segment=%s", segment.path(LOG_SUFFIX))
            rebuild = SegmentRebuild(segment, self._config.index_interval_bytes)
            try:
                rebuild.run(walk_headers(self._fs, segment.descriptor(), 0, segment.size))
            except BadBatch as problem:
                raise Corrupt(f"{segment.path(LOG_SUFFIX)}: {problem}") from problem
            segment.seal()
            segment.needs_index = False
            self.rebuilt.append(segment)

    def _check_aborts(self, segment: LogSegment) -> None:
        """Empty a transaction index that does not match the checksum in its segment's mark.

        A file was damaged or removed outside the broker. ProducerReplay fills the index from the log. Without its rows,
        read_committed consumers would see aborted records.
        """
        if segment.has_right_aborts():
            return
        logger.warning("transaction_index=rebuild segment=%s", segment.path(LOG_SUFFIX))
        segment.txn_index.truncate_to(segment.base_offset)
        self.without_aborts.append(segment)
        if self.first_transactional is None:
            self.first_transactional = segment.base_offset

    def _scan(self, number: int, walk_from: int, believed_end: int) -> int:
        """Walk a segment's batches from `walk_from` on, verify those behind `believed_end`, and truncate a torn tail.

        Returns the offset where the segment ends.
        """
        segment = self._segments[number]
        if believed_end != INT64_MAX:
            # ProducerReplay adds the rows of the markers that the scan finds. An older segment keeps its rows, because
            # compaction may have removed the records that they name.
            finds_all = not walk_from and segment is self._segments[-1]
            segment.txn_index.truncate_to(segment.base_offset if finds_all else believed_end)
        rebuild = SegmentRebuild(segment, self._config.index_interval_bytes)
        rebuild.end_position = walk_from
        try:
            rebuild.run(
                walk_checked(
                    self._fs, segment.descriptor(), walk_from, segment.size, believed_end=believed_end
                )
            )
            self._check_gap(number, rebuild.next_offset)
        except BadBatch as problem:
            self._cut_tail(number, problem, rebuild, believed_end)
        if self.first_transactional is None:
            self.first_transactional = rebuild.first_transactional
        for epoch, first_offset in rebuild.epoch_starts:
            # leader-epoch-checkpoint is not synced when an epoch begins. After a power loss it may lack the last ones.
            self._assign_newer(epoch, first_offset)
        if number < len(self._segments) - 1:
            segment.is_joined = rebuild.next_offset == self._segments[number + 1].base_offset
            segment.seal()
            segment.close()
        segment.needs_index = False
        return rebuild.next_offset

    def _cut_tail(self, number: int, problem: BadBatch, rebuild: SegmentRebuild, believed_end: int) -> None:
        """Truncate the log at a bad batch if it is a torn tail. Raise Corrupt and change nothing if it is damage.

        A torn tail comes from a power loss before a sync, or from an owner that was killed in the middle of a write.
        """
        segment = self._segments[number]
        # Messages of Kafka before 0.11 look like a bad batch. Truncating them would destroy a log that `kproc convert-
        # log` can still save.
        _refuse_old_format(self._fs, segment, problem.position)
        where = f"{segment.path(LOG_SUFFIX)}: {problem}"
        # A sync had confirmed these bytes, or an owner whose host is alive had published them. No crash tears such
        # bytes.
        if rebuild.next_offset < believed_end:
            raise Corrupt(f"{where}; it had been whole: synced, or published by its owner") from problem
        # The recovery point comes from a checkpoint, which is a minute old by default. The mark in the file's attribute
        # is newer, so it shows damage that the checkpoint cannot.
        if problem.position < (synced := segment.read_synced_mark()):
            raise Corrupt(f"{where}; {synced} bytes had been synced") from problem
        # The round that set the directory's mark had synced this whole segment, and the name of a later one.
        if segment.base_offset < self._whole_below:
            raise Corrupt(f"{where}; the whole segment had been synced") from problem
        # The log will end here, so the segments behind go, too. If one of them was synced, this one had been synced
        # before it, because every sync point covers the segments before its last one.
        behind = self._segments[number + 1 :]
        for later in behind:
            if later.read_synced_mark():
                raise Corrupt(f"{where}; a later segment was synced") from problem
            later.close()
        cut = segment.size - problem.position + sum(later.size for later in behind)
        logger.warning(
            "log=truncated bytes=%d end_offset=%d behind=%s %s",
            cut, rebuild.next_offset, self._what_follows(number, problem, rebuild), where,
        )  # fmt: skip
        segment.truncate(problem.position)
        self.truncated_bytes += cut
        self._remove_from(number + 1)

    def _remove_from(self, number: int) -> None:
        """Remove the segments from `number` on. New records will take their offsets.

        Rename the files, sync the directory, then unlink them. If this process dies before the sync, the .deleted
        files show its successor that the directory must be synced (finish_interrupted).
        """
        doomed: list[Path] = []
        for segment in self._segments[number:]:
            segment.close()
            doomed += segment.mark_deleted()
        if doomed:
            sync_names(self._fs, self._directory)
        for path in doomed:
            self._fs.unlink(path)
        del self._segments[number:]

    def _what_follows(self, number: int, problem: BadBatch, rebuild: SegmentRebuild) -> str:
        """Return words for the log message: whether good batches are truncated together with the torn one."""
        segment = self._segments[number]
        if any(later.size for later in self._segments[number + 1 :]):
            return "segments"
        epochs = {epoch for epoch, _ in self.epochs.entries()}
        epochs |= self._epochs_before(segment, rebuild.end_position)
        good = find_good_batch(
            self._fs, segment.descriptor(), problem.position + 1, segment.size,
            next_offset=rebuild.next_offset, epochs=tuple(sorted(epochs)),
        )  # fmt: skip
        return "nothing" if good is None else f"batch_at_{good}"

    def _epochs_before(self, segment: LogSegment, end_position: int) -> set[int]:
        """Return the epochs of the batches before a position, because leader-epoch-checkpoint may be missing."""
        headers = walk_headers(self._fs, segment.descriptor(), 0, end_position)
        return {header[LEADER_EPOCH] for _, header in headers}

    def load_epochs(self, end_offset: int) -> None:
        """Read the epochs from the batches if the checkpoint is missing. Remove epochs that begin behind the end."""
        # leader-epoch-checkpoint is missing or damaged after a power loss, or write_start() removed it on a full disk.
        if not self.epochs_known:
            for segment, following in zip(self._segments, [*self._segments[1:], None], strict=True):
                first = self._first_epoch(segment)
                if following is not None and first == self._first_epoch(following):
                    # Epochs never decrease, so all batches of this segment have the same one.
                    self._assign_newer(first, segment.base_offset)
                    continue
                for _, header in walk_headers(self._fs, segment.descriptor(), 0, segment.size):
                    self._assign_newer(header[LEADER_EPOCH], header[BASE_OFFSET])
        # An epoch is recorded before its first batch is written. If the owner died in between, or the tail was torn,
        # the entry points behind the log's end.
        self.epochs.truncate_from(end_offset)

    def _first_epoch(self, segment: LogSegment) -> int | None:
        for _, header in walk_headers(self._fs, segment.descriptor(), 0, segment.size, chunk_bytes=64):
            return header[LEADER_EPOCH]
        return None

    def _assign_newer(self, epoch: int | None, offset: int) -> None:
        if epoch is not None and epoch > self.epochs.latest:
            self.epochs.assign(epoch, offset)
