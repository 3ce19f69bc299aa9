"""LogState: the fields of a log, and the changes that both appending and deleting make. See log.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zlib import crc32

from kproc.clock import Clock
from kproc.errors import FatalError
from kproc.storage import checkpoints
from kproc.storage.format import SNAPSHOT_SUFFIX, segment_file_name
from kproc.storage.fs import DiskFull, Fs, StorageFailure, replace_file
from kproc.storage.leader_epochs import LeaderEpochs
from kproc.storage.log_config import INT64_MAX, LogConfig
from kproc.storage.log_traffic import LogTraffic
from kproc.storage.producer_state import ProducerTable, encode_snapshot
from kproc.storage.retention import SegmentFacts
from kproc.storage.segment import LogSegment
from kproc.storage.segments import SegmentList
from kproc.storage.tail_cache import TailCache
from kproc.wire.file_range import FileRange

logger = logging.getLogger(__name__)

# No record has a smaller timestamp than -1, so a roll time below it means: roll before the next batch.
ROLL_NOW: Final = -2


def _log_surprise(what: str, error: Exception) -> None:
    logger.error("%s failed", what, exc_info=error)


class LogState:
    """The fields of a Log, and the methods that change several of them together."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        leader_epoch: int,
        clock: Clock,
        fs: Fs,
        segments: list[LogSegment],
        epochs: LeaderEpochs,
        producers: ProducerTable,
        end_offset: int,
        start_offset: int,
    ) -> None:
        # Called for a batch whose check failed unexpectedly; the Handler counts these.
        self.on_surprise: Callable[[str, Exception], None] = _log_surprise
        self.directory = directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.recovery_point = 0
        self.truncated_bytes = 0
        self.config = config  # The settings in force: reconfigure() changes them.
        self._clock = clock
        self._fs = fs
        self._segments = SegmentList(fs, segments)
        self.active = segments[-1]  # The segment that is appended to.
        self._epochs = epochs
        self.producers = producers
        self._snapshots: list[int] = []
        self._bytes_since_snapshot = 0
        self._batches_since_snapshot = 0
        self._tail = TailCache(end_offset)
        self._unsynced: list[LogSegment] = []  # Sealed segments with bytes that no sync has confirmed.
        self._directories_dirty: list[Path] = []  # Directories with new names that no sync has confirmed.
        self._files_dirty: list[Path] = []
        self._flushed_ms = clock.wall_ms()
        # Counts this log only, until the Handler that opened it sets its topic's counters.
        self.traffic = LogTraffic()
        self.offline_reason: str | None = None  # If set, appends are refused until the log is opened anew.

    # -- facts ---------------------------------------------------------------------------------------------

    @property
    def is_offline(self) -> bool:
        """Whether appends are refused until the log is opened anew."""
        return self.offline_reason is not None

    @property
    def active_base(self) -> int:
        """The base offset of the segment that is appended to."""
        return self.active.base_offset

    @property
    def active_bytes(self) -> int:
        """The size of the active segment: the byte position of the log's end."""
        return self.active.size

    @property
    def active_range(self) -> FileRange:
        """The whole active segment: its path and inode for the published row."""
        return self.active.range(0, self.active.size)

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self._segments.size_bytes()

    def sizes(self) -> tuple[int, int]:
        """`size_bytes` and `segment_count` in one call, for callers that ask for thousands of logs."""
        return self._segments.size_bytes(), len(self._segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, as far as the log has it, or the log's end."""
        first_open = self.producers.first_open_offset
        return self.end_offset if first_open is None else max(first_open, self.start_offset)

    def segment_facts(self) -> list[SegmentFacts]:
        """Base, next offset, size and largest timestamp of each segment."""
        return self._segments.facts(self.end_offset)

    def _note_failure(self, failure: StorageFailure) -> None:
        """After a failure other than a full disk, which passes, the disk's content is unknown: go offline."""
        if not isinstance(failure, DiskFull) and self.offline_reason is None:
            self.offline_reason = str(failure)
            logger.error("log=offline partition=%s-%d reason=%s", self.topic, self.partition, failure)

    @contextmanager
    def _done_or_offline(self, what: str) -> Iterator[None]:
        """Run a change of the log's files. If the disk fails half way, the log goes offline, and its next opening
        reads the files. After any other exception the role must end, so that a successor reads them."""
        try:
            yield
        except StorageFailure as failure:
            self._note_failure(StorageFailure(f"{what} was interrupted: {failure}"))
            raise
        except Exception as error:
            raise FatalError(f"{what} of {self.topic}-{self.partition} ended half way: {error!r}") from error

    def _write_epochs(self) -> None:
        """Write the epochs that remain after a deletion.

        A file with old epochs does no harm: entries below the log's start are ignored when it is read.
        """
        try:
            checkpoints.write_leader_epochs(self._fs, self.directory, self._epochs.entries(), durable=False)
        except DiskFull as failure:
            logger.warning("leader_epochs=not_written directory=%s reason=%s", self.directory, failure)

    def _begin_epoch(self) -> None:
        """Record that this leader epoch begins here, before its first batch is written."""
        epochs = LeaderEpochs(self._epochs.entries())
        epochs.assign(self.leader_epoch, self.end_offset)
        checkpoints.write_leader_epochs(self._fs, self.directory, epochs.entries(), durable=False)
        self._epochs = epochs  # Only now: if there was no room for the file, the next append tries again.

    # -- rolling -------------------------------------------------------------------------------------------

    def _roll_after(self, segment: LogSegment, now_ms: int) -> int:
        """The timestamp beyond which a batch needs a new segment, as in Kafka.

        segment.ms counts from the first batch's timestamp to the new batch's; by the clock only where
        records have no timestamps.
        """
        first = segment.first_timestamp
        if first is None and (first := segment.load_first_timestamp()) is None:
            return INT64_MAX
        config = self.config
        wait_ms = config.roll_ms - self._jitter_ms(segment) if config.segment_jitter_ms else config.roll_ms
        if segment.is_index_full(config.segment_index_bytes):
            return ROLL_NOW
        if first >= 0:
            return first + wait_ms
        return ROLL_NOW if now_ms - segment.created_ms > wait_ms else INT64_MAX

    def _jitter_ms(self, segment: LogSegment) -> int:
        """How much earlier this segment rolls: random, so that logs created together do not all roll at once.

        The random number is a hash of the segment's identity, so that it is the same after a restart.
        """
        most = max(1, min(self.config.segment_jitter_ms, self.config.roll_ms))
        return crc32(b"%b/%d/%d" % (self.topic_id, self.partition, segment.base_offset)) % most

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Seal the active segment and begin a new one; if that fails, the old one stays active."""
        old = self.active
        old.seal()
        old.give_back()
        new = LogSegment.create(self._fs, self.directory, base_offset, now_ms=now_ms)
        self._segments.add(new)
        self.active = new
        self._tail.reset(base_offset)
        self._unsynced.append(old)
        self._directories_dirty = self._directories_dirty or [self.directory]
        self._segments.warm(old)
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        """Write a snapshot of the producers at the log's end. If that fails, the log goes on without it."""
        offset = self.producers.end_offset
        self._bytes_since_snapshot = self._batches_since_snapshot = 0
        if offset in self._snapshots:
            return
        path = self.directory / segment_file_name(offset, SNAPSHOT_SUFFIX)
        try:
            replace_file(self._fs, path, encode_snapshot(self.producers.entries()), durable=False)
        except DiskFull as failure:
            logger.warning("snapshot=skipped path=%s reason=%s", path, failure)
            return
        # Snapshots at the base of a segment stay with it; of the others only the newest is needed.
        keep = set(self._segments.bases())
        for stale in self._snapshots:
            if stale not in keep:
                self._fs.unlink(self.directory / segment_file_name(stale, SNAPSHOT_SUFFIX))
        self._snapshots = [*(held for held in self._snapshots if held in keep), offset]
