"""Spark's input partitions of the source: each is the work of one task, one range of a topic or several small ones.

The driver creates them when it plans a batch, and Spark pickles them into the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kproc.spark.offsets import Range, TopicIds, combined
from kproc.spark.options import SourceOptions
from kproc.spark.task import read_range

if TYPE_CHECKING:
    import pyarrow as pa


class TopicRange(InputPartition):
    """One range of one partition, and the id that its topic had when the range was planned."""

    def __init__(self, wanted: Range, topic_id: bytes | None = None) -> None:
        super().__init__(tuple(wanted))
        self.wanted = wanted
        self.topic_id = topic_id

    def __repr__(self) -> str:
        return f"{self.wanted.partition}[{self.wanted.start}..{self.wanted.end})"


class TopicRanges(InputPartition):
    """The small ranges that share a task because of maxPartitions. The task reads them one after the other."""

    def __init__(self, parts: Sequence[TopicRange]) -> None:
        super().__init__(tuple(each.value for each in parts))
        self.parts = tuple(parts)

    def __repr__(self) -> str:
        return ", ".join(map(repr, self.parts))


def input_partitions(
    pieces: Sequence[Range], ids: TopicIds, *, tasks_max: int | None
) -> list[TopicRange | TopicRanges]:
    """Return the work of each task. tasks_max: the option maxPartitions."""
    tasks = [
        [TopicRange(each, ids.get(each.partition.topic)) for each in task]
        for task in combined(pieces, tasks_max)
    ]
    return [task[0] if len(task) == 1 else TopicRanges(task) for task in tasks]


def read_partition(
    options: SourceOptions, columns: Sequence[str], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Return the records of a task.

    If the read has no ranges, Spark still creates one task, whose partition has no range. It has no records.
    """
    parts: tuple[TopicRange, ...] = ()
    if isinstance(partition, TopicRange):
        parts = (partition,)
    elif isinstance(partition, TopicRanges):
        parts = partition.parts
    elif partition.value is not None:
        raise TypeError(f"{partition!r} is not a range of a topic")
    return chain.from_iterable(read_range(options, columns, part.wanted, part.topic_id) for part in parts)
