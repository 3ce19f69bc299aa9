"""The environment of a coordinator's log without a runtime."""

from __future__ import annotations

from typing import Final

from kproc.broker.coordinator.coordinator_log import Guard
from kproc.broker.coordinator.rules import Coordinator, KnownTopics
from kproc.common.containment import Containment
from tests.support.logs import TOPIC_ID


def _fail(coordinator: Coordinator) -> None:
    raise AssertionError(f"{coordinator} raised")


def run_steps(coordinator: Coordinator) -> None:
    """Run all steps, as the runtime does in several duty cycles."""
    while coordinator.steps:
        coordinator.steps.run()


# Every topic exists, with one id; none was deleted.
ALL_TOPICS: Final = KnownTopics(lambda _name: TOPIC_ID, {}, lambda _name, _index: 0)
UNGUARDED: Final = Guard(Containment(), _fail)
