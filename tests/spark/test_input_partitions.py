"""Input partitions: with maxPartitions small ranges share a task, and every record is read once."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import InputPartition

from kproc.spark.input_partitions import TopicRanges, input_partitions
from kproc.spark.offsets import Range, TopicPartition
from tests.spark.streams import numbered, send
from tests.support.broker import BrokerUnderTest
from tests.support.spark_readers import batch, stream, values
from tests.support.topics import TopicFactory

pytestmark = [pytest.mark.transports("process"), pytest.mark.usefixtures("own_connections")]


def test_max_partitions_shares_tasks_among_small_ranges() -> None:
    sizes = (5, 1, 100, 1, 1, 4)
    ranges = [Range(TopicPartition("t", number), 7, 7 + size) for number, size in enumerate(sizes)]
    # The large range has a task of its own, and the others share the second one.
    shared = input_partitions(ranges, {"t": b"id"}, tasks_max=2)
    assert [repr(each) for each in shared] == [
        "t-2[7..107)",
        "t-0[7..12), t-1[7..8), t-3[7..8), t-4[7..8), t-5[7..11)",
    ]
    assert isinstance(shared[1], TopicRanges)
    assert [part.topic_id for part in shared[1].parts] == [b"id"] * 5
    # Spark pickles them, and a batch that runs again has the same tasks.
    assert pickle.dumps(shared) == pickle.dumps(input_partitions(ranges, {"t": b"id"}, tasks_max=2))
    assert len(input_partitions(ranges, {}, tasks_max=6)) == len(input_partitions(ranges, {}, tasks_max=None)) == 6
    assert input_partitions([], {}, tasks_max=2) == []


def test_task_with_several_ranges_reads_all_of_them(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic(partitions=5)
    for partition in range(5):
        send(broker.bootstrap, name, numbered(10 * partition, 3), partition=partition)
    written = sorted(value for partition in range(5) for value in numbered(10 * partition, 3))
    table = batch(broker.bootstrap, subscribe=name, maxPartitions="2")
    tasks = pickle.loads(pickle.dumps(table.partitions()))
    assert len(tasks) == 2
    assert sorted(values(table, tasks)) == written
    reader = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest", maxPartitions=1)
    start = reader.initialOffset()
    [task] = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert sorted(values(reader, [task])) == written
    # Without ranges Spark creates one task by itself.
    assert values(table, [InputPartition(None)]) == []
