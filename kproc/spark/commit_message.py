"""KprocCommitMessage: a task's report to the driver, which Spark pickles and passes to `commit` and `abort`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kproc.spark.exactly_once import PreparedTask


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


def query_id_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """Return the query's id from the tasks' reports, or None if no task has reported."""
    told = [message for message in messages if isinstance(message, KprocCommitMessage)]
    return next((message.query_id for message in told), None)


def summary(messages: Sequence[WriterCommitMessage | None]) -> dict[str, Any]:
    """Return the query's id and the totals of a write: tasks that reported, and records and bytes by topic."""
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
