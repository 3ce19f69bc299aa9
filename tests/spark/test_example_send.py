"""The example's events through a broker, without Spark: each is read back from its partition."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from examples.clicks.events import END_MS, Events
from examples.clicks.run import INPUTS, Clicks
from examples.clicks.send import PARTITIONS, EventSender
from examples.clicks.verify import read_topic
from kproc.pipeline.errors import PipelineError
from kproc.spark.brokers import Cluster
from tests.support.broker import EmbeddedBroker

RECORDS = 20_000


@pytest.mark.long
def test_demo_events_arrive_once_in_new_topics(tmp_path: Path) -> None:
    settings = {"log.retention.check.interval.ms": 100}  # The events are older than the default retention.
    with EmbeddedBroker(transport="process", settings=settings) as broker:
        example = Clicks(broker.bootstrap, tmp_path, RECORDS, prefix="x.", environ={}, note=lambda _text: None)
        example.make_topics()
        with pytest.raises(PipelineError, match=r"x\.views exists already"):
            example.make_topics()
        events = Events(RECORDS)
        counts: list[dict[str, int]] = []
        EventSender(broker.bootstrap, {name: f"x.{name}" for name in INPUTS}, events).run(counts.append)
        assert sum(counts[-1].values()) == RECORDS
        chunks = list(events.chunks())
        cluster = Cluster(broker.bootstrap)
        for kind in INPUTS:
            found = [row for row in read_topic(cluster, f"x.{kind}", PARTITIONS) if row["ts"] != END_MS]
            names = list(getattr(chunks[0], kind))
            wanted: list[tuple[int, ...]] = []
            for chunk in chunks:
                columns = getattr(chunk, kind)
                wanted += zip(*(columns[name].tolist() for name in names), strict=True)
            assert sorted(tuple(row[name] for name in names) for row in found) == sorted(wanted), kind
        example.remove_topics()
        assert not cluster.metadata(f"x.{kind}" for kind in INPUTS)
        cluster.close()


@pytest.mark.own_broker
def test_example_sender_stops_after_its_chunk(tmp_path: Path) -> None:
    with EmbeddedBroker(transport="process") as broker:
        Clicks(broker.bootstrap, tmp_path, 10_000, environ={}, note=lambda _text: None).make_topics()
        sender = EventSender(broker.bootstrap, {name: f"shop.{name}" for name in INPUTS}, Events(500_000))
        counts: list[dict[str, int]] = []

        def stop(count: dict[str, int]) -> None:
            counts.append(count)
            sender.stop()

        sender.run(stop)
        assert len(counts) == 1
        assert 0 < sum(counts[0].values()) < 500_000
