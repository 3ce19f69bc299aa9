"""BrokerFigures with scripted Handlers and a manual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kproc.broker.calls.calls import Lost
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.observe.broker_figures import BrokerFigures, Group, HandlerFigures
from kproc.broker.observe.figures_text import figures_text
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
