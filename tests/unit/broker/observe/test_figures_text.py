"""Series of topics and partitions in Prometheus' text are bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.observe.broker_figures import ShownKeys
from kproc.broker.observe.figures_text import OTHERS
from tests.support.broker_figures_rig import Rig, Samples, reply


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(labels.items())]


IN = "kafka_server_brokertopicmetrics_messagesin_total"


def test_topics_without_a_series_of_their_own_are_together_one(rig: Rig) -> None:
    rig.figures.topics = ShownKeys(2)
    for name in ("a", "b", "c", "d"):
        rig.create(name)
    traffic = {name: [1, 1, 1, 1] for name in "abcd"}
    samples = rig.scrape(reply(traffic=traffic, sizes={"c": [0, 100, 1], "a": [0, 7, 1]}), reply())
    shown = {dict(labels)["topic"]: value for (name, labels), value in samples.items() if name == IN}
    assert shown == {"a": 1, "b": 1, OTHERS: 2}
    assert of(samples, "kproc_metrics_left_out", of="topics") == 2
    assert of(samples, "kproc_topic_log_bytes", topic=OTHERS) == 100
    assert of(samples, "kproc_topic_partitions", topic=OTHERS) == 2
    rig.image.apply_records([r.TopicDeleted(b"a".ljust(16, b"."))], rig.image.version + 1)
    samples = rig.scrape(reply(traffic={name: [2, 2, 2, 2] for name in "bcd"}), reply())
    shown = {dict(labels)["topic"]: value for (name, labels), value in samples.items() if name == IN}
    assert shown == {"b": 2, "c": 0, OTHERS: 4}, "a place is free"
    samples = rig.scrape(reply(traffic={name: [3, 3, 3, 3] for name in "bcd"}), reply())
    shown = {dict(labels)["topic"]: value for (name, labels), value in samples.items() if name == IN}
    assert shown == {"b": 3, "c": 1, OTHERS: 5}, "what was counted once is not counted again"


def test_partitions_are_bounded_and_keep_their_series(rig: Rig) -> None:
    """A log without records takes no place. The first logs with records have one until they are deleted."""
    rig.figures.partitions = ShownKeys(2)
    rig.create("t", 5)

    def ends() -> dict[str, float]:
        return {
            dict(labels)["partition"]: value
            for (name, labels), value in samples.items()
            if "logendoffset" in name
        }

    rig.open("t", 1, 4, 9)
    samples = rig.scrape(reply(sizes={"t": [1, 500, 2]}), reply())
    assert ends() == {"1": 9}
    assert of(samples, "kproc_metrics_left_out", of="partitions") == 0
    for index in (2, 0, 3):
        rig.ends["t", index] = (0, 10 + index)
        samples = rig.scrape(reply(sizes={"t": [1, 500, 2]}), reply())
    assert ends() == {"1": 9, "2": 12}
    assert of(samples, "kafka_log_log_logstartoffset", topic="t", partition="1") == 4
    assert of(samples, "kafka_log_log_size", topic="t", partition="1") == 500
    assert of(samples, "kproc_metrics_left_out", of="partitions") == 2
    assert of(samples, "kafka_server_replicamanager_partitioncount") == 5
