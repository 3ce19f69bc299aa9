"""The fixture that runs commands on the shared broker."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kproc.common.clock import SystemClock
from tests.support import hostile
from tests.support.broker import BrokerUnderTest
from tests.support.command_line import Kproc, call_kproc
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

PILL = hostile.record(b"\0\0\0\x7e\2v\0")


@pytest.fixture
def kproc(broker: BrokerUnderTest, capsys: pytest.CaptureFixture[str]) -> Kproc:
    """`kproc("topic list", stdin="...")` on the shared broker: what it wrote, and its exit code."""

    def call(command: str, *more: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return call_kproc(capsys, *command.split(), *more, "--bootstrap", broker.bootstrap, stdin=stdin)

    return call


@pytest.fixture
def filled(broker, topic) -> str:
    """A topic of two partitions with ten records in each."""
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce(name, b"%d" % number, partition=number % 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return name


@pytest.fixture
def group(broker, filled) -> str:
    """A group without members that has committed offset 7 in partition 0 and 3 in partition 1."""
    name = fresh_name()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    consumer.commit(offsets=[TopicPartition(filled, 0, 7), TopicPartition(filled, 1, 3)], asynchronous=False)
    consumer.close()
    return name


@pytest.fixture
def damaged_topic(broker: BrokerUnderTest) -> str:
    """A topic with a batch between two good ones whose only record has a key that runs past its end."""
    name = fresh_name("pill")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name)
        for each in (
            batch(b"one"),
            bytes(hostile.sealed(PILL, now_ms=SystemClock().wall_ms())),
            batch(b"two"),
        ):
            assert client.produce(name, each)["error_code"] == 0
    return name
