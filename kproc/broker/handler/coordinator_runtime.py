"""CoordinatorRuntime: runs all coordinators of one Handler and the logs that store their state.

A coordinator is created at the first use of its partition, or, if its kind is eager, as soon as the partition is ours.
It then replays its log. Requests wait for that for a short time (coordinator_waits.py). When the partition gets another
owner, the coordinator is released, and the new owner creates its own. The interface between runtime and coordinators is
in coordinator/rules.py. coordinators.py lists the internal topics.

All coordinators share one heap of deadlines and one list of pending writes, so that a duty cycle without work costs the
same with any number of topics.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic

from kproc.broker.calls.controller_calls import AskController
from kproc.broker.cluster.image import ClusterImage, MovedPartition, PartitionImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.coordinator.marker import Marker
from kproc.broker.coordinator.partitioning import partition_for
from kproc.broker.coordinator.rules import Code, Coordinator, DueOf, KnownTopics, OnCode
from kproc.broker.handler.coordinator_epochs import CoordinatorEpochs
from kproc.broker.handler.coordinator_shard import C, CoordinatorKind, Guard, Shard
from kproc.broker.handler.coordinator_waits import CoordinatorWaits, OnSettled
from kproc.broker.handler.partitions import Partitions
from kproc.broker.request.context import PartitionKey, PartitionMoving
from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock
from kproc.common.containment import Containment
from kproc.common.deadlines import NEVER, Deadlines
from kproc.common.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

# An eager coordinator that cannot be created yet is tried again after 50 ms, and after 5 s if its log cannot be opened.
_TRY_AGAIN_MS: Final = 50
_OFFLINE_MS: Final = 5_000
# The metrics show the loads of the last 30 s, as in Kafka, and at most 1,000 of them.
_LOADS_KEPT_NS: Final = 30 * NS_PER_S
_LOADS_MAX: Final = 1_000


class CoordinatorRuntime:
    """The coordinators of one Handler. It calls `work` in each duty cycle and sleeps for at most `due_ms`."""

    def __init__(
        self,
        kinds: Sequence[CoordinatorKind[Any]],
        *,
        config: Config,
        clock: Clock,
        image: Callable[[], ClusterImage],
        partitions: Partitions,
        handler_index: int,
        containment: Containment,
        ask_controller: AskController,
    ) -> None:
        self.by_topic = {kind.topic: TopicCoordinators(self, kind) for kind in kinds}
        self._containment = containment
        self._config = config
        self._clock = clock
        self._image = image
        self._partitions = partitions
        self._handler_index = handler_index
        self._deadlines: Deadlines[DueOf] = Deadlines()
        self._shards: dict[PartitionKey, Shard[Any]] = {}
        self._loading: dict[PartitionKey, Shard[Any]] = {}
        self._to_open: deque[PartitionKey] = deque()
        self._epochs = CoordinatorEpochs(image, ask_controller, lambda key: self._owe(key, 0))
        # Partitions that need a coordinator and have none yet, with the time in ms of the next attempt. `_offline` has
        # those whose log could not be opened.
        self._owed: dict[PartitionKey, int] = {}
        self._offline: dict[PartitionKey, int] = {}
        self._waits = CoordinatorWaits(containment)
        self._on_loaded: list[tuple[str, Callable[[], None]]] = []  # (topic, callback of `when_loaded`).
        self._sweeping: deque[Coordinator] = deque()
        now_ms = clock.now_ns() // NS_PER_MS
        self._sweep_at_ms = {kind.topic: now_ms + kind.sweep_interval_ms for kind in kinds}
        self._next_sweep_ms = min(self._sweep_at_ms.values(), default=NEVER)
        self._is_stopping = False
        self.dirty: dict[Shard[Any], None] = {}
        # While all of these are empty, only the next timer and the next sweep can be due.
        self._unfinished = (
            self.dirty, self._loading, self._to_open, self._sweeping, self._epochs.wanted, self._owed,
            self._offline, self._waits.waiting,
        )  # fmt: skip
        self._guard = Guard(containment, self._give_up)
        # By topic: the end and the duration of each recent load of a coordinator, in ns.
        self._loads: dict[str, deque[tuple[int, int]]] = {
            kind.topic: deque(maxlen=_LOADS_MAX) for kind in kinds
        }
        self.due_ms = 0  # Milliseconds until `work` has something to do again.

    # -- shards ------------------------------------------------------------------------------------------------

    def image(self) -> ClusterImage:
        """Return our present metadata."""
        return self._image()

    def shard(self, key: PartitionKey) -> Shard[Any]:
        """Return the shard of a partition of ours. Open it first if necessary.

        Raises KafkaError with the code for the client: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or, at a stop,
        COORDINATOR_NOT_AVAILABLE.
        """
        if self._is_stopping:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = self._image().partition(*key)
        if partition is None or partition.owner != self._handler_index:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(key)
        # If a Shortage interrupted a change of the log, the log accepts no writes. Release the coordinator; opening the
        # partition again below completes the change.
        if shard is not None and (
            self._partitions.find(key) is not shard.owned or shard.owned.log.state.can_reopen
        ):
            self.release(key)
            if self.by_topic[key[0]].kind.is_eager:
                self._owe(key, _TRY_AGAIN_MS)  # Try again later if opening it below fails.
            shard = None
        if shard is None:
            shard = self._open(key, partition)
        if shard.is_damaged:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return shard

    def loaded_shard(self, key: PartitionKey) -> Shard[Any]:
        """Return the shard of a loaded coordinator that no earlier request waits for.

        Raises KafkaError as `shard` does, and COORDINATOR_LOAD_IN_PROGRESS in the other cases.
        """
        shard = self.shard(key)
        if not shard.is_loaded or self._waits.holds(key):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def when_settled(self, key: PartitionKey, on_settled: OnSettled) -> None:
        """Call back once, when a request for a coordinator that is being loaded should try again."""
        now_ms = self._clock.now_ns() // NS_PER_MS
        self._waits.add(key, now_ms, on_settled)
        if key in self._shards:
            if self._shards[key].is_loaded:
                self._waits.settle(key)
        elif key not in self._owed:
            self._owe(key, _TRY_AGAIN_MS)  # The log is still being transferred to us.

    def give_up(self, key: PartitionKey) -> None:
        """Discard a coordinator after an unexpected exception of one of its operations, and load it again."""
        shard = self._shards.get(key)
        if shard is not None:
            self._give_up(shard.coordinator)

    def append_marker(self, key: PartitionKey, marker: Marker, on_code: OnCode) -> None:
        """Append a transaction marker to a partition of ours. `on_code` gets its code when the marker is durable.

        Raises KafkaError if the partition has no loaded coordinator.
        """
        shard = self.loaded_shard(key)
        codes: list[Code] = []
        if not self._containment.run(
            "a marker of a transaction", None, lambda: codes.append(shard.append_marker(marker))
        ):
            # The marker may be in the log or not. Its transaction coordinator sends it again after this error.
            self._give_up(shard.coordinator)
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if codes[0]:
            on_code(codes[0])
        else:
            shard.when_durable(on_code)

    def _open(self, key: PartitionKey, partition: PartitionImage) -> Shard[Any]:
        try:
            owned = self._partitions.get(key[0], partition)
        except PartitionMoving as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        kind = self.by_topic[key[0]].kind
        epoch = self._epochs.take(key, at_least=owned.log.state.leader_epoch) if kind.is_eager else 0
        if epoch is None:
            self._owe(key, _TRY_AGAIN_MS)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        shard = Shard(kind, owned, self._config, self._clock, self._deadlines, self.dirty, epoch, self._guard)
        self._shards[key] = shard
        self._load_some(key, shard)
        return shard

    def _load_some(self, key: PartitionKey, shard: Shard[Any]) -> None:
        if not self._containment.run("loading a coordinator", None, shard.load_some, self._known_topics()):
            shard.is_damaged = True  # Another attempt would fail at the same record.
        if shard.is_starved:
            self._loading.pop(key, None)
            del self._shards[key]
            self._owe(key, _TRY_AGAIN_MS)
            return
        if shard.is_loaded or shard.is_damaged:
            now_ns = self._clock.now_ns()
            self._loads[key[0]].append((now_ns, now_ns - shard.began_ns))
            self._loading.pop(key, None)
            self._waits.settle(key)
        else:
            self._loading[key] = shard

    def _known_topics(self) -> KnownTopics:
        return KnownTopics(self._topic_id, self._image().deleted_topics, self._leader_epoch)

    def _leader_epoch(self, name: str, index: int) -> int:
        partition = self._image().partition(name, index)
        return -1 if partition is None else partition.leader_epoch

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._image().topic(name)
        return topic.topic_id if topic is not None else None

    def loaded(self, name: str | None = None) -> list[Any]:
        """Return the loaded coordinators of one topic, or of all topics."""
        return [
            shard.coordinator
            for key, shard in self._shards.items()
            if shard.is_loaded and (name is None or key[0] == name)
        ]

    def recent_loads(self, name: str) -> list[int]:
        """Return the durations in ns of the loads of a topic's coordinators that ended in the last 30 s."""
        since_ns = self._clock.now_ns() - _LOADS_KEPT_NS
        return [took_ns for ended_ns, took_ns in self._loads[name] if ended_ns > since_ns]

    def when_loaded(self, name: str, on_loaded: Callable[[], None]) -> None:
        """Load the coordinators of all our partitions of a topic that have records, then call back."""
        if not self.by_topic[name].kind.is_eager:
            waiting = set(self._to_open)
            self._to_open += [key for key in self._unloaded(name) if key not in waiting]
        self._on_loaded.append((name, on_loaded))
        self._report_loaded()

    def _unloaded(self, name: str) -> list[PartitionKey]:
        """Return our partitions of a topic that have records and no coordinator."""
        topic = self._image().topic(name)
        return [
            key
            for partition in (topic.partitions if topic is not None else ())
            if partition.owner == self._handler_index
            and (key := (name, partition.index)) not in self._shards
            # A log that was never written has no directory, and opening it would create one.
            and self._partitions.fs.exists(Path(self._config.log_dirs) / f"{name}-{partition.index}")
        ]

    def load_eagerly(self) -> None:
        """Load the coordinators of eager kinds for all our partitions. Called at the start and when owners change."""
        if self._is_stopping:
            return
        for name, coordinators in self.by_topic.items():
            if coordinators.kind.is_eager:
                for key in self._unloaded(name):
                    self._epochs.want(key)
                    self._owe(key, 0)

    def _owe(self, key: PartitionKey, delay_ms: int) -> None:
        self._offline.pop(key, None)
        self._owed[key] = self._clock.now_ns() // NS_PER_MS + delay_ms

    def _report_loaded(self) -> None:
        if not self._on_loaded:
            return
        busy = {name for name, _ in (*self._loading, *self._to_open, *self._owed)}
        due = [each for each in self._on_loaded if each[0] not in busy]
        self._on_loaded = [each for each in self._on_loaded if each[0] in busy]
        for _, on_loaded in due:
            on_loaded()

    def release(self, key: PartitionKey) -> None:
        """Release the coordinator of a partition that gets another owner. Waiting requests are routed to that owner."""
        shard = self._shards.pop(key, None)
        self._loading.pop(key, None)
        self._epochs.forget(key)
        self._waits.settle(key)
        if shard is not None:
            shard.coordinator.resign()
            shard.flush()
            self.dirty.pop(shard, None)

    def _give_up(self, coordinator: Coordinator) -> None:
        """Discard a coordinator that an exception left half changed. Clients look it up again, and it is reloaded."""
        for key, shard in list(self._shards.items()):
            if shard.coordinator is coordinator:
                del self._shards[key]
                self._loading.pop(key, None)
                self.dirty.pop(shard, None)
                if self.by_topic[key[0]].kind.is_eager:
                    self._owe(key, _TRY_AGAIN_MS)
                self._containment.run("giving a coordinator up", None, shard.coordinator.abandon)
                self._containment.run("giving a coordinator up", None, shard.abandon)

    # -- changes of the metadata -------------------------------------------------------------------------------

    def on_moved(self, moved: Sequence[MovedPartition]) -> None:
        """Release partitions that have another owner. Call it while their logs are open, to append queued writes."""
        for each in moved:
            if each.topic.name in self.by_topic and each.partition.owner != self._handler_index:
                self.release((each.topic.name, each.partition.index))

    def topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        """Release the coordinators of deleted internal topics. The others remove their state about deleted topics."""
        names = {topic.name for topic in topics}
        for key in list(self._shards):
            if key[0] in names:
                self.release(key)
        known = self._known_topics()
        for coordinator in self.loaded():
            self._guard.run(coordinator, "the end of a topic", coordinator.topics_deleted, known)

    def drain(self) -> None:
        """Release all coordinators at a stop. Requests that wait for a load get COORDINATOR_NOT_AVAILABLE."""
        self._is_stopping = True
        self._next_sweep_ms = NEVER
        for key in list(self._shards):
            self.release(key)
        self._to_open.clear()
        self._owed.clear()
        self._offline.clear()
        self._waits.settle_all()
        self._waits.run(self._clock.now_ns() // NS_PER_MS)
        self._report_loaded()

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Append the writes that were queued since the last call."""
        while self.dirty:
            shards = list(self.dirty)
            self.dirty.clear()
            for shard in shards:
                if not self._containment.run("a coordinator's write", None, shard.flush):
                    self._give_up(shard.coordinator)
                elif shard.is_interrupted:
                    # Reopen the log soon. The coordinator's timers write, too, and without a request nothing else would
                    # reopen it.
                    self._owe(shard.owned.key, _TRY_AGAIN_MS)

    def _next_deadline_ms(self, now_ns: int) -> int:
        """Return how many ms the Handler may sleep before a coordinator has work."""
        due_ms = self._deadlines.first
        if self._next_sweep_ms < due_ms:
            due_ms = self._next_sweep_ms
        if any(self._unfinished):
            if self.dirty or self._loading or self._to_open or self._sweeping or self._epochs.wanted:
                return 0
            if self._owed or self._offline:
                due_ms = min(due_ms, *self._owed.values(), *self._offline.values())
            if self._waits.waiting:
                due_ms = min(due_ms, self._waits.due_ms)
        left_ms = due_ms - now_ns // NS_PER_MS
        return left_ms if left_ms > 0 else 0

    def work(self, now_ns: int) -> int:
        """Run what is due: timers, one step of a load, one step of a sweep. Return the amount of work.

        This runs in every duty cycle, so it returns after one check if nothing is due.
        """
        self.due_ms = self._next_deadline_ms(now_ns)
        if self.due_ms:
            return 0
        now_ms = now_ns // NS_PER_MS
        work = 0
        if self._deadlines.first <= now_ms:
            for coordinator, name in self._deadlines.pop_due(now_ms):
                self._guard.run(coordinator, "a timer of a coordinator", coordinator.tick, name)
                work += 1
        if self._owed or self._offline:
            work += self._load_owed(now_ms)
        if self._epochs.wanted:
            self._epochs.ask()
        if self._loading or self._to_open:
            work += 1
            self._go_on_loading()
        if now_ms >= self._next_sweep_ms:
            self._begin_sweeps(now_ms)
        if self._sweeping:
            work += 1
            self._go_on_sweeping()
        work += self._waits.run(now_ms)
        self.flush()
        self.due_ms = self._next_deadline_ms(now_ns)
        return work

    def _go_on_loading(self) -> None:
        if self._loading:
            key, shard = next(iter(self._loading.items()))
            self._load_some(key, shard)
        else:
            key = self._to_open.popleft()
            try:
                self.shard(key)
            except KafkaError as error:
                logger.info("%s-%d is left out: %s", *key, error)
        self._report_loaded()

    def _load_owed(self, now_ms: int) -> int:
        """Create the first coordinator that is due. The others follow in later duty cycles."""
        self._owed.update({key: at_ms for key, at_ms in self._offline.items() if at_ms <= now_ms})
        key = next((key for key, at_ms in self._owed.items() if at_ms <= now_ms), None)
        if key is None:
            return 0
        del self._owed[key]
        self._offline.pop(key, None)
        try:
            self.shard(key)
        except KafkaError as error:
            partition = self._image().partition(*key)
            if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._owe(key, _TRY_AGAIN_MS)
                return 1
            self._waits.settle(key)
            is_ours = partition is not None and partition.owner == self._handler_index
            if is_ours and key not in self._shards and self.by_topic[key[0]].kind.is_eager:
                self._offline[key] = now_ms + _OFFLINE_MS
        self._report_loaded()
        return 1

    def _begin_sweeps(self, now_ms: int) -> None:
        for name, at_ms in self._sweep_at_ms.items():
            if now_ms >= at_ms:
                self._sweep_at_ms[name] = now_ms + self.by_topic[name].kind.sweep_interval_ms
                self.when_loaded(name, partial(self._begin_sweep, name))
        self._next_sweep_ms = min(self._sweep_at_ms.values())

    def _begin_sweep(self, name: str) -> None:
        for coordinator in self.loaded(name):
            if self._guard.run(coordinator, "a sweep", coordinator.begin_sweep):
                self._sweeping.append(coordinator)

    def _go_on_sweeping(self) -> None:
        coordinator = self._sweeping[0]
        if not coordinator.is_sweeping or not self._guard.run(coordinator, "a sweep", coordinator.sweep_some):
            self._sweeping.popleft()


class TopicCoordinators(Generic[C]):
    """The coordinators of one topic: the interface of the runtime for the APIs."""

    def __init__(self, runtime: CoordinatorRuntime, kind: CoordinatorKind[C]) -> None:
        self.kind = kind
        self._runtime = runtime

    def partition_of(self, name: str) -> PartitionImage | None:
        """Return the partition whose coordinator is responsible for a name. None before the topic exists.

        Only the partitions that the topic was created with count. Otherwise adding partitions would change the
        coordinators of names that are stored already.
        """
        topic = self._runtime.image().topic(self.kind.topic)
        if topic is None:
            return None
        _, count = next(topic.blocks())
        return topic.partitions[partition_for(name, count)]

    def coordinator(self, index: int) -> C:
        """Return the loaded coordinator of a partition of ours. Raises KafkaError with the code for the client."""
        shard: Shard[C] = self._runtime.loaded_shard((self.kind.topic, index))
        return shard.coordinator

    def when_settled(self, index: int, on_settled: OnSettled) -> None:
        """Call back when a coordinator is loaded, when it belongs to another Handler, or after 200 ms.

        The request then tries once more and returns whatever error it gets.
        """
        self._runtime.when_settled((self.kind.topic, index), on_settled)

    def give_up(self, index: int) -> None:
        """Discard and reload a coordinator of ours that an unexpected exception left half changed."""
        self._runtime.give_up((self.kind.topic, index))

    def append_marker(self, index: int, marker: Marker, on_code: OnCode) -> None:
        """Append a transaction marker to a partition of ours. `on_code` gets NONE when it is durable, or an error.

        Raises KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS) if it was not appended, or if that is unknown.
        """
        self._runtime.append_marker((self.kind.topic, index), marker, on_code)

    def loaded(self) -> list[C]:
        """Return the loaded coordinators of the topic."""
        return self._runtime.loaded(self.kind.topic)

    def when_loaded(self, on_loaded: Callable[[], None]) -> None:
        """Load the coordinators of all our partitions that have records, then call back."""
        self._runtime.when_loaded(self.kind.topic, on_loaded)
