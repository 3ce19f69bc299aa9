"""Counters: a small coordinator with its records, for tests of the coordinator runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
from kproc.broker.coordinator.rules import DueOf, KnownTopics, Producer, Write
from kproc.broker.coordinator.steps import STEP_COST, Steps, Work
from kproc.broker.peers.coordinator_call import OnOutcome
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.handler_rig import HandlerRig, parts_of

Start = Callable[..., HandlerRig]
TOPIC, SLOW_TOPIC, EAGER_TOPIC = "counters", "slow-counters", "eager-counters"
STUMBLING = "13 aborts"
SWEEP_MS = 5_000


class Counters:
    """The rules: one record for each new value."""

    def __init__(self, log: CoordinatorLog, deadlines: Deadlines[DueOf], epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.deadlines = deadlines
        self.values: dict[str, int] = {}
        self.offsets: list[int] = []  # Of all records, replayed or appended.
        self.events: list[str] = []
        self.steps = Steps()
        self.waiting: list[OnOutcome[Any]] = []

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        self.offsets.append(offset)
        self.values[(key or b"").decode()] = int(value or b"0")

    def finish_loading(self, topics: KnownTopics) -> None:
        self.events.append("loaded")

    def add(self, name: str, on_outcome: OnOutcome[Any]) -> None:
        value = self.values.get(name, 0) + 1

        def apply(_number: int, offset: int) -> None:
            self.offsets.append(offset)
            self.values[name] = value

        def on_done(code: int) -> None:
            on_outcome(code or {"value": value})

        self.log.write(Write([(name.encode(), str(value).encode())], on_done, apply))

    def stumble(self, on_outcome: OnOutcome[Any]) -> None:
        self.values["half"] = 1
        raise ZeroDivisionError

    def stumble_when_written(self, on_outcome: OnOutcome[Any]) -> None:
        def on_done(_code: int) -> None:
            self.values["half"] = 1
            raise ZeroDivisionError

        self.waiting.append(on_outcome)
        self.log.write(Write([(b"n", b"5")], on_done))

    def stumble_later(self, on_outcome: OnOutcome[Any]) -> None:
        self.waiting.append(on_outcome)
        self.log.guarded(self.stumble)(on_outcome)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.events.append(f"{producer_id} {'commits' if is_commit else 'aborts'}")
        if self.events[-1] == STUMBLING:
            raise ZeroDivisionError

    def tick(self, name: str) -> None:
        self.events.append(f"tick {name}")

    def topics_deleted(self, topics: KnownTopics) -> None:
        self.events.append("topics deleted")

    def start_sweep(self) -> None:
        self.events.append("sweep")
        self.steps.add(self._sweep())

    def _sweep(self) -> Work:
        for name in list(self.values):
            self.events.append(f"swept {name}")
            yield STEP_COST  # One in a duty cycle.

    def resign(self) -> None:
        self.log.flush()
        self.abandon()

    def abandon(self) -> None:
        for on_outcome in self.waiting:
            on_outcome(int(ErrorCode.NOT_COORDINATOR))
        self.events.append("resigned")


def runtime(rig: HandlerRig, index: int = 0) -> CoordinatorRuntime:
    return parts_of(rig.handler(index)).coordinators


# ---- eager kinds ------------------------------------------------------------------------------------------


def eager(start: Start, *, handlers: int = 2, written: int = 4) -> HandlerRig:
    """Handlers whose eager coordinators have each written something, in the first partitions."""
    rig = start(handlers=handlers)
    rig.controller_serves.add("raise_leader_epochs")
    rig.create_topic(EAGER_TOPIC, partitions=4)
    for index in range(written):
        owner = runtime(rig, rig.owner(EAGER_TOPIC, index)).by_topic[EAGER_TOPIC]
        with pytest.raises(KafkaError) as raised:
            owner.coordinator(index)
        assert raised.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        rig.settle()
        owner.coordinator(index).add("n", lambda _outcome: None)
        rig.settle()
    return rig


def loaded_epochs(rig: HandlerRig) -> dict[int, int]:
    """By partition, the epoch of the coordinator that is loaded without having been asked."""
    loaded = [
        each
        for handler in rig.handlers
        if handler
        for each in parts_of(handler).coordinators.loaded(EAGER_TOPIC)
    ]
    return {each.log.owned.key[1]: each.epoch for each in loaded}
