"""A second, third and fourth internal topic with coordinators: counters by their names."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any

import pytest

from kproc.broker.coordinator.coordinator_log import CoordinatorKind
from kproc.broker.handler.coordinator_kinds import all_kinds
from kproc.broker.peers.coordinator_call import CoordinatorCalls, OnOutcome
from kproc.broker.peers.registered_calls import REGISTERED_CALLS
from kproc.broker.request.context import Services
from tests.support.counters import EAGER_TOPIC, SLOW_TOPIC, SWEEP_MS, TOPIC, Counters


@pytest.fixture
def calls() -> Iterator[CoordinatorCalls[Counters]]:
    made: CoordinatorCalls[Counters] = CoordinatorCalls("counter", TOPIC)

    @made.operation("add", NoneType, dict).handler
    def add(coordinator: Counters, name: str, _wanted: Any, on_outcome: OnOutcome[Any]) -> None:
        coordinator.add(name, on_outcome)

    @made.operation("wait", NoneType, dict).handler
    def wait(coordinator: Counters, _name: str, _wanted: Any, on_outcome: OnOutcome[Any]) -> None:
        coordinator.waiting.append(on_outcome)

    @made.operation("stumble", NoneType, dict).handler
    def stumble(coordinator: Counters, name: str, _wanted: Any, on_outcome: OnOutcome[Any]) -> None:
        getattr(coordinator, name)(on_outcome)

    yield made
    del REGISTERED_CALLS[made.name]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, calls: CoordinatorCalls[Counters]) -> None:
    """Three more in the table of coordinators."""

    def kinds(services: Services) -> list[CoordinatorKind[Any]]:
        intervals = {TOPIC: SWEEP_MS, SLOW_TOPIC: 2 * SWEEP_MS, EAGER_TOPIC: SWEEP_MS}
        mine = [
            CoordinatorKind(
                topic=topic,
                make=Counters,
                codec=0,
                sweep_interval_ms=interval_ms,
                end_transaction=Counters.end_transaction,
                is_eager=topic == EAGER_TOPIC,
            )
            for topic, interval_ms in intervals.items()
        ]
        return [*all_kinds(services), *mine]

    monkeypatch.setattr("kproc.broker.handler.handler_parts.all_kinds", kinds)
