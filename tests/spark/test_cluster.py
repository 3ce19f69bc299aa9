"""`master = "spark://..."`: executors that have neither kproc nor our functions installed get both from the driver."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.broker import ROOT, run_kproc
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_session import missing_reason
from tests.support.topics import TopicFactory
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.transports("process")]
RECORDS = 200
RUN_SECONDS = 400.0

SPEC = """
[pipeline]
name = "cluster"
checkpoint = "state"
trigger = "available-now"

[spark]
master = "{master}"
executor_memory = "512m"
conf."spark.cores.max" = 2

[[source]]
name = "numbers"
topic = "{source}"
starting = "earliest"
key_type = "string"
value_type = "long"

[[transform]]
name = "squares"
python = "steps.py:squared"
inputs = ["numbers"]

[[sink]]
name = "out"
input = "squares"
topic = "{target}"
key = "key"
value = "square"
"""
STEPS = """
from pyspark.sql import functions as f


def square(number: int) -> int:
    return number * number


def squared(numbers):
    return numbers.select("key", f.udf(square, "long")("value").alias("square"))
"""


def test_pipeline_on_cluster_ships_its_own_modules(broker, tmp_path: Path) -> None:
    reason = missing_reason()
    if reason is not None:
        pytest.skip(reason)
    source, target = (TopicFactory(broker.bootstrap)(partitions=2) for _ in range(2))
    numbers = "".join(f"k{number}:{number}\n" for number in range(RECORDS))
    made = run_kproc(
        "produce", source, "--key-separator", ":", "--bootstrap", broker.bootstrap, stdin=numbers
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    with standalone_cluster(tmp_path) as cluster:
        spec = tmp_path / "cluster.toml"
        spec.write_text(SPEC.format(master=cluster.master, source=source, target=target), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "kproc",
            "pipeline",
            "run",
            str(spec),
            "--bootstrap",
            broker.bootstrap,
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr + cluster.logs()
        assert all(cluster.executors()), "both workers had an executor"
    assert consumed(broker.bootstrap, target) == {f"k{number}": number * number for number in range(RECORDS)}


def consumed(bootstrap: str, topic: str) -> dict[str, int]:
    """Values by key of all records of a topic up to its end, which can be a transaction's marker; each key once."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    found: dict[str, int] = {}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        ended = 0
        while ended < 2:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended += 1
                continue
            assert message.key().decode() not in found
            found[message.key().decode()] = int(message.value())
    return found
