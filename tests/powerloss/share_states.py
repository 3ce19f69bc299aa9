"""States of share partitions in a scene: what owners wrote and were answered, and what an image must keep of it.

Each write acknowledges one more record, and every eighth moves the start offset up to it. So the state tells which
writes it has, whichever were lost, and an update that is lost alone leaves a hole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.coordinator_log import CoordinatorKind
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.handler.coordinator_kinds import share_states
from kproc.broker.share.state.coordinator import ShareCoordinator
from kproc.broker.share.state.messages import (
    InitializeState,
    PersistedState,
    ReadState,
    RecordState,
    StateBatch,
    WriteState,
    state_key,
)
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tests.powerloss.scene import Scene

SHARE_TOPIC: Final = "__share_group_state"
PARTITIONS: Final = 2
# Snapshots and deletions of records every few writes.
SETTINGS: Final = {
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
    "share.coordinator.state.topic.prune.interval.ms": "1000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "2000",
}
_NAMES: Final = tuple(state_key("g", bytes(16), index) for index in range(4))
_RECORDS_PER_START: Final = 8


def kind_of(scene: Scene) -> CoordinatorKind[ShareCoordinator]:
    """The share coordinators of one Handler. Every partition exists."""
    return share_states(scene.config, scene.clock, lambda _topic_id, _index: True)


class ShareStates:
    """The owners of some share partitions."""

    def __init__(self) -> None:
        self.initialized: set[str] = set()  # Answered.
        self.sent: dict[str, int] = dict.fromkeys(_NAMES, 0)  # The number of writes.
        self.answered: dict[str, set[int]] = {name: set() for name in _NAMES}

    def step(self, scene: Scene) -> None:
        """An owner initializes its state, or acknowledges a record."""
        name = scene.rng.choice(_NAMES)
        partition = scene.image.topics_by_name[SHARE_TOPIC].partitions[partition_for(name, PARTITIONS)]
        owner = scene.handlers[partition.owner]

        def write() -> None:
            try:
                coordinator = owner.coordinators.by_topic[SHARE_TOPIC].coordinator(partition.index)
                self._write(coordinator, name)
            except KafkaError as error:
                if error.code == ErrorCode.INVALID_REQUEST:
                    self.initialized_is_lost(name)
                owner.coordinators.work(scene.clock.now_ns())  # It may be loading.
            if scene.rng.random() < 0.5:
                owner.coordinators.flush()

        scene.run_at(owner, write)

    def initialized_is_lost(self, name: str) -> None:
        """A write found no state: right only if no initialize was answered. The next step repeats it."""
        assert name not in self.initialized, f"{name} was initialized"
        self.sent[name] = 0

    def _write(self, coordinator: ShareCoordinator, name: str) -> None:
        if name not in self.initialized:

            def on_initialized(code: int) -> None:
                if not code:
                    self.initialized.add(name)

            # Repeated with the same epoch, it would discard later writes, so there are none before its answer.
            coordinator.initialize(name, InitializeState(0, 0), on_initialized)
            return
        number = self.sent[name]
        self.sent[name] += 1

        def on_written(code: int) -> None:
            if not code:
                self.answered[name].add(number)

        batch = StateBatch(number, number, RecordState.ACKNOWLEDGED, 1)
        coordinator.write(name, WriteState(0, 0, _start_of(number), -1, (batch,)), on_written)


def _start_of(number: int) -> int:
    return number - number % _RECORDS_PER_START


def problems_of(broker: Scene, states: ShareStates) -> list[str]:
    """Return what an image lacks of the answered writes, and what it has that nobody wrote."""
    problems = []
    for name in sorted(states.initialized):
        state = _read(broker, name)
        if not isinstance(state, PersistedState):
            problems.append(f"{name} has no state: {state}")
            continue
        answered = states.answered[name]
        least = max(map(_start_of, answered), default=0)
        has = {offset for batch in state.batches for offset in range(batch.first, batch.last + 1)}
        if not least <= state.start_offset <= _start_of(max(states.sent[name] - 1, 0)):
            problems.append(f"{name} begins at {state.start_offset}, {least} was answered")
        if lost := {number for number in answered if number >= state.start_offset} - has:
            problems.append(f"{name} lost the answered writes {sorted(lost)}")
        if has - set(range(states.sent[name])):
            problems.append(f"{name} has writes that were never sent: {sorted(has)}")
    return problems


def _read(broker: Scene, name: str) -> Any:
    partition = broker.image.topics_by_name[SHARE_TOPIC].partitions[partition_for(name, PARTITIONS)]
    handler = broker.handlers[partition.owner]
    states: list[Any] = []
    while not states:
        try:
            coordinator = handler.coordinators.by_topic[SHARE_TOPIC].coordinator(partition.index)
            coordinator.read(name, ReadState(0), states.append)
            handler.drain()
        except KafkaError as error:
            if error.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return error
            handler.coordinators.work(broker.clock.now_ns())
    return states[0]
