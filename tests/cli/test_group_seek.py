"""`kproc group seek` against a running broker."""

from __future__ import annotations

import json
import subprocess

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.command_line import Kproc
from tests.support.topics import fresh_name

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]


def told(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def described(answer: subprocess.CompletedProcess[str]):
    return json.loads(told(answer))


@pytest.fixture
def filled(broker, topic) -> str:
    """A topic of two partitions with ten records in each."""
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce(name, b"%d" % number, partition=number % 2)
    assert producer.flush(10) == 0
    return name


@pytest.fixture
def group(broker, filled) -> str:
    """A group without members that has committed offset 7 in partition 0 and 3 in partition 1."""
    name = fresh_name()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    consumer.commit(offsets=[TopicPartition(filled, 0, 7), TopicPartition(filled, 1, 3)], asynchronous=False)
    consumer.close()
    return name


def offsets(kproc: Kproc, group: str) -> dict[int, int]:
    [row] = described(kproc(f"group describe {group} --format json"))
    return {each["partition"]: each["committed"] for each in row["partitions"]}


def test_group_seek_without_execute_changes_nothing(kproc, filled, group):
    shown = told(kproc(f"group seek {group} --to beginning"))
    assert "nothing was changed" in shown
    assert offsets(kproc, group) == {0: 7, 1: 3}
    told(kproc(f"group seek {group} --to beginning --execute"))
    assert offsets(kproc, group) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("--to end", {0: 10, 1: 10}),
        ("--to 5", {0: 5, 1: 5}),
        ("--to=-4", {0: 6, 1: 6}),
        ("--to 99", {0: 10, 1: 10}),
        ("--to @0", {0: 0, 1: 0}),
        ("--to 2999-01-01", {0: 10, 1: 10}),
        ("--shift=-2", {0: 5, 1: 1}),
        ("--shift=-9", {0: 0, 1: 0}),
        ("--shift 2 --topic {topic}:1", {0: 7, 1: 5}),
    ],
)
def test_group_seek_targets_stay_within_the_log(kproc, filled, group, where, expected):
    told(kproc(f"group seek {group} {where.format(topic=filled)} --execute"))
    assert offsets(kproc, group) == expected
