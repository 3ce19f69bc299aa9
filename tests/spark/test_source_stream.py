"""`spark.readStream.format("kproc")` in real queries: crashes, limits, new partitions, a broker that goes and comes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from bench.peers.base import free_ports
from tests.spark.streams import BATCH_SECONDS, Stream, numbered, send
from tests.support.broker import BrokerUnderTest, ServedBroker
from tests.support.topics import TopicFactory
from tests.support.wait import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.transports("process")


def test_stream_restart_with_latest_loses_nothing(
    spark: SparkSession, broker: BrokerUnderTest, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    send(broker.bootstrap, name, numbered(0, 100))
    stream = Stream(
        spark, tmp_path, broker.bootstrap, subscribe=name, startingOffsets="latest", maxOffsetsPerTrigger=40
    )
    # The first batch is planned, empty, and dies before it is committed.
    stream.fails_in_batch = 0
    assert "this batch is to fail" in stream.fail()
    stream.fails_in_batch = None
    send(broker.bootstrap, name, numbered(100, 90))
    assert sorted(stream.run()) == numbered(100, 90)
    assert max(stream.batches) <= 41

    # It goes on from its checkpoint: new records, and a partition that was not there.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(name, 3)])[name].result(PATIENCE_SECONDS)
    wait_until(
        lambda: len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 3,
        what="a third partition",
    )
    send(broker.bootstrap, name, numbered(190, 5))
    send(broker.bootstrap, name, numbered(195, 5), partition=2)
    assert sorted(stream.run()) == numbered(190, 10)

    # Nothing new: no batch at all, because the offsets are the same to the letter.
    batches = len(stream.batches)
    assert stream.run() == []
    assert len(stream.batches) == batches
    assert sorted(stream.values) == numbered(100, 100)


def test_a_running_query_rides_over_a_restart_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    with ServedBroker(tmp_path / "data", port=free_ports(1)[0]) as served:
        name = TopicFactory(served.bootstrap)()
        send(served.bootstrap, name, numbered(0, 50))
        stream = Stream(spark, tmp_path, served.bootstrap, subscribe=name, startingOffsets="earliest")
        query = stream.start(trigger="200 milliseconds")
        try:
            wait_until(lambda: len(stream.values) == 50, seconds=BATCH_SECONDS, what="the first records")
            served.stop()
            served.start()
            send(served.bootstrap, name, numbered(50, 50))
            wait_until(
                lambda: len(stream.values) >= 100, seconds=BATCH_SECONDS, what="records after the restart"
            )
            assert query.isActive
            newest = wait_until(lambda: query.lastProgress, what="progress")["sources"][0]
            assert newest["latestOffset"] is not None
        finally:
            query.stop()
        assert stream.values == numbered(0, 100)
