"""The table of coordinators: one line for each internal topic that has them."""

from __future__ import annotations

from typing import Any

from kproc.broker.handler.coordinator_shard import CoordinatorKind
from kproc.broker.handler.groups import groups
from kproc.broker.handler.transactions import transactions
from kproc.broker.request.context import Services


def all_kinds(services: Services) -> list[CoordinatorKind[Any]]:
    """Return all kinds of coordinators that a Handler runs."""
    return [groups(services.config, services.clock), transactions(services)]
