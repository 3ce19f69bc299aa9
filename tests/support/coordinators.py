"""What a coordinator's log needs of a runtime, where there is none."""

from __future__ import annotations

from typing import Final

from kproc.containment import Containment
from kproc.coordinator.rules import Coordinator, KnownTopics
from kproc.handler.coordinator_shard import Guard
from tests.support.logs import TOPIC_ID


def _fail(coordinator: Coordinator) -> None:
    raise AssertionError(f"{coordinator} raised")


# Every topic exists, with one id; none was deleted.
ALL_TOPICS: Final = KnownTopics(lambda _name: TOPIC_ID, {}, lambda _name, _index: 0)
UNGUARDED: Final = Guard(Containment(), _fail)
