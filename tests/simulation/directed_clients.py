"""Clients of directed plans (directed.py): each leads to one state, over and over."""

from __future__ import annotations

from typing import Any, Final

from kproc.wire.header import ApiKey
from tests.simulation.client import Life
from tests.simulation.workloads import Admin, Worker

_NAME: Final = "churn"
RING_BYTES: Final = 256 << 10  # The smallest that kproc.ring.bytes allows.
# Below the size that goes through the arena. So many requests at once are more than the ring holds.
_FILLER_BYTES: Final = 12_000
FILLERS: Final = 2 * RING_BYTES // _FILLER_BYTES


class Trimmer(Admin):
    """Deletes records of one topic, which stays."""

    partitions = 3
    rest_ms = 20

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_made = True

    def work(self) -> Life:
        yield from self.trim()

    def trim(self) -> Life:
        """Create the topic, wait until it has records, and delete some of them."""
        if not self.of_name():
            yield from self.make(_NAME, self.partitions, {})
        while not (filled := self.filled_partitions(self.of_name())) and not self.must_finish:
            yield from self.pause(2)
        yield from self.pause(self.rest_ms)
        if filled and not self.must_finish:
            yield from self.delete_records(*self.rng.choice(filled))

    def of_name(self) -> list[Any]:
        return [each for each in self.history.alive() if each.name == _NAME]


class Recreator(Trimmer):
    """Deletes a topic whose log start is above 0, and creates it again."""

    partitions = 1
    rest_ms = 60

    def work(self) -> Life:
        yield from self.trim()
        for topic in self.of_name():
            yield from self.delete(topic)


class Caller(Worker):
    """Connects, sends one request, and disconnects."""

    def work(self) -> Life:
        yield from self.call(ApiKey.METADATA, 1, {"topics": []})
        self.disconnect()
        yield from self.pause(self.rng.choice((0, 1, 5)))


class Filler(Worker):
    """Sends large requests and waits for each response, so that nothing is in work when its connection stalls."""

    def work(self) -> Life:
        topics = [{"name": "x" * _FILLER_BYTES}]  # No topic can have this name.
        fields = {"topics": topics, "response_partition_limit": 10, "cursor": None}
        yield from self.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, fields)
        yield from self.pause(self.rng.choice((0, 1, 5)))
