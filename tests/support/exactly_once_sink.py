"""Brokers for the exactly-once sink, and what a reader of committed records gets from its topic."""

from __future__ import annotations

import time
from collections import Counter

from tests.support.kafka_jars import short_lived_jvm
from tests.support.spark_kills import PARTITIONS
from tests.support.topics import wait_for_markers

READ_SECONDS = 300.0
JVM = ("-Xmx512m", "-Xms256m", *short_lived_jvm())
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "controller.quorum.append.linger.ms": "0",
}


def read_committed(bootstrap: str, topic: str) -> Counter[bytes]:
    """Return how often each value was committed to the topic. Each record must have its value as its key."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    wait_for_markers(bootstrap, topic, partitions=PARTITIONS)

    settings = {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    found: Counter[bytes] = Counter()
    try:
        left = set(range(PARTITIONS))
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + READ_SECONDS
        while left and time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=1.0):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition())
                    continue
                assert message.key() == message.value()
                found[message.value()] += 1
        assert not left
    finally:
        consumer.close()
    return found
