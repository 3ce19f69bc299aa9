"""BrokerFigures: what Handlers answered, as series that are bounded, go on over restarts and never count twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kproc.broker.calls.calls import Lost
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.observe import broker_figures
from kproc.broker.observe.broker_figures import BrokerFigures, Group, HandlerFigures, ShownKeys
from kproc.broker.observe.figures_text import OTHERS, figures_text
from kproc.broker.role.partition_table import ROW_WORDS, PartitionTable, holder_word
from kproc.common.clock import ManualClock

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Rig:
    """Figures of a broker with two Handlers that answer when they are told to."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.image = ClusterImage()
        self.image.handler_count = 2
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * 4096)).cast("Q"))
        self.asked: dict[int, Callable[[HandlerFigures | Lost], None]] = {}
        self.ends: dict[tuple[str, int], tuple[int, int]] = {}
        self.directory = directory
        self.figures = BrokerFigures(
            clock=self.clock,
            directory=directory,
            image=lambda: self.image,
            table=self.table,
            ask=lambda index, _call, _body, on_reply: self.asked.__setitem__(index, on_reply),
            known_ends=self,
        )

    def refresh(self) -> None:
        """As KnownEnds."""

    def get(self, topic_id: bytes, partition: int) -> tuple[int, int]:
        """As KnownEnds."""
        return self.ends.get((topic_id.decode().rstrip("."), partition), (0, 0))

    def create(self, name: str, partitions: int = 1) -> None:
        topic_id = name.encode().ljust(16, b".")
        zeros = (0,) * partitions
        first = self.image.partition_count
        slots = tuple(range(first, first + partitions))
        self.image.apply_records(
            [r.TopicCreated(name, topic_id), r.PartitionsAdded(topic_id, 0, zeros, slots, zeros)],
            self.image.version + 1,
        )

    def open(self, topic: str, index: int, start: int, end: int) -> None:
        partition = self.image.partition(topic, index)
        assert partition is not None
        self.table.writer(partition.slot).publish(
            (holder_word(0), partition.slot_generation, start, end, 0, 0, end, end)
        )

    def scrape(self, *replies: HandlerFigures | Lost) -> Samples:
        """Gather, with what Handler 0, 1 ... answer; those without an answer stay silent."""
        done: list[bool] = []
        self.figures.gather(lambda: done.append(True))
        for index, reply in enumerate(replies):
            self.asked.pop(index)(reply)
        for _ in range(1000):
            self.figures.work()
            if done:
                break
        else:
            self.clock.advance_ms(2000)
            self.figures.work()
        assert done == [True]
        return {
            (sample.name, tuple(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(figures_text(self.figures).decode())
            for sample in family.samples
        }


def reply(since: int = 1, **changes: Any) -> HandlerFigures:
    groups = [Group(*row) for row in changes.pop("groups", ())]
    return HandlerFigures(
        **{
            "since": since,
            "traffic": {},
            "sizes": {},
            "offline": 0,
            "groups": groups,
            "more_groups": {},
            **changes,
        }
    )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(labels.items())]


IN, OUT = "kafka_server_brokertopicmetrics_messagesin_total", "kafka_server_brokertopicmetrics_bytesout_total"


def test_handler_counts_are_summed_and_continue_after_restart(rig: Rig) -> None:
    rig.create("t", 2)
    samples = rig.scrape(reply(1, traffic={"t": [10, 5, 7, 1]}), reply(1, traffic={"t": [1, 1, 0, 0]}))
    assert (of(samples, IN, topic="t"), of(samples, OUT, topic="t")) == (6, 7)
    samples = rig.scrape(reply(2, traffic={"t": [40, 20, 0, 0]}), reply(1, traffic={"t": [2, 2, 0, 0]}))
    assert of(samples, IN, topic="t") == 27, "5 of the dead one, 20 of its successor, 2"
    samples = rig.scrape(reply(2, traffic={"t": [41, 21, 0, 0]}), Lost())
    assert of(samples, IN, topic="t") == 28, "whoever is away keeps what it had counted"


def test_topic_made_anew_under_its_name_counts_no_backwards_step(rig: Rig) -> None:
    rig.create("t")
    rig.scrape(reply(traffic={"t": [10, 10, 0, 0]}), reply())
    samples = rig.scrape(reply(traffic={"t": [3, 3, 0, 0]}), reply())
    assert of(samples, IN, topic="t") == 13


def test_hung_handler_is_counted_and_polled_after_it_answered(rig: Rig) -> None:
    rig.create("t")
    rig.scrape(reply(traffic={"t": [1, 1, 0, 0]}), reply(traffic={"t": [2, 2, 0, 0]}))
    samples = rig.scrape(reply(traffic={"t": [5, 5, 0, 0]}))
    assert of(samples, "kproc_metrics_silent_handlers") == 1
    assert of(samples, IN, topic="t") == 7
    late = rig.asked[1]
    rig.asked.clear()
    rig.scrape(reply())
    assert 1 not in rig.asked, "its question of before is still open"
    late(reply(traffic={"t": [4, 4, 0, 0]}))
    samples = rig.scrape(reply(), reply(traffic={"t": [4, 4, 0, 0]}))
    assert of(samples, "kproc_metrics_silent_handlers") == 0


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
    rig.figures.partitions = ShownKeys(3)
    rig.create("t", 5)
    rig.open("t", 1, 4, 9)
    samples = rig.scrape(reply(sizes={"t": [1, 500, 2]}), reply())
    ends = {
        dict(labels)["partition"]: value
        for (name, labels), value in samples.items()
        if "logendoffset" in name
    }
    assert ends == {"0": 0, "1": 9, "2": 0}
    assert of(samples, "kafka_log_log_logstartoffset", topic="t", partition="1") == 4
    assert of(samples, "kafka_log_log_size", topic="t", partition="1") == 500
    assert of(samples, "kproc_metrics_left_out", of="partitions") == 2
    assert of(samples, "kafka_server_replicamanager_partitioncount") == 5


def test_unopened_log_size_is_that_of_files_and_counted_once(rig: Rig) -> None:
    rig.create("t", 2)
    directory = rig.directory / "t-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(bytes(123))
    (directory / "00000000000000000000.index").write_bytes(bytes(50))
    rig.ends["t", 0] = (3, 8)
    samples = rig.scrape(reply(), reply())
    assert of(samples, "kafka_log_log_size", topic="t", partition="0") == 123
    assert of(samples, "kafka_log_log_logendoffset", topic="t", partition="0") == 8
    assert of(samples, "kproc_topic_log_bytes", topic="t") == 123
    rig.open("t", 0, 3, 8)
    samples = rig.scrape(reply(sizes={"t": [0, 130, 1]}), reply())
    assert of(samples, "kproc_topic_log_bytes", topic="t") == 130


def test_lag_is_per_partition_and_topic_with_maximum_of_groups(rig: Rig) -> None:
    rig.figures.group_topics = ShownKeys(1)
    rig.create("t", 2)
    rig.open("t", 0, 0, 100)
    rig.ends["t", 1] = (0, 10)
    groups = [['g"1', "Stable", 2, {"t": {0: 90, 1: 10}}], ["g2", "Empty", 0, {"t": {0: 1}, "gone": {0: 5}}]]
    samples = rig.scrape(reply(groups=groups), reply())
    lag = {"consumergroup": 'g"1', "topic": "t"}
    assert of(samples, "kafka_consumergroup_lag_sum", **lag) == 10
    assert of(samples, "kafka_consumergroup_lag", **lag, partition="0") == 10
    assert of(samples, "kafka_consumergroup_lag", **lag, partition="1") == 0
    assert of(samples, "kafka_consumergroup_current_offset", **lag, partition="0") == 90
    assert of(samples, "kafka_consumergroup_members", consumergroup='g"1') == 2
    assert of(samples, "kproc_consumergroup_lag_largest") == 99
    assert of(samples, "kproc_metrics_left_out", of="group_topics") == 2
    manager = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    assert (of(samples, manager), of(samples, manager + "stable"), of(samples, manager + "empty")) == (
        2,
        1,
        1,
    )


def test_many_partitions_are_looked_up_in_slices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Path] = []

    def size(path: Path) -> int:
        looked_up.append(path)
        return 1

    monkeypatch.setattr(broker_figures, "log_bytes", size)
    rig.create("t", 200)
    rig.figures.gather(lambda: None)
    rig.figures.work()
    assert 0 < len(looked_up) < 200
    assert rig.figures.due_ms(rig.clock.now_ns()) == 0
    rig.scrape(reply(), reply())
    assert len(looked_up) == 200
    rig.scrape(reply(), reply())
    assert len(looked_up) == 200, "once"
