"""Writing a DataFrame to topics: `df.write` and `df.writeStream` with `format("kproc")`.

    executors   write(iterator of Arrow batches)   rows -> columns -> partitions -> record batches -> Producer
    driver      commit(messages), abort(messages)  nothing to publish or to undo: what was acknowledged is there

At least once: a task that Spark runs again, because it or its executor died, writes its rows again; what a broker
stored and a lost connection hid from us is stored once, because the producer is idempotent.

Every message carries the query's id (it outlives restarts) and the number of the micro-batch. They are the marker
by which a broker with transactions can tell a batch that was published from one that was not.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kproc.clock import SystemClock
from kproc.spark.brokers import Connecting, cluster_of
from kproc.spark.encode import HEADER_TYPE, NullHeader, RecordEncoder, RecordTooLarge, Rows, rows_bytes
from kproc.spark.option_values import OptionError
from kproc.spark.partitioner import Int32s, Int64s, Spread, partitions_by_key
from kproc.spark.producer import Producer
from kproc.spark.sink_options import ProducerSettings, SinkOptions, parse_sink_options

logger = logging.getLogger(__name__)

# Rows of a topic wait until they fill a batch in each of its partitions, or are this much.
GATHER_BYTES_MAX: Final = 8 * 1024 * 1024
# All topics of a task together, with what Arrow keeps for their sake; then the one with most goes out.
GATHER_ALL_BYTES_MAX: Final = 32 * 1024 * 1024
_HEADERS: Final = types.ArrayType(
    types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
)


class SchemaError(ValueError):
    """A DataFrame that cannot become records, in the words of Spark's own connector."""


class WriteFailed(Exception):
    """A row that no record can be made of; what a broker refuses is a ProduceFailed."""


@dataclass(frozen=True)
class PartitionWritten:
    """What one task wrote to one partition. Offsets are -1 where the broker did not say."""

    topic: str
    partition: int
    records: int
    bytes: int
    first_offset: int
    last_offset: int


@dataclass
class KprocCommitMessage(WriterCommitMessage):
    """What a task did, for the driver. `query_id` and `batch_id` are None in a batch write."""

    query_id: str | None
    batch_id: int | None
    task: int
    attempt: int
    written: list[PartitionWritten] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Records that were acknowledged."""
        return sum(row.records for row in self.written)


class Marker(NamedTuple):
    """What identifies a micro-batch over restarts of its query."""

    query_id: str | None
    batch_id: int | None


def marker() -> Marker:
    """The query and micro-batch of the running task; the writer's interface does not tell, the task's context does."""
    context = TaskContext.get()
    if context is None:
        return Marker(None, None)
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return Marker(query_id, None if batch_id is None else int(batch_id))


def batch_writer(options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> KprocBatchWriter:
    """The writer of `df.write`; raises before anything runs where options or columns are wrong."""
    if overwrite:
        raise OptionError("mode overwrite is not possible, a topic is only appended to: use mode('append')")
    return KprocBatchWriter(_checked(options, schema))


def stream_writer(options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> KprocStreamWriter:
    """The writer of `df.writeStream`."""
    if overwrite:
        raise OptionError("output mode complete is not possible, a topic is only appended to: use update")
    return KprocStreamWriter(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: types.StructType) -> SinkOptions:
    parsed = parse_sink_options(options)
    check_schema(schema, parsed.topic)
    return parsed


def check_schema(schema: types.StructType, topic: str | None) -> None:
    """SchemaError for columns that Spark's own connector refuses, too. Columns of other names are left out."""
    columns = {each.name: each.dataType for each in schema.fields}
    if "value" not in columns:
        raise SchemaError(
            f"Required attribute 'value' not found: the columns are {', '.join(columns) or 'none'}"
        )
    if topic is None and "topic" not in columns:
        raise SchemaError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )
    for name in ("key", "value"):
        if name in columns and not isinstance(columns[name], (types.StringType, types.BinaryType)):
            raise SchemaError(f"{name} attribute type must be a string or binary, not {_name(columns[name])}")
    expected = (
        ("topic", types.StringType(), "string"),
        ("partition", types.IntegerType(), "int"),
        ("timestamp", types.TimestampType(), "timestamp"),
    )
    for name, kind, text in expected:
        if name in columns and not isinstance(columns[name], type(kind)):
            raise SchemaError(f"{name} attribute type must be a {text}, not {_name(columns[name])}")
    if "headers" in columns and not _are_headers(columns["headers"]):
        wanted = _HEADERS.simpleString()
        raise SchemaError(f"headers attribute type must be a {wanted}, not {_name(columns['headers'])}")


def _name(kind: types.DataType) -> str:
    return kind.simpleString()


def _are_headers(kind: types.DataType) -> bool:
    """Whether it is an array of (key string, value binary); what may be null in it does not matter."""
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = [(each.name, type(each.dataType)) for each in kind.elementType.fields]
    return fields == [("key", types.StringType), ("value", types.BinaryType)]


# -- a task


class _Topic:
    """Rows of one topic that wait to be encoded, and where its records without a key go."""

    def __init__(self, begin: int) -> None:
        self.spread = Spread(begin)
        self.rows: list[tuple[Rows, pa.Array | None]] = []
        self.bytes = 0
        """About what they take on the wire."""
        self.held_bytes = 0
        """What they hold in memory: columns that are left out came in the same buffer as those that wait."""


class TaskWriter:
    """Arrow batches of one task to a Producer. Made and used up by one `write`."""

    def __init__(self, options: SinkOptions, producer: Producer, task: int) -> None:
        self._options = options
        self._producer = producer
        self._task = task
        self._clock = SystemClock()
        self._topics: dict[str, _Topic] = {}
        self._held_bytes = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Write everything and wait until it is acknowledged."""
        for batch in batches:
            for topic, part in self._by_topic(batch):
                # A part is a copy; of the whole batch what is left out stays in memory, too.
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

    def _rows(self, batch: pa.RecordBatch) -> tuple[Rows, pa.Array | None]:
        """The columns as records need them, and the wanted partitions, if there is such a column."""
        columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
        keys = columns.get("key")
        headers = columns.get("headers")
        if headers is not None:
            headers = None if headers.null_count == len(headers) else headers.cast(pa.list_(HEADER_TYPE))
        rows = Rows(
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
        # Towards the past, like Spark's own casts, also before 1970.
        stamps: Int64s = np.floor_divide(np.asarray(microseconds.fill_null(now_ms * 1000)), 1000)
        return stamps

    def _gather(self, name: str, rows: Rows, wanted: pa.Array | None, *, held_bytes: int) -> None:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(self._task)
        topic.rows.append((rows, wanted))
        size = rows_bytes(rows)
        held_bytes = max(held_bytes, size)
        topic.bytes += size
        topic.held_bytes += held_bytes
        self._held_bytes += held_bytes
        enough = self._options.producer.batch_bytes * self._producer.partition_count(name)
        if topic.bytes >= min(enough, GATHER_BYTES_MAX):
            self._encode(name)
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
        partitions = self._place(name, topic, rows, wanted)
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

    def _place(self, name: str, topic: _Topic, rows: Rows, wanted: pa.Array | None) -> Int32s:
        """The partition of each row: the wanted one, else by its key, else spread."""
        count = self._producer.partition_count(name)
        size = len(rows.values)
        if wanted is not None and not wanted.null_count:
            return _in_range(np.asarray(wanted).astype(np.int32), name, count)
        if rows.keys is None:
            chosen = topic.spread.take(size, count)
        else:
            chosen = partitions_by_key(rows.keys, count)
            if rows.keys.null_count:
                without = np.flatnonzero(np.asarray(rows.keys.is_null()))
                chosen[without] = topic.spread.take(len(without), count)
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


def _joined(gathered: Sequence[Rows]) -> Rows:
    """Pieces as one; a column that only some pieces have is null in the others."""
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
    return Rows(values, column("keys", pa.binary()), column("headers", pa.list_(HEADER_TYPE)), stamps)


def _joined_wanted(gathered: Sequence[tuple[Rows, pa.Array | None]]) -> pa.Array | None:
    """The partition column; it is in every piece or in none."""
    parts = [wanted for _, wanted in gathered if wanted is not None]
    return pa.concat_arrays(parts) if parts else None


# -- what Spark calls


_producers: dict[tuple[int, str, ProducerSettings], Producer] = {}


def _take_producer(options: SinkOptions) -> Producer:
    """This process's producer for these settings, kept for later tasks: its connections and its producer id."""
    key = (os.getpid(), options.bootstrap, options.producer)
    producer = _producers.pop(key, None)
    if producer is not None:
        return producer
    settings = options.producer
    connecting = Connecting(
        client_id=settings.client_id,
        connect_ms=settings.connect_ms,
        request_ms=settings.request_timeout_ms,
        backoff_ms=settings.backoff_ms,
        backoff_ms_max=settings.backoff_ms_max,
    )
    return Producer(cluster_of(options.bootstrap, connecting), settings)


def _give_back(options: SinkOptions, producer: Producer) -> None:
    """Only after a task that went well: another one's producer may have batches that were never acknowledged."""
    _close_at_exit()
    _producers[os.getpid(), options.bootstrap, options.producer] = producer


@cache
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for (pid, _, _), producer in _producers.items():
        if pid == os.getpid():
            producer.close()
    _producers.clear()


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
    """One task's rows to their topics; returns when the brokers have acknowledged all of them."""
    context = TaskContext.get()
    task, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
    producer = _take_producer(options)
    try:
        TaskWriter(options, producer, task).write(batches)
    except BaseException:
        producer.close()
        raise
    written = [
        PartitionWritten(topic, partition, row.records, row.bytes, row.first_offset, row.last_offset)
        for (topic, partition), row in sorted(producer.take_written().items())
    ]
    _give_back(options, producer)
    return KprocCommitMessage(*marker(), task, attempt, written)


class KprocBatchWriter(DataSourceArrowWriter):
    """`df.write`. Made on the driver, sent to every task."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
        """One task."""
        return write_task(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task's records are acknowledged: there is nothing left to do."""
        logger.info("wrote %s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was acknowledged stays: a topic is only appended to."""
        logger.warning("failed; of this write stays in its topics: %s", summary(messages))


class KprocStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. Made on the driver, sent to every task of every micro-batch."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
        """One task of a micro-batch."""
        return write_task(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every task's records are acknowledged. May come again for a batch after a restart."""
        logger.info("batch %d: wrote %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was acknowledged stays, and is written again when Spark runs the batch again."""
        logger.warning("batch %d failed; of it stays in its topics: %s", batchId, summary(messages))


def summary(messages: Sequence[WriterCommitMessage | None]) -> dict[str, Any]:
    """Counts of a write as one row: tasks that reported, records and bytes by topic."""
    told = [message for message in messages if isinstance(message, KprocCommitMessage)]
    topics: dict[str, dict[str, int]] = {}
    for message in told:
        for row in message.written:
            total = topics.setdefault(row.topic, {"records": 0, "bytes": 0})
            total["records"] += row.records
            total["bytes"] += row.bytes
    return {
        "query": next((message.query_id for message in told if message.query_id), None),
        "tasks": len(told),
        "topics": topics,
    }
