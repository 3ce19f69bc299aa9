"""TaskWriter: write the rows of one task. It chooses partitions, encodes batches and sends them by a BatchProducer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kproc.common.clock import SystemClock
from kproc.spark.digest import DIGEST_COUNT, digest
from kproc.spark.encode import HEADER_TYPE, NullHeader, RecordEncoder, RecordTooLarge, RowColumns, rows_bytes
from kproc.spark.partitioner import Int32s, Int64s, Spread, partitions_by_key
from kproc.spark.producer import BatchProducer
from kproc.spark.sink_options import SinkOptions

# Limit for the waiting rows of one topic. They wait until they can fill a batch of each partition, or reach this size.
GATHER_BYTES_MAX: Final = 8 * 1024 * 1024
# Limit for all waiting rows of a task, with the buffers that Arrow keeps alive for them. Above it the topic with most
# bytes is encoded.
GATHER_ALL_BYTES_MAX: Final = 32 * 1024 * 1024


class WriteFailed(Exception):
    """A row cannot become a record. If a broker rejects a record, ProduceFailed is raised instead."""


class _TopicRows:
    """Rows of one topic that wait to be encoded, and the chooser of partitions for its records without a key."""

    def __init__(self, begin: int) -> None:
        self.spread = Spread(begin)
        self.rows: list[tuple[RowColumns, pa.Array | None]] = []
        self.bytes = 0
        """Approximate size of the waiting rows on the wire."""
        self.held_bytes = 0
        """Bytes of memory that the waiting rows keep alive: their buffers can contain columns that are not written."""


class TaskWriter:
    """Writer of one task's rows. `write` can be called once."""

    def __init__(
        self, options: SinkOptions, producer: BatchProducer, task: int, *, has_digest: bool = False
    ) -> None:
        self._options = options
        self._producer = producer
        self._task = task
        self._clock = SystemClock()
        self._topics: dict[str, _TopicRows] = {}
        self._held_bytes = 0
        self._has_digest = has_digest
        self.digest = 0
        """Digest of the rows that were written so far. 0 without `has_digest`."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Write all rows, and wait until the brokers have acknowledged them."""
        for batch in batches:
            for topic, part in self._by_topic(batch):
                # A batch with rows of several topics is copied by topic. One that is used whole also keeps its unused
                # columns in memory.
                self._gather(topic, *self._rows(part), held_bytes=batch.nbytes if part is batch else 0)
            self._producer.poll()
        for name in self._topics:
            self._encode(name)
        self._producer.flush()

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise WriteFailed(
                f"null topic present in the data: {topics.null_count} of {batch.num_rows} rows. "
                "Use the topic option for setting a topic."
            )
        names = topics.unique()
        for name in names.to_pylist():
            yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))

    def _rows(self, batch: pa.RecordBatch) -> tuple[RowColumns, pa.Array | None]:
        """Return the columns of the records, key and value as binary, and the column `partition` if there is one."""
        columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
        keys = columns.get("key")
        headers = columns.get("headers")
        if headers is not None:
            headers = None if headers.null_count == len(headers) else headers.cast(pa.list_(HEADER_TYPE))
        rows = RowColumns(
            columns["value"].cast(pa.binary()),
            None if keys is None or keys.null_count == len(keys) else keys.cast(pa.binary()),
            headers,
            self._timestamps(columns.get("timestamp"), batch.num_rows),
        )
        return rows, columns.get("partition")

    def _timestamps(self, column: pa.Array | None, count: int) -> Int64s:
        now_ms = self._clock.wall_ms()
        if column is None:
            return np.full(count, now_ms, np.int64)
        microseconds = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        # Round to the earlier millisecond, even before 1970, as Spark's own casts do.
        stamps: Int64s = np.floor_divide(np.asarray(microseconds.fill_null(now_ms * 1000)), 1000)
        return stamps

    def _gather(self, name: str, rows: RowColumns, wanted: pa.Array | None, *, held_bytes: int) -> None:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _TopicRows(self._task)
        topic.rows.append((rows, wanted))
        if self._has_digest:
            self.digest = (self.digest + digest(rows)) % DIGEST_COUNT
        size = rows_bytes(rows)
        held_bytes = max(held_bytes, size)
        topic.bytes += size
        topic.held_bytes += held_bytes
        self._held_bytes += held_bytes
        enough = self._options.producer.batch_bytes * self._producer.partition_count(name)
        if topic.bytes >= min(enough, GATHER_BYTES_MAX):
            self._encode(name)
        # Encode only the topic that holds most memory. Encoding all would make small batches of many topics, which
        # compress badly.
        while self._held_bytes >= GATHER_ALL_BYTES_MAX:
            self._encode(max(self._topics, key=lambda each: self._topics[each].held_bytes))

    def _encode(self, name: str) -> None:
        topic = self._topics[name]
        gathered, topic.rows = topic.rows, []
        self._held_bytes -= topic.held_bytes
        topic.bytes = topic.held_bytes = 0
        if not gathered:
            return
        rows = _joined([each for each, _ in gathered])
        wanted = _joined_wanted(gathered)
        partitions = self._choose_partitions(name, topic, rows, wanted)
        settings = self._options.producer
        encoder = RecordEncoder(
            batch_bytes=min(settings.batch_bytes, self._producer.batch_bytes.get(name, settings.batch_bytes)),
            bytes_max=settings.request_bytes,
            codec=settings.codec,
            level=settings.level,
        )
        try:
            for draft in encoder.encode(rows, partitions):
                self._producer.send(name, draft)
        except (RecordTooLarge, NullHeader) as error:
            raise WriteFailed(f"topic {name}: {error}") from None

    def _choose_partitions(
        self, name: str, topic: _TopicRows, rows: RowColumns, wanted: pa.Array | None
    ) -> Int32s:
        """Return the partition of each row: from the column `partition`, else by its key, else by `spread`."""
        count = self._producer.partition_count(name)
        size = len(rows.values)
        if wanted is not None and not wanted.null_count:
            return _in_range(np.asarray(wanted).astype(np.int32), name, count)
        if rows.keys is None:
            chosen = topic.spread.next_partitions(size, count)
        else:
            # Hash keys as Kafka's Java clients do (murmur2), so that all producers write records of one key to one
            # partition.
            chosen = partitions_by_key(rows.keys, count)
            if rows.keys.null_count:
                without = np.flatnonzero(np.asarray(rows.keys.is_null()))
                chosen[without] = topic.spread.next_partitions(len(without), count)
        if wanted is not None and wanted.null_count < size:
            given = np.asarray(wanted.is_valid())
            chosen[given] = _in_range(np.asarray(wanted.drop_null()).astype(np.int32), name, count)
        return chosen


def _in_range(partitions: Int32s, topic: str, count: int) -> Int32s:
    wrong = (partitions < 0) | (partitions >= count)
    if wrong.any():
        first = int(partitions[int(wrong.argmax())])
        raise WriteFailed(f"topic {topic} has no partition {first}: it has {count}, numbered from 0")
    return partitions


def _joined(gathered: Sequence[RowColumns]) -> RowColumns:
    """Concatenate pieces of rows. If a piece lacks a column, its rows have null there."""
    if len(gathered) == 1:
        return gathered[0]

    def column(name: str, kind: pa.DataType) -> pa.Array | None:
        parts = [getattr(rows, name) for rows in gathered]
        if all(part is None for part in parts):
            return None
        return pa.concat_arrays(
            [
                pa.nulls(len(rows.values), kind) if part is None else part
                for part, rows in zip(parts, gathered, strict=True)
            ]
        )

    values = column("values", pa.binary())
    assert values is not None
    stamps = np.concatenate([rows.timestamps_ms for rows in gathered])
    return RowColumns(values, column("keys", pa.binary()), column("headers", pa.list_(HEADER_TYPE)), stamps)


def _joined_wanted(gathered: Sequence[tuple[RowColumns, pa.Array | None]]) -> pa.Array | None:
    """Concatenate the `partition` columns of the pieces. All pieces have one, or none has: then return None."""
    parts = [wanted for _, wanted in gathered if wanted is not None]
    return pa.concat_arrays(parts) if parts else None
