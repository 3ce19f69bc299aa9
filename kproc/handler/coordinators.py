"""The table of coordinators: one line for each internal topic that has them."""

from __future__ import annotations

from typing import Any

from kproc.clock import Clock
from kproc.config import Config
from kproc.handler.coordinator_shard import CoordinatorKind
from kproc.handler.groups import groups


def all_kinds(config: Config, clock: Clock) -> list[CoordinatorKind[Any]]:
    """What a Handler's runtime runs."""
    return [groups(config, clock)]
