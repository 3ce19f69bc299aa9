"""The two deliveries of a DataFrame's rows. In executors they write a task's rows, in the driver they end the batch.

At least once: if a task or its executor dies, Spark runs the task again, and it writes its rows again. If a connection
fails after the broker stored a batch, the batch is stored once, because the producer is idempotent.

Exactly once: each task leaves its rows in an open transaction, and the driver commits those of all tasks. The protocol
and its recovery are in `exactly_once`. It identifies a micro-batch by the query's id, which survives restarts, and the
batch's number. It identifies a batch write by txnAppId and txnVersion.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kproc.client import ClientError
from kproc.spark.brokers import cluster_of
from kproc.spark.commit_message import KprocCommitMessage, PartitionWritten, current_micro_batch
from kproc.spark.exactly_once import BatchCommit
from kproc.spark.lane import ProducerIdentity
from kproc.spark.producer import BatchProducer
from kproc.spark.producer_pool import acquire_producer, connecting_of, release_producer
from kproc.spark.sink_options import EXACTLY_ONCE, ExactlyOnce, SinkOptions
from kproc.spark.task_writer import TaskWriter, WriteFailed
from kproc.spark.transactions import OpenTransaction, Transactions

logger = logging.getLogger(__name__)

_NAME: Final = "kproc-spark"
_BACKOFF_MS: Final = 10
# Time limit, in ms, for aborting transactions. If it is exceeded, they time out at the broker, or the next run aborts
# them.
_DROP_MS: Final = 5_000


# -- at least once


def _task_and_attempt() -> tuple[int, int]:
    """Return the number of the running task in its batch, and the number of its attempt."""
    context = TaskContext.get()
    return (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> KprocCommitMessage:
    """Write a task's rows at least once. Return when the brokers have acknowledged all of them."""
    task, attempt = _task_and_attempt()
    producer = acquire_producer(options)
    try:
        TaskWriter(options, producer, task).write(batches)
    except BaseException:
        producer.close()
        raise
    message = KprocCommitMessage(*current_micro_batch(), task, attempt, _written(producer))
    release_producer(options, producer)
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


def batch_write(once: ExactlyOnce) -> BatchIdentity:
    """Return the identity of a batch write. Its name is random without txnAppId."""
    # A write without txnAppId gets a random name, which only the attempts of its own tasks share. A repeated write is
    # not recognised.
    return BatchIdentity(
        f"{_NAME}-{once.app_id or uuid.uuid4()}", once.version, has_marks=once.app_id is not None
    )


def stream_write(query_id: str | None, batch_id: int | None) -> BatchIdentity:
    """Return the identity of a micro-batch. Raise WriteFailed if Spark does not provide query id and batch number."""
    if query_id is None or batch_id is None:
        raise WriteFailed(
            f"delivery={EXACTLY_ONCE}: Spark did not give the id of the query and the number of the batch"
        )
    return BatchIdentity(f"{_NAME}-{query_id}", batch_id)


def _transactions(options: SinkOptions, *, limit_ms: int | None = None) -> Transactions:
    assert options.exactly_once is not None
    # A coordinator needs some ms to write the markers of an ended transaction. Until then it rejects the next one with
    # CONCURRENT_TRANSACTIONS. So use short pauses between retries.
    connecting = connecting_of(options, backoff_ms=min(options.producer.backoff_ms, _BACKOFF_MS))
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
    rows = itertools.chain([first], batches)
    _write_transaction(options, write, commit, OpenTransaction(transactions, identity), rows, message)
    return message


def _write_transaction(
    options: SinkOptions,
    write: BatchIdentity,
    commit: BatchCommit,
    transaction: OpenTransaction,
    rows: Iterator[pa.RecordBatch],
    message: KprocCommitMessage,
) -> None:
    """Write a task's rows into its transaction, and prepare the commit. Abort the transaction if this fails.

    Store what was written and prepared in `message`.
    """
    producer = acquire_producer(options)
    try:
        producer.start_transaction(transaction)
        writer = TaskWriter(options, producer, message.task, has_digest=write.has_marks)
        writer.write(rows)
        message.written = _written(producer)
        place = next(iter(transaction.places))
        message.prepared = commit.prepare(
            message.task, transaction.identity, place, records=message.records, digest=writer.digest
        )
    except BaseException:
        producer.close()
        _drop(options, write, transaction.identity)
        raise
    release_producer(options, producer)


def _drop(options: SinkOptions, write: BatchIdentity, identity: ProducerIdentity) -> None:
    """Abort the transaction of a failed task.

    Without this, the next attempt or the timeout would abort the transaction, and readers of committed records would
    wait until then.
    """
    commit = BatchCommit(_transactions(options, limit_ms=_DROP_MS), write.name, write.batch)
    try:
        commit.abort_task(identity)
    except ClientError as error:
        logger.warning(
            "the transaction %s stays open until it times out or the task runs again: %s",
            identity.transactional_id,
            error,
        )


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
            "open transactions of %s stay until its batch runs again or they time out: %s", write.name, error
        )
