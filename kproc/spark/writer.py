"""Writers of DataFrames to topics: `df.write` and `df.writeStream` with `format("kproc")`.

    executors   write(iterator of Arrow batches)   rows -> columns -> partitions -> record batches -> BatchProducer
    driver      commit(messages), abort(messages)  at least once: nothing to do; exactly once: end the transactions

At least once: if a task or its executor dies, Spark runs the task again, and it writes its rows again. If a connection
fails after the broker stored a batch, the batch is stored once, because the producer is idempotent.

Exactly once: each task leaves its rows in an open transaction, and the driver commits those of all tasks. The protocol
and its recovery are in `exactly_once`. It identifies a micro-batch by the query's id, which survives restarts, and the
batch's number. It identifies a batch write by txnAppId and txnVersion.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kproc.client import ClientError
from kproc.spark.brokers import Connecting, cluster_of
from kproc.spark.exactly_once import BatchCommit, PreparedTask
from kproc.spark.lane import ProducerIdentity
from kproc.spark.option_values import OptionError
from kproc.spark.producer import BatchProducer
from kproc.spark.sink_options import EXACTLY_ONCE, SinkOptions, parse_sink_options
from kproc.spark.sink_schema import check_schema
from kproc.spark.task_writer import TaskWriter, WriteFailed
from kproc.spark.transactions import OpenTransaction, Transactions
from kproc.spark.user_errors import sentence_first

logger = logging.getLogger(__name__)

_NAME: Final = "kproc-spark"
_BACKOFF_MS: Final = 10
# Time limit, in ms, for aborting transactions. If it is exceeded, they time out at the broker, or the next run aborts
# them.
_DROP_MS: Final = 5_000


@dataclass(frozen=True)
class PartitionWritten:
    """Totals that one task wrote to one partition. Offsets are -1 if the broker did not return them."""

    topic: str
    partition: int
    records: int
    bytes: int
    first_offset: int
    last_offset: int


@dataclass
class KprocCommitMessage(WriterCommitMessage):
    """A task's report to the driver about its rows. `query_id` and `batch_id` are None in a batch write."""

    query_id: str | None
    batch_id: int | None
    task: int
    attempt: int
    written: list[PartitionWritten] = field(default_factory=list)
    prepared: PreparedTask | None = None
    """The open transaction with the task's rows. None with delivery=at-least-once."""
    is_done: bool = False
    """True if the rows were committed before the task ran. The task then writes nothing."""
    is_decided: bool = False
    """True if the batch was decided before the task ran."""

    @property
    def records(self) -> int:
        """Number of acknowledged records."""
        return sum(row.records for row in self.written)


class MicroBatch(NamedTuple):
    """Query id and batch number. They identify a micro-batch over restarts of its query."""

    query_id: str | None
    batch_id: int | None


def current_micro_batch() -> MicroBatch:
    """Return the query and micro-batch of the running task.

    Both come from the TaskContext of Spark, because Spark's interface for writers does not pass them.
    """
    context = TaskContext.get()
    if context is None:
        return MicroBatch(None, None)
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return MicroBatch(query_id, None if batch_id is None else int(batch_id))


def batch_writer(options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> KprocBatchWriter:
    """Return the writer of `df.write`. Raise OptionError or SchemaError before any task runs."""
    if overwrite:
        raise OptionError("mode overwrite is not possible, a topic is only appended to: use mode('append')")
    return KprocBatchWriter(_checked(options, schema))


def stream_writer(options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> KprocStreamWriter:
    """Return the writer of `df.writeStream`.

    overwrite: True in the output mode complete. Each batch then appends all rows of the result, as with Spark's own
    connector, because records of a topic cannot be replaced.
    """
    return KprocStreamWriter(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: types.StructType) -> SinkOptions:
    parsed = parse_sink_options(options)
    check_schema(schema, parsed.topic)
    return parsed


# -- a task


_producers: dict[tuple[int, SinkOptions], BatchProducer] = {}


def _connecting(options: SinkOptions, *, backoff_ms: int) -> Connecting:
    settings = options.producer
    return Connecting(
        client_id=settings.client_id,
        connect_ms=settings.connect_ms,
        request_ms=settings.request_timeout_ms,
        backoff_ms=backoff_ms,
        backoff_ms_max=settings.backoff_ms_max,
        security=settings.security,
    )


def _acquire_producer(options: SinkOptions) -> BatchProducer:
    """Return this process's idle producer for these options, or a new one.

    Tasks of one process reuse a producer, and with it its connections and its producer id.
    """
    # The key contains the pid, because Spark's daemon forks its workers, and a child must not use its parent's sockets.
    producer = _producers.pop((os.getpid(), options), None)
    if producer is not None:
        return producer
    settings = options.producer
    connecting = _connecting(options, backoff_ms=settings.backoff_ms)
    return BatchProducer(cluster_of(options.bootstrap, connecting), settings)


def _release_producer(options: SinkOptions, producer: BatchProducer) -> None:
    """Keep the producer for this process's next task.

    Do not call this after a failed task, whose batches may be in flight.
    """
    _close_at_exit()
    _producers[os.getpid(), options] = producer


@cache
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for (pid, _), producer in _producers.items():
        # A forked child inherits this exit handler and its parent's producers, whose connections it must not close.
        if pid == os.getpid():
            producer.close()
    _producers.clear()


def _task_and_attempt() -> tuple[int, int]:
    """Return the number of the running task in its batch, and the number of its attempt."""
    context = TaskContext.get()
    return (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
    """Write a task's rows at least once. Return when the brokers have acknowledged all of them."""
    task, attempt = _task_and_attempt()
    producer = _acquire_producer(options)
    try:
        TaskWriter(options, producer, task).write(batches)
    except BaseException:
        producer.close()
        raise
    message = KprocCommitMessage(*current_micro_batch(), task, attempt, _written(producer))
    _release_producer(options, producer)
    return message


def _written(producer: BatchProducer) -> list[PartitionWritten]:
    return [
        PartitionWritten(topic, partition, row.records, row.bytes, row.first_offset, row.last_offset)
        for (topic, partition), row in sorted(producer.drain_totals().items())
    ]


# -- exactly once


class BatchIdentity(NamedTuple):
    """Name and number by which a batch is recognised when Spark runs it again.

    has_marks: False if a repetition cannot be recognised, because the write has a random name.
    """

    name: str
    batch: int
    has_marks: bool = True


def stream_write(query_id: str | None, batch_id: int | None) -> BatchIdentity:
    """Return the identity of a micro-batch. Raise WriteFailed if Spark does not provide it."""
    if query_id is None or batch_id is None:
        raise WriteFailed(
            f"delivery={EXACTLY_ONCE}: Spark does not tell the query's id and its batch's number"
        )
    return BatchIdentity(f"{_NAME}-{query_id}", batch_id)


def _transactions(options: SinkOptions, *, limit_ms: int | None = None) -> Transactions:
    assert options.exactly_once is not None
    # A coordinator needs some ms to write the markers of an ended transaction. Until then it rejects the next one with
    # CONCURRENT_TRANSACTIONS. So use short pauses between retries.
    connecting = _connecting(options, backoff_ms=min(options.producer.backoff_ms, _BACKOFF_MS))
    return Transactions(
        cluster_of(options.bootstrap, connecting),
        timeout_ms=options.exactly_once.timeout_ms,
        limit_ms=options.producer.delivery_timeout_ms if limit_ms is None else limit_ms,
    )


def write_task_once(
    options: SinkOptions, write: BatchIdentity, batches: Iterator[pa.RecordBatch], *, is_stream: bool
) -> KprocCommitMessage:
    """Write a task's rows into a transaction and leave it open. Write nothing if they are committed already.

    is_stream: read all rows even if none is written, because stateful operators save their state at the end of their
    input.
    """
    task, attempt = _task_and_attempt()
    message = KprocCommitMessage(*current_micro_batch(), task, attempt)
    transactions = _transactions(options)
    commit = BatchCommit(transactions, write.name, write.batch, has_marks=write.has_marks)
    message.is_done = commit.is_done(task)
    message.is_decided = commit.is_decided
    # Read up to the first row before a transaction is opened, because a task without rows must not open one.
    first = None if message.is_done else next((batch for batch in batches if batch.num_rows), None)
    identity = None if first is None else commit.start(task)
    if identity is None:
        # If the task has rows, `start` has found the mark of another attempt, which has committed them.
        message.is_done |= first is not None
        if is_stream:
            # Read and discard the rows, because Spark's stateful operators save their state only when their output is
            # read to its end.
            deque(batches, maxlen=0)
        return message
    assert first is not None
    producer = _acquire_producer(options)
    transaction = OpenTransaction(transactions, identity)
    try:
        producer.start_transaction(transaction)
        writer = TaskWriter(options, producer, task, has_digest=write.has_marks)
        writer.write(itertools.chain([first], batches))
        message.written = _written(producer)
        place = next(iter(transaction.places))
        message.prepared = commit.prepare(
            task, identity, place, records=message.records, digest=writer.digest
        )
    except BaseException:
        producer.close()
        _drop(options, write, identity)
        raise
    _release_producer(options, producer)
    return message


def _drop(options: SinkOptions, write: BatchIdentity, identity: ProducerIdentity) -> None:
    """Abort the transaction of a failed task.

    Without this, the next attempt or the timeout would abort the transaction, and readers of committed records would
    wait until then.
    """
    commit = BatchCommit(_transactions(options, limit_ms=_DROP_MS), write.name, write.batch)
    try:
        commit.abort_task(identity)
    except ClientError as error:
        logger.warning("the transaction %s stays open: %s", identity.transactional_id, error)


_swept: set[str] = set()


def commit_write(
    options: SinkOptions, write: BatchIdentity, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Commit the prepared transactions of a batch, in the driver.

    At this process's first batch of the write, also abort open transactions of earlier runs.
    """
    told = [message for message in messages if isinstance(message, KprocCommitMessage)]
    prepared = [message.prepared for message in told if message.prepared is not None]
    done = [message.task for message in told if message.is_done]
    transactions = _transactions(options)
    commit = BatchCommit(transactions, write.name, write.batch, has_marks=write.has_marks)
    if prepared or any(message.is_decided for message in told):
        commit.commit(prepared, done)
    if write.has_marks and write.name not in _swept:
        try:
            for name in commit.sweep(prepared):
                logger.info("aborted the open transaction %s of an earlier run", name)
            # Search for transactions of earlier runs once in each process, because no new ones appear while this run is
            # active.
            _swept.add(write.name)
        except ClientError as error:
            logger.warning(
                "open transactions of earlier runs of %s stay until they time out: %s", write.name, error
            )


def abort_write(
    options: SinkOptions, write: BatchIdentity, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Abort the prepared transactions of a batch, in the driver, unless the commit of the batch is already decided."""
    told = [message for message in messages if isinstance(message, KprocCommitMessage)]
    prepared = [message.prepared for message in told if message.prepared is not None]
    # Spark passes a message for each task, in their order, and None for a task that did not finish.
    failed = [task for task, message in enumerate(messages) if message is None]
    commit = BatchCommit(
        _transactions(options, limit_ms=_DROP_MS), write.name, write.batch, has_marks=write.has_marks
    )
    try:
        commit.abort(prepared, failed)
    except ClientError as error:
        logger.warning(
            "transactions of %s stay open until it runs again, or they time out: %s", write.name, error
        )


# -- classes that Spark calls


class KprocBatchWriter(DataSourceArrowWriter):
    """Writer of `df.write`. Spark creates it in the driver and pickles it into every task."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        once = options.exactly_once
        self._write: BatchIdentity | None = None
        if once is not None:
            # A write without txnAppId gets a random name, which only the attempts of its own tasks share. A repeated
            # write is not recognised.
            name = f"{_NAME}-{once.app_id or uuid.uuid4()}"
            self._write = BatchIdentity(name, once.version, has_marks=once.app_id is not None)

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
        """Write the rows of one task of a batch write. Return the task's report to the driver."""
        if self._write is None:
            return write_task(self.options, iterator)
        return write_task_once(self.options, self._write, iterator, is_stream=False)

    @sentence_first()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the transactions of all tasks.

        With at-least-once do nothing, because all records are acknowledged already.
        """
        if self._write is not None:
            commit_write(self.options, self._write, messages)
        logger.info("wrote %s", summary(messages))

    @sentence_first()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of all tasks.

        With at-least-once the acknowledged records stay in the append-only topic.
        """
        if self._write is not None:
            abort_write(self.options, self._write, messages)
            return
        logger.warning("write failed; partially written records remain in: %s", summary(messages))


class KprocStreamWriter(DataSourceStreamArrowWriter):
    """Writer of `df.writeStream`. Spark pickles it into each task, and creates another one for each commit."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
        """Write the rows of one task of a micro-batch."""
        if self.options.exactly_once is None:
            return write_task(self.options, iterator)
        return write_task_once(self.options, stream_write(*current_micro_batch()), iterator, is_stream=True)

    @sentence_first()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the transactions of a micro-batch. After a restart Spark can repeat this call for the same batch.

        With at-least-once all records are acknowledged already, and there is nothing to do.
        """
        if self.options.exactly_once is not None:
            commit_write(self.options, stream_write(_query_id(messages), batchId), messages)
        logger.info("batch %d: wrote %s", batchId, summary(messages))

    @sentence_first()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the transactions of a micro-batch.

        With at-least-once its acknowledged records stay, and Spark's next run writes the rows again.
        """
        if self.options.exactly_once is None:
            logger.warning(
                "batch %d failed; partially written records remain in: %s", batchId, summary(messages)
            )
        elif (query_id := _query_id(messages)) is not None:
            abort_write(self.options, stream_write(query_id, batchId), messages)


def _query_id(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """Return the query's id from the tasks' reports, or None if no task has reported."""
    told = [message for message in messages if isinstance(message, KprocCommitMessage)]
    return next((message.query_id for message in told), None)


def summary(messages: Sequence[WriterCommitMessage | None]) -> dict[str, Any]:
    """Return the totals of a write: number of tasks that reported, and records and bytes by topic."""
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
