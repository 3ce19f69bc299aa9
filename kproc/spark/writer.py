"""Writers of DataFrames to topics: `df.write` and `df.writeStream` with `format("kproc")`.

    executors   write(iterator of Arrow batches)   rows -> columns -> partitions -> record batches -> BatchProducer
    driver      commit(messages), abort(messages)  at least once: nothing to do; exactly once: end the transactions

delivery.py has the two deliveries, at least once and exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kproc.spark.commit_message import KprocCommitMessage, current_micro_batch, query_id_of, summary
from kproc.spark.delivery import (
    abort_write,
    batch_write,
    commit_write,
    stream_write,
    write_task,
    write_task_once,
)
from kproc.spark.option_values import OptionError
from kproc.spark.sink_options import SinkOptions, parse_sink_options
from kproc.spark.sink_schema import check_schema
from kproc.spark.user_errors import sentence_first

logger = logging.getLogger(__name__)


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


class KprocBatchWriter(DataSourceArrowWriter):
    """Writer of `df.write`. Spark creates it in the driver and pickles it into every task."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        once = options.exactly_once
        self._write = None if once is None else batch_write(once)

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
            commit_write(self.options, stream_write(query_id_of(messages), batchId), messages)
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
        elif (query_id := query_id_of(messages)) is not None:
            abort_write(self.options, stream_write(query_id, batchId), messages)
