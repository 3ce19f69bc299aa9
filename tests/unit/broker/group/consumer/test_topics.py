"""The hash of subscribed topics, which must be Kafka's so that a group that moves needs no rebalance (KIP-848)."""

from __future__ import annotations

import tracemalloc

from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.group.consumer.topics import TopicView


def cluster(**partition_counts: int) -> ClusterImage:
    image = ClusterImage()
    for name, count in partition_counts.items():
        partitions = [PartitionImage(index, index, 0, 0, 0) for index in range(count)]
        topic = TopicImage(name, bytes(range(16)), partitions, {}, [0])
        image.topics_by_name[name] = image.topics_by_id[topic.topic_id] = topic
    return image


def test_metadata_hash_equals_that_of_kafka() -> None:
    """The number was computed by hash4j 0.22 with the steps of Kafka 4.3's Utils.computeTopicHash."""
    image = cluster(orders=3)
    assert TopicView(lambda: image).metadata_hash(["orders", "missing"]) == 3091374266733325672


def test_metadata_hash_changes_with_partitions() -> None:
    image = cluster(orders=3)
    view = TopicView(lambda: image)
    before = view.metadata_hash(["orders"])
    image = cluster(orders=4)
    assert view.metadata_hash(["orders"]) != before
    assert view.metadata_hash(["missing"]) == 0


def test_deleted_topics_take_no_memory() -> None:
    """An application can create and delete a topic for each of its runs, and each group that reads it hashes it."""
    image = ClusterImage()
    view = TopicView(lambda: image)
    partitions = [PartitionImage(0, 0, 0, 0, 0)]

    def recreate(number: int) -> None:
        topic = TopicImage("orders", number.to_bytes(16, "big"), partitions, {}, [0])
        image.topics_by_name, image.topics_by_id = {"orders": topic}, {topic.topic_id: topic}
        assert view.metadata_hash(["orders"])

    recreate(0)
    tracemalloc.start()
    try:
        for number in range(1, 2_000):
            recreate(number)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()


def test_partitions_by_name_and_id_leave_out_missing_topics() -> None:
    image = cluster(orders=3)
    view = TopicView(lambda: image)
    numbers = frozenset({1})
    assert view.by_id({"orders": numbers, "missing": numbers}) == {bytes(range(16)): numbers}
    assert view.by_name({bytes(range(16)): numbers, bytes(16): numbers}) == {"orders": numbers}
