"""Clients of directed plans (directed.py): each leads to one state, over and over."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.client import Life
from tests.simulation.workloads import Admin

_NAME: Final = "churn"


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
