"""What a coordinator's log needs of a runtime, where there is none."""

from __future__ import annotations

from typing import Final

from kproc.containment import Containment
from kproc.coordinator.rules import Coordinator
from kproc.handler.coordinator_shard import Guard


def _fail(coordinator: Coordinator) -> None:
    raise AssertionError(f"{coordinator} raised")


UNGUARDED: Final = Guard(Containment(), _fail)
