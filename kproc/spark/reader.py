"""BatchReader and StreamReader: they plan a read in the driver, and read one range in each task.

Spark creates a reader in one Python process, keeps it in another, and pickles it into the tasks. A reader therefore
holds options and plain values. Connections belong to the process (`cluster_of`). A stream's `partitions()` depends only
on its arguments and the options, so that a batch that is run again has the same tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kproc.client import ApiError, ClientError, error_text
from kproc.client.requests import commit_fields
from kproc.common.clock import NS_PER_MS, SystemClock
from kproc.spark.brokers import pause
from kproc.spark.initial import InitialOffsets
from kproc.spark.input_partitions import input_partitions, read_partition
from kproc.spark.look_up import LogEnds, LookUp
from kproc.spark.offsets import (
    Offsets,
    Range,
    TopicIds,
    TopicPartition,
    from_json,
    ids_of,
    limited,
    losses,
    ranges_of,
    recreated,
    split,
    start_of,
    to_json,
    waiting,
    without_topics,
)
from kproc.spark.options import SourceOptions, parse_source
from kproc.spark.requirements import require_spark
from kproc.spark.schema import columns_of
from kproc.spark.sizes import limited_by_bytes
from kproc.spark.user_errors import sentence_first, sentence_first_rows
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

REPORT_NS: Final = 100 * NS_PER_MS
"""Age, in ns, up to which log ends are reported without a new request.

Each trigger requests them and then reports them.
"""
IDLE_NS: Final = 100 * NS_PER_MS
"""If Spark calls again within this time, in ns, after a call without new records, the query has no trigger interval."""
IDLE_MS_MIN: Final = 10
IDLE_MS_MAX: Final = 200
COMMIT_MS: Final = 2_000
"""Longest time, in ms, that a commit of offsets for lag tools may delay a query."""


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of `spark.read`."""
    require_spark()
    return BatchReader(parse_source(options, is_stream=False), columns_of(schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of `spark.readStream`."""
    require_spark()
    return StreamReader(parse_source(options, is_stream=True), columns_of(schema))


class BatchReader(DataSourceReader):
    """Reader of topics as a table.

    Spark creates it, calls `partitions` in a process of the driver, and copies it to each task.

    There is no `pushFilters`: Spark 4.2 and 4.3 keep one plan for each `load()` and share it among all its uses. Ranges
    that one use's filters exclude would be missing from every other use of the same DataFrame.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the work of each task, by minPartitions, maxPartitions and maxRecordsPerPartition."""
        options = self.options
        look_up = LookUp(options)
        subscribed = look_up.subscribed()
        ranges = ranges_of(*look_up.bounds(subscribed.partitions))
        pieces = split(ranges, records_max=options.max_records, partitions_min=options.min_partitions)
        return input_partitions(pieces, subscribed.ids, tasks_max=options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition, in its task."""
        return sentence_first_rows(read_partition(self.options, self.columns, partition))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The offsets at which a stream's next batch begins, and the largest ones at which it may end."""

    begin: Offsets
    end: Offsets
    is_recreated: bool
    """True if a topic was deleted and created again since the last batch."""


def _read_up_to(offsets: Offsets, topic: str) -> str:
    """Format how far the partitions of a topic were read, as a part of a sentence."""
    rows = [f"{each.partition} to offset {offsets[each]}" for each in sorted(offsets) if each.topic == topic]
    return f"and was read before, partition {', '.join(rows)}" if rows else "and was not read before"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of topics as a stream. Each query has one in a process of the driver, and a copy in each task."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)
        self._look_up = LookUp(options)
        self._initial: dict[str, Any] | None = None
        self._has_begun = False
        self._target: Offsets | None = None
        self._ends: Offsets | None = None
        self._ends_ns = 0
        self._ids: TopicIds = {}
        # Missing partitions whose loss was reported, so that each is reported once. A partition that exists again is
        # removed.
        self._gone: set[TopicPartition] = set()
        # Time of the last batch, from which maxTriggerDelay counts. None before the first batch, which does not wait
        # for minOffsetsPerTrigger, as in Spark's connector.
        self._waiting_since_ns: int | None = None
        self._commit_failed = False
        self._idle_ms = 0
        self._idle_since_ns = -IDLE_NS

    # -- where

    @sentence_first()
    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a new query begins. Every call returns the same offsets.

        With checkpointState they also stay the same over restarts before the first batch.
        """
        if self._initial is None:
            state = InitialOffsets.of(self.options)
            document = state.load() if state is not None else None
            if document is None:
                subscribed = self._look_up.subscribed()
                offsets = self._look_up.starting(subscribed.partitions)
                document = to_json(offsets, ids=subscribed.ids)
                if state is not None:
                    state.save(document)
            self._initial = document
        return self._initial

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the query's end at the current ends of the logs. `latestOffset` reports missing records."""
        self._look_up.discard_cache()
        newest = self._newest({})
        self._target = newest.ends
        self._ids |= newest.ids

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset`, unless its trigger reads everything."""
        options = self.options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` unchanged if there is no next batch.

        Spark compares the documents as text, so only `start` itself means that there is no batch.
        """
        bounds = self._next_bounds(start)
        begin, end = bounds.begin, bounds.end
        if not isinstance(limit, ReadAllAvailable):
            begin = self._with_new(begin, end)
            if self._target is None and not bounds.is_recreated and self._is_to_wait(begin, end):
                end = begin = from_json(start)
            if self.options.max_offsets is not None:
                end = limited(self.options.max_offsets, begin, end)
            if self.options.max_bytes is not None:
                end = limited_by_bytes(self.options, self._look_up.cluster, begin, end)
        # Store the start of the first batch in the document with its end, because Spark's checkpoint does not store it.
        # bounds.begin lacks a topic that was created again since then. That topic begins at its log's start.
        first = None if start != self._initial or self._has_begun else bounds.begin
        self._has_begun = first is None
        if end == from_json(start) and self._has_begun and not bounds.is_recreated:
            if self._target is None:
                self._rest()
            return start
        self._idle_ms = 0
        return to_json(end, ids=self._ids, start=first)

    def _next_bounds(self, start: dict[str, Any]) -> _Bounds:
        """Return the offsets at which the next batch begins and may end. Report lost records.

        With failOnDataLoss=false a topic that was deleted and created again is read from its log's start, because it is
        another topic. A topic that is missing keeps its last offset, and is read from there if it exists again.
        """
        before = from_json(start)
        here = {partition: offset for partition, offset in before.items() if partition not in self._gone}
        newest = self._newest(here)
        now = newest.ends
        ids_before, ids_now = {**self._ids, **ids_of(start)}, newest.ids
        again = recreated(ids_before, ids_now)
        target = {} if self._target is None else without_topics(self._target, again)
        # Discard the offsets of topics that were deleted and created again, because they belong to the former topics.
        begin = without_topics(before, again)
        end = dict(now)
        if self._target is not None:
            # A topic that was created again has no end from prepareForTriggerAvailableNow: read all of its current
            # records. A target can be below `begin` only because of an open transaction (LookUp.newest).
            end = {
                partition: min(offset, max(target.get(partition, offset), begin.get(partition, 0)))
                for partition, offset in now.items()
                if partition in target or partition.topic in again
            }
        self._look_up.report_loss(
            [f"topic {topic} was deleted and created again, {_read_up_to(before, topic)}" for topic in again]
            + losses({each: begin[each] for each in begin if each in here}, end, {})
            + [
                f"{each} was to be read up to offset {target[each]} and ends at {now[each]} now: its log was cut"
                for each in sorted(target)
                if before.get(each, 0) <= now.get(each, -1) < target[each]
            ]
        )
        self._ids = {**ids_before, **ids_now}
        if self._target is not None:
            self._target = {**target, **{each: end[each] for each in end if each.topic in again}}
        # Store the missing partitions, so that their loss is not reported again.
        self._gone = {partition for partition in begin if partition not in now}
        return _Bounds(begin, {**{each: begin[each] for each in self._gone}, **end}, is_recreated=bool(again))

    def _rest(self) -> None:
        """Pause if Spark calls again at once although there are no new records.

        Without a trigger interval Spark calls latestOffset 80 times a second. The pause doubles up to IDLE_MS_MAX.
        """
        is_hurried = SystemClock.now_ns() - self._idle_since_ns < IDLE_NS
        self._idle_ms = min(max(2 * self._idle_ms, IDLE_MS_MIN), IDLE_MS_MAX) if is_hurried else 0
        pause(self._idle_ms)
        self._idle_since_ns = SystemClock.now_ns()

    def _newest(self, start: Offsets) -> LogEnds:
        newest = self._look_up.newest(start)
        self._ends = newest.ends
        self._ends_ns = SystemClock.now_ns()
        return newest

    def _with_new(self, begin: Offsets, end: Offsets) -> Offsets:
        """Add partitions that are new since the last batch, at their log start, so that limits count their backlog."""
        new = end.keys() - begin.keys()
        return {**begin, **self._look_up.log_starts_left(new)} if new else begin

    def _is_to_wait(self, begin: Offsets, end: Offsets) -> bool:
        """Return True if the backlog is below minOffsetsPerTrigger and maxTriggerDelay has not passed.

        If the batch need not wait, let maxTriggerDelay count from now.
        """
        low, since_ns = self.options.min_offsets, self._waiting_since_ns
        if low is None:
            return False
        now_ns = SystemClock.now_ns()
        is_over = since_ns is None or now_ns - since_ns >= self.options.max_delay_ms * NS_PER_MS
        if not is_over and waiting(begin, end) < low:
            return True
        self._waiting_since_ns = now_ns
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the current log ends, for the lag in the query's progress. Return None if no broker responds."""
        is_fresh = self._target is None and SystemClock.now_ns() - self._ends_ns <= REPORT_NS
        if self._ends is None or not is_fresh:
            try:
                self._newest({})
            except ClientError as error:
                logger.warning(
                    "cannot read the newest offsets, so the progress report has none: %s", str(error)
                )
                return None
        return to_json(self._ends or {})

    # -- what

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition per task. Raise DataLoss if planned records are lost, unless failOnDataLoss=false."""
        begin, last, ids = start_of(start, end), from_json(end), ids_of(end)
        ranges = ranges_of(begin, last)
        if ranges:
            self._report_planned(begin, last, ranges, ids)
        pieces = split(
            ranges, records_max=self.options.max_records, partitions_min=self.options.min_partitions
        )
        return input_partitions(pieces, ids, tasks_max=self.options.max_partitions)

    def _report_planned(self, begin: Offsets, last: Offsets, ranges: list[Range], ids: TopicIds) -> None:
        """Report lost records of a planned batch. Its tasks stay the same, as a repeated run of the batch requires."""
        logs = self._look_up.planned(ranges, ids)
        sentences = [
            f"topic {topic} was deleted and created again after the batch was planned"
            for topic in logs.recreated
        ]
        for each in ranges:
            if each.partition.topic in logs.recreated:
                continue
            if each.partition not in logs.starts or each.partition not in logs.ends:
                sentences.append(
                    f"{each.partition} is to be read up to offset {each.end}, and does not exist any more"
                )
            elif logs.ends[each.partition] < each.end:
                sentences.append(
                    f"{each.partition} is to be read up to offset {each.end}, "
                    f"and its log ends at {logs.ends[each.partition]}"
                )
        begin, last = without_topics(begin, logs.recreated), without_topics(last, logs.recreated)
        self._look_up.report_loss(sentences + losses(begin, last, logs.starts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition, in its task."""
        return sentence_first_rows(read_partition(self.options, self.columns, partition))

    # -- afterwards

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the batch's end as offsets of the group `commitGroup`, so that tools can show the query's lag.

        A restart uses Spark's checkpoint and not these offsets. So a failed commit only logs a warning, once.
        """
        if self.options.commit_group is None:
            return
        # Brokers reject offsets of missing topics, and the retries would delay each batch by COMMIT_MS.
        offsets = {each: offset for each, offset in from_json(end).items() if each not in self._gone}
        try:
            commit_offsets(self._look_up, self.options.commit_group, offsets)
            self._commit_failed = False
        except ClientError as error:
            if not self._commit_failed:
                # Log the error as text, because a log record with the exception would keep its stack frames and their
                # sockets alive.
                group = self.options.commit_group
                logger.warning(
                    "offsets of group %s are not committed, the next batch tries again: %s", group, str(error)
                )
            self._commit_failed = True

    def stop(self) -> None:
        """Do nothing, because the connections belong to the process, and because Spark does not always call stop()."""


class RejectedStreamReader(DataSourceStreamReader):
    """Reader for invalid options. It raises the OptionError when Spark first calls it.

    If `streamReader()` itself raised the error, Spark would show its own UnboundLocalError instead: its runner calls
    stop() of the reader that it did not get (Spark 4.2 and 4.3, python_streaming_source_runner).
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _raise(self) -> NoReturn:
        with sentence_first():
            raise self._error

    def getDefaultReadLimit(self) -> NoReturn:
        """Raise the OptionError about the invalid options."""
        self._raise()

    def initialOffset(self) -> NoReturn:
        """Raise the OptionError about the invalid options."""
        self._raise()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        """Raise the OptionError about the invalid options."""
        self._raise()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        """Raise the OptionError about the invalid options."""
        self._raise()

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise the OptionError about the invalid options."""
        self._raise()

    def stop(self) -> None:
        """Do nothing, because this reader has no connections."""


def commit_offsets(look_up: LookUp, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit the offsets for a group without members. Raise ClientError if the coordinator rejects them."""
    fields = commit_fields(group, dict(sorted(offsets.items())))
    cluster = look_up.cluster

    def commit() -> None:
        # Look up the coordinator at each attempt, because it can move between attempts.
        node = cluster.coordinator(group, limit_ms=COMMIT_MS)
        answer = cluster.call(ApiKey.OFFSET_COMMIT, fields, node=node, limit_ms=COMMIT_MS)
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                if row["error_code"]:
                    raise ApiError(row["error_code"], f"OffsetCommit: {error_text(row['error_code'])}")

    cluster.retrying("OffsetCommit", commit, limit_ms=COMMIT_MS)
