"""The table of coordinators: one line for each internal topic that has them."""

from __future__ import annotations

from typing import Any

from kproc.api.context import Services
from kproc.handler.coordinator_shard import CoordinatorKind
from kproc.handler.groups import groups
from kproc.handler.transactions import transactions


def all_kinds(services: Services) -> list[CoordinatorKind[Any]]:
    """What a Handler's runtime runs."""
    return [groups(services.config, services.clock), transactions(services)]
