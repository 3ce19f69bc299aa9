"""Compactor: the part of the cleaner that compacts logs, in slices of a few milliseconds.

Compaction is one generator, so that its steps can be read from top to bottom. It yields the number of bytes that it has
just read or written, or None when it waits for an owner's reply or for a time. The cleaner resumes it for a few
milliseconds per duty cycle, and handles its links in between.

No other role writes `.cleaned` files in partitions' directories, or cleaner-offset-checkpoint. A log is compacted in
passes (storage/compaction.py). A pass begins with a request to the log's owner for the log's state. When a group of
segments is rewritten, a second request lets the owner swap them. If the owner rejects a request, the pass ends without
damage, and the log is compacted later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kproc.broker.calls.call_links import AskHandler
from kproc.broker.calls.calls import Call, Lost, R
from kproc.broker.calls.cleaner_calls import (
    PREPARE_COMPACTION,
    SWAP_SEGMENTS,
    CompactionPrepared,
    LogInfo,
    LogRequest,
    Swapped,
    SwapRequest,
)
from kproc.broker.cleaner.compaction_survey import CompactionSurvey, Steps
from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.partition_table import PartitionTable
from kproc.broker.storage.compaction import CompactionPass, PassFacts, SegmentChanged
from kproc.broker.storage.compaction_files import SegmentIdentity, deleted_files, remove_cleaned
from kproc.broker.storage.compaction_policy import (
    CompactionLimits,
    DirtySection,
    SealedSegment,
    assess,
    group_segments,
)
from kproc.broker.storage.format import DELETED_SUFFIX, LOG_SUFFIX
from kproc.broker.storage.fs import Fs, StorageFailure, sync_directory
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.segment_files import (
    aborted_transactions,
    first_timestamp,
    info_from_files,
    sealed_segments,
)
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.errors import Corrupt

logger = logging.getLogger(__name__)

# Longest time of one slice. A step reads or writes one chunk of log.cleaner.io.buffer.size bytes.
_SLICE_NS: Final = 5_000_000
_IDLE_MS: Final = 500
# Shortest pause, because log.cleaner.backoff.ms=0 would otherwise make the cleaner loop over all logs without a rest.
_PAUSE_MS_MIN: Final = 100
# Limit of a wait in ns, because with a rate near 0 the computed wait is not a finite integer.
_WAIT_NS_MAX: Final = 1 << 62


L = TypeVar("L", bound=LogRequest)


class _ReplacedFile(NamedTuple):
    """A .deleted file of a replaced segment, and the monotonic time at which it may be unlinked."""

    due_ns: int
    path: Path
    log_inode: int | None  # The inode of a .log file. None for the other files of a segment.


class Compactor:
    """Compacts the logs of a broker. Owned by the cleaner."""

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        fs: Fs,
        table: PartitionTable,
        image: Callable[[], ClusterImage],
        ask: AskHandler,
        metrics: MetricsRow,
    ) -> None:
        self._clock = clock
        self._fs = fs
        self._image = image
        self._ask_handler = ask
        self._values = metrics.values
        self._directory = Path(config.log_dirs)
        self.survey = CompactionSurvey(
            config=config, clock=clock, fs=fs, table=table, image=image, metrics=metrics
        )
        self._replaced: deque[_ReplacedFile] = deque()
        self._steps = self._run()
        self._is_waiting = False
        self._is_pausing = False
        self._stepped_ns = 0
        self._moved_bytes = 0
        self._is_closed = not config.log_cleaner_enable

    # -- driven by the cleaner ---------------------------------------------------------------------------------

    def work(self) -> int:
        """Run steps for at most 5 ms, as far as the rate limit allows, and return their number."""
        if self._is_closed:
            return 0
        now_ns = self._clock.now_ns()
        steps, until_ns = self._unlink_due(now_ns), now_ns + _SLICE_NS
        while self._resume_ns() <= now_ns <= until_ns:
            moved = next(self._steps)
            now_ns = self._stepped_ns = self._clock.now_ns()
            self._moved_bytes = moved or 0
            self._is_waiting = moved is None
            if moved is None:
                break
            steps += 1
        return steps

    def _resume_ns(self) -> int:
        """Return the time of the next step in ns. Uses the present settings, so that a raised rate shortens a wait."""
        wait_ns = 0.0
        if self._is_pausing:
            wait_ns = max(int(self.survey.setting("log.cleaner.backoff.ms")), _PAUSE_MS_MIN) * NS_PER_MS
        elif self._moved_bytes:
            rate = float(self.survey.setting("log.cleaner.io.max.bytes.per.second"))
            wait_ns = self._moved_bytes * 1e9 / rate if rate > 0 else 0.0
        return self._stepped_ns + int(min(wait_ns, _WAIT_NS_MAX))

    def next_deadline_ms(self) -> int:
        """Return how many ms the cleaner may sleep before the compactor has work."""
        if self._is_closed:
            return _IDLE_MS
        left_ms = -(-(self._resume_ns() - self._clock.now_ns()) // NS_PER_MS)
        if left_ms > 0:
            return min(left_ms, _IDLE_MS)
        return _IDLE_MS if self._is_waiting else 0

    def follow_time(self) -> None:
        """Look for work at once instead of after log.cleaner.backoff.ms, because moved time can have made logs due."""
        self._stepped_ns = 0
        self.survey.follow_time()

    @property
    def is_idle(self) -> bool:
        """True during the pause after a survey that found no log to compact, or if compaction is off or closed."""
        return self._is_pausing or self._is_closed

    def close(self) -> None:
        """Abandon the running pass: remove its unfinished file, and unlink the replaced files."""
        self._is_closed = True
        self._steps.close()
        for replaced in self._replaced:
            self._unlink(replaced)

    # -- the steps ---------------------------------------------------------------------------------------------

    def _run(self) -> Steps:
        while True:
            # Wait for the controller's snapshot, because no topic is known before it.
            while not self._image().version:
                yield None
            best = yield from self.survey.find_dirtiest()
            if best is None:
                self._is_pausing = True
                # work() resumes the generator here when the pause is over.
                yield None
                self._is_pausing = False
                continue
            topic, partition, _ = best
            try:
                yield from self._compact(topic, partition.index)
            except (StorageFailure, SegmentChanged) as problem:
                # Log only if the topic still exists. A deletion renames the directory, which is no problem.
                if self._image().topic_by_id(topic.topic_id) is not None:
                    logger.warning(
                        "compaction of %s-%d was stopped, trying again later: %s",
                        topic.name,
                        partition.index,
                        problem,
                    )
                self.survey.postpone(topic, partition.index)
            except Exception as problem:
                # Skip a damaged log until the cleaner starts again, as Kafka does, and compact the others.
                logger.error(
                    "compaction of %s-%d failed; this log is not compacted until the cleaner restarts: %s",
                    topic.name, partition.index, problem, exc_info=not isinstance(problem, Corrupt),
                )  # fmt: skip
                self.survey.mark_uncleanable(topic, partition.index, problem)

    def _send_request(self, call: Call[L, R], body: L) -> Generator[None, None, R | Lost | None]:
        """Call the Handler that owns the partition in `body`, and wait for its reply. Yields None while it waits.

        Returns the reply, Lost if the Handler has ended, or None if the partition is deleted.
        """
        partition = self._image().partition(body.topic, body.partition)
        if partition is None:
            return None
        replies: list[R | Lost] = []
        self._ask_handler(partition.owner, call, body, replies.append)
        while not replies:
            yield None
        return replies[0]

    # -- one log -----------------------------------------------------------------------------------------------

    def _compact(self, topic: TopicImage, index: int) -> Steps:
        """Run passes over one log until its whole compactable section is clean.

        Postpone the log if the owner rejects a call, or if too little of the log can be compacted.
        """
        has_begun = False
        while True:
            # Ask before each pass, because the last pass has swapped segments and the log may have grown since.
            answer = yield from self._send_request(
                PREPARE_COMPACTION, LogRequest(topic.name, topic.topic_id, index)
            )
            known = answer.facts if isinstance(answer, CompactionPrepared) else None
            config = self.survey.config_of(topic)
            if known is None or not config.is_compacting:
                self.survey.postpone(topic, index)
                return
            directory = self._directory / f"{topic.name}-{index}"
            remove_cleaned(self._fs, directory)
            section, facts = self._facts(topic, index, directory, config, known)
            if not (section.is_due(config) or (has_begun and section.cleanable_bytes)):
                # CompactionSurvey._assess() used the log's end instead of the last stable offset, because only the
                # owner knows open transactions. By the owner's reply, too little is compactable.
                self.survey.postpone(topic, index)
                return
            has_begun = True
            end_offset = yield from self._run_pass(topic, index, directory, config, facts)
            if end_offset is None:
                self.survey.postpone(topic, index)
                return
            # Sync the renames before recording the offset: until then the log is not clean on the disk.
            sync_directory(self._fs, directory)
            self.survey.offsets.put(self._image(), topic, index, end_offset)
            if end_offset >= section.first_uncleanable:
                self._values[SLOT["compactions"]] += 1
                self._values[SLOT["compaction_last_run_ms"]] = self._clock.wall_ms()
                return

    def _facts(
        self, topic: TopicImage, index: int, directory: Path, config: LogConfig, known: LogInfo
    ) -> tuple[DirtySection, PassFacts]:
        """Return the section that can be compacted, and the facts for a pass over it.

        Both follow from `known`, the owner's reply about the log, and from the sizes and times of the log's files.
        """
        bases = [each.base_offset for each in known.segments]
        section = assess(
            info_from_files(self._fs, directory, bases, known.end_offset),
            config,
            CompactionLimits(known.start_offset, known.stable_offset, known.synced_offset),
            checkpoint=self.survey.offsets.get(topic, index),
            now_ms=self._clock.wall_ms(),
            first_timestamp=lambda base: first_timestamp(self._fs, directory, base),
        )
        taken = [each for each in known.segments if each.base_offset < section.first_uncleanable]
        facts = PassFacts(
            section.first_dirty,
            section.first_uncleanable,
            sealed_segments(self._fs, directory, taken, section.first_uncleanable),
            known.producers,
            aborted_transactions(self._fs, directory, bases),
        )
        return section, facts

    def _run_pass(
        self, topic: TopicImage, index: int, directory: Path, config: LogConfig, facts: PassFacts
    ) -> Steps:
        """Run one pass. Return the offset where it ended, or None if the owner rejected a swap."""
        run = CompactionPass(
            self._fs,
            directory,
            facts,
            interval_bytes=config.index_interval_bytes,
            delete_retention_ms=config.delete_retention_ms,
            record_bytes_max=config.max_decompressed_message_bytes,
            now_ms=self._clock.wall_ms(),
            memory_bytes=self._memory_bytes(),
            chunk_bytes=int(self.survey.setting("log.cleaner.io.buffer.size")),
        )
        before, started_ns = sum(each.size for each in facts.segments), self._clock.now_ns()
        try:
            yield from self._counted(run.map_keys())
            taken = [each for each in facts.segments if each.base_offset < run.compacted_end]
            after = before - sum(each.size for each in taken)
            for group in group_segments(taken, config):
                yield from self._counted(run.rewrite(group))
                new = run.finish(group)
                after += sum(each.size for each in group) if new is None else new.size
                if new is None:
                    continue
                delay_ms = config.file_delete_delay_ms
                if not (yield from self._swap(topic, index, directory, group, new, delay_ms)):
                    return None
        finally:
            run.abandon()
            self._values[SLOT["compaction_records_read"]] += run.records_read
        logger.info(
            "log=compacted partition=%s-%d from=%d to=%d keys=%d bytes=%d bytes_before=%d ms=%d",
            topic.name, index, facts.first_dirty, run.compacted_end, run.key_count, after, before,
            (self._clock.now_ns() - started_ns) // NS_PER_MS,
        )  # fmt: skip
        return run.compacted_end

    def _counted(self, steps: Iterator[int]) -> Steps:
        slot = SLOT["compaction_io_bytes"]
        for moved in steps:
            self._values[slot] += moved
            yield moved

    def _swap(
        self,
        topic: TopicImage,
        index: int,
        directory: Path,
        group: list[SealedSegment],
        new: SegmentIdentity,
        delay_ms: int,
    ) -> Steps:
        """Let the owner replace a group of segments with the compacted segment `new`. Return True if it did."""
        replaced = {
            path: each.inode if path.name.endswith(LOG_SUFFIX + DELETED_SUFFIX) else None
            for each in group
            for path in deleted_files(directory, each.base_offset)
        }
        for path in replaced:
            # Unlink a file of that name that an earlier swap replaced, and that still waits for its delay. Otherwise
            # the owner's rename would replace it, and the owner's loop would have to free its blocks.
            self._fs.unlink(path)
        # The new segment and its names must be on the disk before the owner makes the segment part of the log.
        # Otherwise a power loss after the swap would lose records.
        sync_directory(self._fs, directory)
        yield 0
        old = [SegmentIdentity(each.base_offset, each.size, each.inode) for each in group]
        body = SwapRequest(topic.name, topic.topic_id, index, old, new)
        answer = yield from self._send_request(SWAP_SEGMENTS, body)
        took_us = answer.took_us if isinstance(answer, Swapped) else None
        if took_us is None:
            reason = answer.refused if isinstance(answer, Swapped) else answer
            logger.info(
                "swap=refused partition=%s-%d: the log's owner did not confirm that it replaced the old segments; "
                "discarding the compacted files: %s",
                topic.name, index, reason,
            )  # fmt: skip
            self._values[SLOT["compaction_swaps_refused"]] += 1
            remove_cleaned(self._fs, directory)
            return False
        self._count_swap(sum(each.size for each in group) - new.size, took_us)
        self._schedule_unlinks(directory, replaced, delay_ms)
        return True

    def _schedule_unlinks(self, directory: Path, replaced: dict[Path, int | None], delay_ms: int) -> None:
        """Let `_unlink_due` unlink the replaced files after `delay_ms`. The inode of each .log file is its value."""
        due_ns = self._clock.now_ns() + delay_ms * NS_PER_MS
        # Sync the directory before any file is unlinked. (With file.delete.delay.ms=0 files are unlinked at once.)
        # Otherwise a power loss could undo the new names after the old files were unlinked.
        sync_directory(self._fs, directory)
        self._replaced = deque(each for each in self._replaced if each.path not in replaced)
        self._replaced.extend(_ReplacedFile(due_ns, path, inode) for path, inode in replaced.items())

    def _count_swap(self, freed_bytes: int, took_us: int) -> None:
        values, slowest = self._values, SLOT["compaction_swap_us_max"]
        values[SLOT["compaction_bytes_freed"]] += max(0, freed_bytes)
        values[slowest] = max(values[slowest], took_us)

    def _unlink_due(self, now_ns: int) -> int:
        """Unlink one replaced file that has waited file.delete.delay.ms. Return 1, or 0 if no file has.

        Unlinks one file per slice, because the file system needs long for a large one.
        """
        if not self._replaced or self._replaced[0].due_ns > now_ns:
            return 0
        replaced = self._replaced.popleft()
        try:
            self._unlink(replaced)
        except StorageFailure as failure:
            logger.warning(
                "cannot unlink %s, which a compaction has replaced; the next opening of the log unlinks it: %s",
                replaced.path,
                failure,
            )
        return 1

    def _unlink(self, replaced: _ReplacedFile) -> None:
        # The topic may have been deleted and created again since the swap. Leave a .log.deleted file of the new log: it
        # explains to the next start why the log's first segments are missing.
        if replaced.log_inode is not None:
            facts = self._fs.facts_at(replaced.path)
            if facts is None or facts.st_ino != replaced.log_inode:
                return
        self._fs.unlink(replaced.path)

    # -- settings ----------------------------------------------------------------------------------------------

    def _memory_bytes(self) -> int:
        share = float(self.survey.setting("log.cleaner.io.buffer.load.factor"))
        return int(int(self.survey.setting("log.cleaner.dedupe.buffer.size")) * share)
