"""CoordinatorRuntime: the coordinators of one Handler, of all internal topics, and the logs that store their state.

A coordinator is made at the first use of its partition, or of an eager kind as soon as the partition is ours, and
replays the log; requests wait for that for a short time (coordinator_waits.py). It is dropped when the partition gets
another owner, which does the same. What the coordinators of a topic do is defined by their rules
(coordinator/rules.py); the topics are listed in coordinators.py.
All of them share one heap of deadlines and one list of pending writes: a duty cycle without work costs the same
however many topics there are.
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

# An eager coordinator that cannot be made yet is tried again after this time; one whose log cannot be opened, after
# the longer one.
_TRY_AGAIN_MS: Final = 50
_OFFLINE_MS: Final = 5_000
# The loads that metrics tell of: as in Kafka those of the last 30 s, and no more than so many.
_LOADS_KEPT_NS: Final = 30 * NS_PER_S
_LOADS_MAX: Final = 1_000


class CoordinatorRuntime:
    """One per Handler."""

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
        # Partitions of eager kinds that have no coordinator yet, and when they are tried again; those that may not have
        # one for some time are apart.
        self._owed: dict[PartitionKey, int] = {}
        self._offline: dict[PartitionKey, int] = {}
        self._waits = CoordinatorWaits(containment)
        self._on_loaded: list[tuple[str, Callable[[], None]]] = []  # By topic.
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
        # Of each topic, when a coordinator had been loaded, and how long that took.
        self._loads: dict[str, deque[tuple[int, int]]] = {
            kind.topic: deque(maxlen=_LOADS_MAX) for kind in kinds
        }
        self.due_ms = 0  # Milliseconds until `work` has something to do again.

    # -- shards ------------------------------------------------------------------------------------------------

    def image(self) -> ClusterImage:
        """The metadata as we know it."""
        return self._image()

    def shard(self, key: PartitionKey) -> Shard[Any]:
        """The shard of a partition of ours. KafkaError with the code for the client if there is none."""
        if self._is_stopping:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = self._image().partition(*key)
        if partition is None or partition.owner != self._handler_index:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(key)
        # A log that a shortage interrupted accepts no writes. Opening the partition again below completes the change.
        if shard is not None and (
            self._partitions.find(key) is not shard.owned or shard.owned.log.state.can_reopen
        ):
            self.release(key)
            if self.by_topic[key[0]].kind.is_eager:
                self._owe(key, _TRY_AGAIN_MS)  # In case it cannot be opened now.
            shard = None
        if shard is None:
            shard = self._open(key, partition)
        if shard.is_damaged:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return shard

    def loaded_shard(self, key: PartitionKey) -> Shard[Any]:
        """`shard`, if its coordinator is loaded and no request waits for it; else COORDINATOR_LOAD_IN_PROGRESS."""
        shard = self.shard(key)
        if not shard.is_loaded or self._waits.holds(key):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def when_settled(self, key: PartitionKey, on_settled: OnSettled) -> None:
        """For a request that met a coordinator that is being loaded: call back when it should ask again, once."""
        now_ms = self._clock.now_ns() // NS_PER_MS
        self._waits.add(key, now_ms, on_settled)
        if key in self._shards:
            if self._shards[key].is_loaded:
                self._waits.settle(key)
        elif key not in self._owed:
            self._owe(key, _TRY_AGAIN_MS)  # Its log is on its way.

    def give_up(self, key: PartitionKey) -> None:
        """An operation of that coordinator raised unexpectedly."""
        shard = self._shards.get(key)
        if shard is not None:
            self._give_up(shard.coordinator)

    def append_marker(self, key: PartitionKey, marker: Marker, on_code: OnCode) -> None:
        """End a transaction at a partition of ours; KafkaError if it has no coordinator that can be asked."""
        shard = self.loaded_shard(key)
        codes: list[Code] = []
        if not self._containment.run(
            "a marker of a transaction", None, lambda: codes.append(shard.append_marker(marker))
        ):
            # It may be in the log, or not: whoever sends it sends it again.
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
        epoch = self._epochs.take(key, at_least=owned.log.leader_epoch) if kind.is_eager else 0
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
        """The coordinators of one topic, or of all, that have been loaded."""
        return [
            shard.coordinator
            for key, shard in self._shards.items()
            if shard.is_loaded and (name is None or key[0] == name)
        ]

    def recent_loads(self, name: str) -> list[int]:
        """How long the loads of a topic's coordinators took that ended in the last 30 s, in ns."""
        since_ns = self._clock.now_ns() - _LOADS_KEPT_NS
        return [took_ns for ended_ns, took_ns in self._loads[name] if ended_ns > since_ns]

    def when_loaded(self, name: str, on_loaded: Callable[[], None]) -> None:
        """Load every partition of ours of a topic that has been written to, then call back."""
        if not self.by_topic[name].kind.is_eager:
            waiting = set(self._to_open)
            self._to_open += [key for key in self._unloaded(name) if key not in waiting]
        self._on_loaded.append((name, on_loaded))
        self._report_loaded()

    def _unloaded(self, name: str) -> list[PartitionKey]:
        """The partitions of ours that have been written to and have no coordinator."""
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
        """Load the coordinators of eager kinds whose partitions are ours: at our start, and when owners changed."""
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
        """Drop the coordinator of a partition that gets another owner; waiting requests are sent there."""
        shard = self._shards.pop(key, None)
        self._loading.pop(key, None)
        self._epochs.forget(key)
        self._waits.settle(key)
        if shard is not None:
            shard.coordinator.resign()
            shard.flush()
            self.dirty.pop(shard, None)

    def _give_up(self, coordinator: Coordinator) -> None:
        """Drop a coordinator that an exception left half changed: clients look for it again, and it is reloaded."""
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
        """Release partitions that have another owner. Called while their logs are open, to append gathered writes."""
        for each in moved:
            if each.topic.name in self.by_topic and each.partition.owner != self._handler_index:
                self.release((each.topic.name, each.partition.index))

    def topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        """Drop what coordinators store about deleted topics, and the coordinators of a deleted internal topic."""
        names = {topic.name for topic in topics}
        for key in list(self._shards):
            if key[0] in names:
                self.release(key)
        known = self._known_topics()
        for coordinator in self.loaded():
            self._guard.run(coordinator, "the end of a topic", coordinator.topics_deleted, known)

    def begin_stop(self) -> None:
        """Answer all waiting requests: the broker stops, so there is no other coordinator."""
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
        """Append the writes that were gathered since the last call."""
        while self.dirty:
            shards = list(self.dirty)
            self.dirty.clear()
            for shard in shards:
                if not self._containment.run("a coordinator's write", None, shard.flush):
                    self._give_up(shard.coordinator)
                elif shard.is_interrupted:
                    # Without a request nothing else would reopen the log, and timers of the coordinator write, too.
                    self._owe(shard.owned.key, _TRY_AGAIN_MS)

    def _next_deadline_ms(self, now_ns: int) -> int:
        """How many milliseconds the Handler may sleep before a coordinator has something to do."""
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
        """What is due: timers, a chunk of a load, a part of a sweep. At every duty cycle, so the first line is for a
        Handler that has none of it."""
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
        """Make the first coordinator of an eager kind that is due; all the others follow in later cycles."""
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
    """The coordinators of one topic, as the APIs see them."""

    def __init__(self, runtime: CoordinatorRuntime, kind: CoordinatorKind[C]) -> None:
        self.kind = kind
        self._runtime = runtime

    def partition_of(self, name: str) -> PartitionImage | None:
        """The partition that coordinates a name; None before the topic exists.

        Partitions that were added later are not used, or names that are stored already would be looked up elsewhere.
        """
        topic = self._runtime.image().topic(self.kind.topic)
        if topic is None:
            return None
        _, count = next(topic.blocks())
        return topic.partitions[partition_for(name, count)]

    def coordinator(self, index: int) -> C:
        """The coordinator of a partition of ours. KafkaError with the code for the client if there is none."""
        shard: Shard[C] = self._runtime.loaded_shard((self.kind.topic, index))
        return shard.coordinator

    def when_settled(self, index: int, on_settled: OnSettled) -> None:
        """Call back when a coordinator that was being loaded can be asked, or is another Handler's, or a short time
        is over: whoever asks then takes what it is told.
        """
        self._runtime.when_settled((self.kind.topic, index), on_settled)

    def give_up(self, index: int) -> None:
        """An operation of that coordinator of ours raised and left it half changed: it is loaded anew."""
        self._runtime.give_up((self.kind.topic, index))

    def append_marker(self, index: int, marker: Marker, on_code: OnCode) -> None:
        """End a transaction at a partition of ours: `on_code(NONE)` when the marker is durable, else its error.

        KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS) if nothing was appended, or it may not have been.
        """
        self._runtime.append_marker((self.kind.topic, index), marker, on_code)

    def loaded(self) -> list[C]:
        """All coordinators of the topic that have been loaded."""
        return self._runtime.loaded(self.kind.topic)

    def when_loaded(self, on_loaded: Callable[[], None]) -> None:
        """Load every partition of ours that has been written to, then call back."""
        self._runtime.when_loaded(self.kind.topic, on_loaded)
