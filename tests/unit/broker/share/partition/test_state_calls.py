"""Calls for the states of share partitions: few of them in a duty cycle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.role.purgatory import Purgatory
from kproc.broker.share.partition import state_calls
from kproc.broker.share.partition.state_calls import StateCalls
from kproc.common.clock import ManualClock
from kproc.common.errors import ErrorCode


class _Operation:
    """An operation that ends at once, with `code`. `names` has the share partitions in the order of the calls."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.code = 0

    def send_for_handler(self, _services: Any, items: Any, on_outcomes: Any) -> None:
        self.names += [each.name for each in items]
        on_outcomes([self.code] * len(items))


def test_states_are_read_a_few_in_each_duty_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ShareFetch that adds 2,000 share partitions would keep all other clients waiting otherwise."""
    monkeypatch.setattr(state_calls, "CALLS_AT_ONCE", 2)
    clock = ManualClock()
    purgatory = Purgatory(clock.now_ns)
    services: Any = SimpleNamespace(clock=clock, owner=SimpleNamespace(purgatory=purgatory))
    calls, operation = StateCalls(services), _Operation()
    partitions = [SimpleNamespace(name=str(at), is_dropped=False) for at in range(6)]
    done: list[str] = []

    def send(partition: Any) -> None:
        calls.send_in_turn(operation, partition, None, lambda each, _: done.append(each.name))  # type: ignore[arg-type]

    for each in partitions[:5]:
        send(each)
    assert done == ["0", "1"], "at once"
    partitions[3].is_dropped = True
    counts = []
    while len(purgatory):
        purgatory.expire()
        counts.append(len(done))
    assert counts == [3, 4, 4]
    assert done == ["0", "1", "2", "4"]
    send(partitions[5])
    assert done[-1] == "5", "at once again"


def test_read_after_a_pause_is_sent_at_its_end() -> None:
    clock = ManualClock()
    purgatory = Purgatory(clock.now_ns)
    services: Any = SimpleNamespace(clock=clock, owner=SimpleNamespace(purgatory=purgatory))
    calls, operation = StateCalls(services), _Operation()
    partition: Any = SimpleNamespace(name="p", is_dropped=False)
    calls.send_after_pause(operation, partition, None, lambda _partition, _outcome: None)  # type: ignore[arg-type]
    clock.advance_ms(49)
    purgatory.expire()
    assert operation.names == []
    clock.advance_ms(1)
    purgatory.expire()
    assert operation.names == ["p"]


def test_stopping_handler_repeats_no_call() -> None:
    """The stop of a broker took 10 s, because acknowledgements waited for share coordinators that had stopped."""
    clock = ManualClock()
    purgatory = Purgatory(clock.now_ns)
    services: Any = SimpleNamespace(clock=clock, owner=SimpleNamespace(purgatory=purgatory))
    calls, operation = StateCalls(services), _Operation()
    operation.code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition: Any = SimpleNamespace(name="p", is_dropped=False)
    outcomes: list[int] = []

    def on_outcome(_partition: Any, outcome: int) -> None:
        outcomes.append(outcome)

    calls.send(operation, [(partition, None)], on_outcome)  # type: ignore[arg-type]
    assert outcomes == []
    calls.drain()
    clock.advance_ms(50)
    purgatory.expire()
    assert outcomes == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    calls.send(operation, [(partition, None)], on_outcome)  # type: ignore[arg-type]
    assert outcomes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
