"""LogState: the state that the parts of a Log share: files, offsets, producers, and changes to several of them.

No part refers to another part, and LogState refers to none of them. See log.py.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kproc.broker.storage.fs import Fs, Shortage, StorageFailure
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.producer_snapshots import ProducerSnapshots
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.retention import SegmentInfo
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segments import SegmentList
from kproc.broker.storage.tail_cache import TailCache
from kproc.broker.storage.unsynced_files import UnsyncedFiles
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.errors import FatalError

if TYPE_CHECKING:
    from kproc.broker.storage.inspection import InspectionBudget
    from kproc.broker.storage.log_roll import AppendLimits

logger = logging.getLogger(__name__)


def _log_surprise(what: str, error: Exception) -> None:
    logger.error("%s failed", what, exc_info=error)


class LogTraffic:
    """Counts the bytes and records written to and read from one topic's logs since their Handler started.

    One per topic and Handler: all of the Handler's logs of that topic share it, so no sums have to be computed."""

    __slots__ = ("bytes_in", "bytes_out", "fetches", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0  # Bytes as stored in the log: compressed, with the batches' headers.
        self.records_in = 0
        self.bytes_out = 0
        self.fetches = 0  # How often a Fetch response had records of a partition of this topic.


class LogIdentity(NamedTuple):
    """The partition of a log, and the directory of its files."""

    directory: Path
    topic: str
    topic_id: bytes
    partition: int


class LogState:
    """The fields of a log, and the methods that change several of them together."""

    __slots__ = (
        "active", "can_reopen", "clock", "config", "directory", "end_offset", "epochs", "fs", "high_watermark",
        "inspection", "is_start_synced", "is_torn", "leader_epoch", "limits", "offline_reason", "on_surprise",
        "partition", "producers", "recovery_point", "segments", "snapshots", "start_offset", "tail", "topic",
        "topic_id", "traffic", "unconfirmed", "undecided", "unsynced",
    )  # fmt: skip

    def __init__(
        self,
        identity: LogIdentity,
        config: LogConfig,
        *,
        leader_epoch: int,
        clock: Clock,
        fs: Fs,
        segments: list[LogSegment],
        epochs: LeaderEpochs,
        producers: ProducerTable,
        end_offset: int,
        start_offset: int,
    ) -> None:
        # Called if the validation of a batch raises an unexpected exception. The Handler counts the calls.
        self.on_surprise: Callable[[str, Exception], None] = _log_surprise
        # Limits the work of appends in a duty cycle. Set by the Handler that opened the log. None: no limit.
        self.inspection: InspectionBudget | None = None
        # Counts this log only, until the Handler replaces it by the counters of the topic.
        self.traffic = LogTraffic()
        self.directory, self.topic, self.topic_id, self.partition = identity
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.end_offset = end_offset
        # Clients read records below the high watermark. It is the first offset of `unconfirmed`, or the log's end
        # without hidden records.
        self.high_watermark = end_offset
        # Hidden records: (first offset, end offset) of each append, oldest first. A sync confirms them.
        self.unconfirmed: deque[tuple[int, int]] = deque()
        # Hidden transaction markers: (offset behind the marker, last stable offset before it), oldest first.
        self.undecided: deque[tuple[int, int]] = deque()
        self.recovery_point = 0
        self.config = config  # The settings in force: reconfigure() changes them.
        # Cached limits of the next append. None after a change of the config, the active segment or its indexes.
        self.limits: AppendLimits | None = None
        self.clock = clock
        self.fs = fs
        self.segments = SegmentList(fs, segments)
        self.active = segments[-1]  # The segment that is appended to.
        self.tail = TailCache(end_offset)
        self.epochs = epochs
        self.producers = producers
        self.snapshots = ProducerSnapshots((), taken_at_bytes=self.active.size)
        self.unsynced = UnsyncedFiles()
        # The reason why appends are rejected until the log is opened again.
        self.offline_reason: str | None = None
        # True while the log is offline because a Shortage interrupted a change of its files. At the next request the
        # owner opens the log again, which completes the change.
        self.can_reopen = False
        # True if the recorded start of the log is durable. Before that, no segment below it may be unlinked.
        self.is_start_synced = False
        # True if a failed write may have left bytes behind the log's end. They must be truncated before the next write.
        self.is_torn = False

    # -- derived values -----------------------------------------------------------------------------------

    def deletion_due_ms(self) -> int:
        """Return the monotonic time in ms at which a file that is renamed to .deleted now may be unlinked.

        The wall clock can be set back. Files that wait for it would then fill the disk until it has caught up.
        """
        return self.clock.now_ns() // NS_PER_MS + self.config.file_delete_delay_ms

    @property
    def is_offline(self) -> bool:
        """True if appends are rejected until the log is opened again."""
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
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self.segments.size_bytes()

    @property
    def segment_count(self) -> int:
        """Number of segments, including the active one."""
        return len(self.segments)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction without a visible marker, at most the high watermark."""
        first_open, stable = self.producers.first_open_offset, self.high_watermark
        if self.undecided:
            first_open = self.undecided[0][1]
        # DeleteRecords may have moved the log's start above the first record of an open transaction. The last stable
        # offset must not be below the start.
        return stable if first_open is None else min(max(first_open, self.start_offset), stable)

    def segment_info(self) -> list[SegmentInfo]:
        """Return base, next offset, size in bytes and largest timestamp of each segment, oldest first."""
        return self.segments.info(self.end_offset)

    def oldest_segments(self, count: int) -> list[SegmentInfo]:
        """Return the SegmentInfo of the `count` oldest segments."""
        return self.segments.info(self.end_offset, count)

    def sizes(self) -> tuple[int, int]:
        """Return (`size_bytes`, `segment_count`) in one call, for callers that visit thousands of logs."""
        return self.segments.size_bytes(), len(self.segments)

    # -- failures ------------------------------------------------------------------------------------------

    def set_offline_after(self, failure: StorageFailure) -> None:
        """Take the log offline after any failure but a Shortage, because the disk's content is unknown then."""
        if not isinstance(failure, Shortage) and self.offline_reason is None:
            self.offline_reason = str(failure)
            logger.error("log=offline partition=%s-%d reason=%s", self.topic, self.partition, failure)

    def set_offline(self, reason: str) -> None:
        """Reject appends from now on, because the content of the disk is not known any more."""
        self.set_offline_after(StorageFailure(reason))

    @contextmanager
    def done_or_offline(self, what: str) -> Iterator[None]:
        """Provide a context for a change of the log's files. `what` names the change in messages.

        If the disk fails half way, the log goes offline until its next opening reads the files. After a Shortage the
        owner opens it again at the next request. Any other exception becomes a FatalError, which ends the Handler, and
        its successor reads the files.
        """
        try:
            yield
        except StorageFailure as failure:
            self.set_offline_after(StorageFailure(f"{what} was interrupted: {failure}"))
            self.can_reopen = isinstance(failure, Shortage)
            raise
        except Exception as error:
            raise FatalError(
                f"unexpected error in {what} of {self.topic}-{self.partition}, so its state in memory may not match "
                f"the files: {error!r}"
            ) from error

    # -- visibility ----------------------------------------------------------------------------------------

    def hide_from(self, offset: int) -> None:
        """Hide the records from `offset` on until a sync has confirmed them. Call it before any read."""
        self.hide(offset, self.end_offset)

    def hide(self, first: int, end: int) -> None:
        """Hide the last records of the log, from offset `first` to before `end`, until a sync has confirmed them."""
        self.unconfirmed.append((first, end))
        self.high_watermark = self.unconfirmed[0][0]

    def confirm(self, synced: int) -> None:
        """Move the high watermark after a sync: to the first record that is still hidden, or to the log's end.

        All records below the offset `synced` were synced.
        """
        unconfirmed = self.unconfirmed
        while unconfirmed and unconfirmed[0][1] <= synced:
            unconfirmed.popleft()
        # A sync can cover only a part of an append that rolled segments. The rest of that append stays hidden.
        if unconfirmed and unconfirmed[0][0] < synced:
            unconfirmed[0] = synced, unconfirmed[0][1]
        self.high_watermark = unconfirmed[0][0] if unconfirmed else self.end_offset
        while self.undecided and self.undecided[0][0] <= self.high_watermark:
            self.undecided.popleft()

    # -- changes -------------------------------------------------------------------------------------------

    def reconfigure(self, config: LogConfig) -> None:
        """Use changed settings of the topic, from the next append on."""
        self.config, self.limits = config, None

    def expire_producers(self, now_ms: int) -> int:
        """Remove producers that were idle for producer.id.expiration.ms, and return their number."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Seal the active segment and create the next one. If that fails, the old segment stays active."""
        old, self.limits = self.active, None
        old.seal()
        old.write_aborted_mark()
        old.release_reserved()
        new = LogSegment.create(self.fs, self.directory, base_offset, now_ms=now_ms)
        # Change the list only after the files were created. If that fails, the old segment stays active, and the next
        # append tries again.
        self.segments.add(new)
        old.is_joined = True
        self.active = new
        self.tail.reset(base_offset)
        # Let the next sync cover the sealed segment with its indexes, because recovery believes indexes below the
        # recovery point.
        self.unsynced.segments.append(old)
        self.unsynced.add_directory(self.directory)
        self.segments.warm(old)
        self.write_snapshot()

    def write_snapshot(self) -> None:
        """Write a snapshot of the producers at the log's end. Only log a failure, because a replay can replace it."""
        self.producers.end_offset = self.end_offset
        self.snapshots.write(self.fs, self.directory, self.producers, self.segments)
