"""CoordinatorRuntime: runs all coordinators of one Handler and the logs that store their state.

shard.py has the states of a coordinator's partition. A coordinator is created at the first use of its partition. If its
kind is eager, it is created as soon as this Handler owns the partition. rules.py has the interface between runtime and
coordinators, and topic_coordinators.py the one between runtime and APIs.

All coordinators share one heap of deadlines and one list of logs with queued writes, and `_busy` has the shards with
work. So a duty cycle without work costs the same with any number of topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator import steps
from kproc.broker.coordinator.coordinator_epochs import CoordinatorEpochs
from kproc.broker.coordinator.coordinator_log import CoordinatorKind, CoordinatorLog, Guard
from kproc.broker.coordinator.load_times import OpeningBudget, RecentLoads
from kproc.broker.coordinator.rules import Code, Coordinator, DueOf, KnownTopics, Marker, OnCode
from kproc.broker.coordinator.shard import OnWake, Shard, ShardState
from kproc.broker.coordinator.step_scheduler import StepScheduler
from kproc.broker.coordinator.topic_coordinators import TopicCoordinators
from kproc.broker.request.context import PartitionKey, PartitionMoving
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.containment import Containment
from kproc.common.deadlines import NEVER, Deadlines
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.calls.controller_calls import AskController
    from kproc.broker.cluster.image import ClusterImage, MovedPartition, PartitionImage, TopicImage
    from kproc.broker.config import Config
    from kproc.broker.handler.partitions import Partitions

logger = logging.getLogger(__name__)

# The opening of an eager coordinator that is not possible yet is retried after 50 ms, or after 5 s if its log is
# offline.
_TRY_AGAIN_MS: Final = 50
_OFFLINE_MS: Final = 5_000
# Limit of the timers that run in one duty cycle. The sessions of 100,000 groups can end together, and each end appends
# a record.
_TIMERS_PER_CYCLE: Final = 48

_UNLOADED: Final = frozenset({ShardState.OPENING, ShardState.LOADING})


class CoordinatorRuntime:
    """Loads and runs the group, share and transaction coordinators of one Handler.

    The Handler calls `work` in each duty cycle and sleeps for at most `due_ms`.
    """

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
        # The shards whose `due_ms` is not NEVER. `_update` keeps it after each change of a shard.
        self._busy: dict[PartitionKey, Shard[Any]] = {}
        self._epochs = CoordinatorEpochs(image, ask_controller, lambda key: self._try_at(key, 0))
        self._on_loaded: list[tuple[str, Callable[[], None]]] = []  # (topic, callback of `when_loaded`).
        self._guard = Guard(containment, self._discard)
        self._stepping = StepScheduler(self._guard)
        # Work that only reads many coordinators, for metrics.
        self._surveys = steps.Steps()
        now_ms = clock.now_ns() // NS_PER_MS
        self._sweep_at_ms = {kind.topic: now_ms + kind.sweep_interval_ms for kind in kinds}
        self._next_sweep_ms = min(self._sweep_at_ms.values(), default=NEVER)
        self._is_stopping = False
        self._opening_budget = OpeningBudget()
        self._loads = RecentLoads(self.by_topic)
        self.dirty: dict[CoordinatorLog[Any], None] = {}
        # While all of these are empty, only the next timer and the next sweep can be due.
        self._unfinished = (
            self.dirty,
            self._busy,
            self._stepping.waiting,
            self._surveys,
            self._epochs.unsent,
        )
        self.due_ms = 0  # Milliseconds until `work` has something to do again.

    # -- requests ----------------------------------------------------------------------------------------------

    def image(self) -> ClusterImage:
        """Return this Handler's present metadata."""
        return self._image()

    def ready_log(self, key: PartitionKey) -> CoordinatorLog[Any]:
        """Return the log of a partition of this Handler, with its loaded coordinator. Start the load if necessary.

        Raises KafkaError with the code for the client. COORDINATOR_LOAD_IN_PROGRESS: the load has not ended, or
        requests that were parked for it have not run yet. NOT_COORDINATOR: another Handler owns the partition, or its
        log cannot be loaded. COORDINATOR_NOT_AVAILABLE: this Handler stops.
        """
        shard = self._shard(key)
        if shard.log is None or shard.state is not ShardState.READY or shard.waiting:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard.log

    def park(self, key: PartitionKey, on_wake: OnWake) -> None:
        """Call `on_wake` once, when a request that got COORDINATOR_LOAD_IN_PROGRESS should try again.

        If `on_wake` raises an unexpected exception, only its own request fails.
        """
        now_ms = self._clock.now_ns() // NS_PER_MS
        shard = self._shards.setdefault(key, Shard(key))
        shard.park(self._containment.bind_owner("a request that waited for a coordinator", on_wake), now_ms)
        if shard.state is ShardState.READY:
            shard.is_settled = True
        elif shard.log is None and shard.try_at_ms == NEVER:
            shard.state = ShardState.OPENING
            shard.try_at_ms = now_ms + _TRY_AGAIN_MS  # The log is still being transferred to us.
        self._update(shard)

    def reload(self, key: PartitionKey) -> None:
        """Discard a coordinator after an unexpected exception of one of its operations, and load it again."""
        shard = self._shards.get(key)
        if shard is not None and shard.log is not None:
            self._discard(shard.log.coordinator)

    def append_marker(self, key: PartitionKey, marker: Marker, on_code: OnCode) -> None:
        """Append a transaction marker to a partition of this Handler.

        `on_code` gets NONE when it is durable, or an error. Raises KafkaError if the partition has no loaded
        coordinator. Also raises it after an unexpected exception, when the marker may be in the log or not.
        """
        log = self.ready_log(key)
        codes: list[Code] = []
        if not self._containment.run(
            "a marker of a transaction", None, lambda: codes.append(log.append_marker(marker))
        ):
            # The marker may be in the log or not. Its transaction coordinator sends it again after this error.
            self._discard(log.coordinator)
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if codes[0]:
            on_code(codes[0])
        else:
            log.when_durable(on_code)

    def loaded(self, name: str | None = None) -> list[Any]:
        """Return the loaded coordinators of the internal topic `name`, or of all internal topics for None."""
        return [
            shard.log.coordinator
            for key, shard in self._shards.items()
            if shard.state is ShardState.READY and shard.log is not None and (name is None or key[0] == name)
        ]

    def recent_loads(self, name: str) -> list[int]:
        """Return the durations in ns of the loads of a topic's coordinators that ended in the last 30 s."""
        return self._loads.durations(name, self._clock.now_ns())

    def when_loaded(self, name: str, on_loaded: Callable[[], None]) -> None:
        """Load the coordinators of those partitions of a topic that this Handler owns and that have records.

        Then call back.
        """
        if not self.by_topic[name].kind.is_eager:
            for key in self._absent_with_records(name):
                self._try_at(key, 0)
        self._on_loaded.append((name, on_loaded))
        self._report_loaded()

    def start_survey(self, work: steps.Work) -> None:
        """Run `work`, which reads many coordinators, in steps. Between two steps, coordinators can be released."""
        self._surveys.add(work)

    def _report_loaded(self) -> None:
        if not self._on_loaded:
            return
        busy = {key[0] for key, shard in self._busy.items() if shard.state in _UNLOADED}
        due = [each for each in self._on_loaded if each[0] not in busy]
        self._on_loaded = [each for each in self._on_loaded if each[0] in busy]
        for _, on_loaded in due:
            on_loaded()

    # -- states ------------------------------------------------------------------------------------------------

    def _shard(self, key: PartitionKey) -> Shard[Any]:
        """Return the shard of a partition of this Handler, loading or ready. Open it first if necessary.

        Raises KafkaError as `ready_log` does.
        """
        if self._is_stopping:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = self._image().partition(*key)
        if partition is None or partition.owner != self._handler_index:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(key)
        # If a Shortage interrupted a change of the log, the log accepts no writes. Release the coordinator; opening the
        # partition again below completes the change.
        if shard is not None and shard.log is not None:
            owned = shard.log.owned
            if self._partitions.find(key) is not owned or owned.log.state.can_reopen:
                self.release(key)
                if self.by_topic[key[0]].kind.is_eager:
                    self._try_at(key, _TRY_AGAIN_MS)  # Try again later if opening it below fails.
                shard = self._shards.get(key)
        if shard is None or shard.log is None:
            shard = self._open_in_time(key, partition)
        if shard.state is ShardState.FAILED:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return shard

    def _open_in_time(self, key: PartitionKey, partition: PartitionImage) -> Shard[Any]:
        """Open a shard now, or in a later duty cycle if requests have opened logs for 20 ms within the last 200 ms."""
        now_ns = self._clock.now_ns()
        if self._opening_budget.is_spent(now_ns):
            self._try_at(key, 0)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        try:
            return self._open(key, partition)
        finally:
            self._opening_budget.spend(self._clock.now_ns() - now_ns)

    def _open(self, key: PartitionKey, partition: PartitionImage) -> Shard[Any]:
        """Open the log and create the coordinator. Return its shard, which is loading or already ready."""
        try:
            owned = self._partitions.get(key[0], partition)
        except PartitionMoving as error:
            # The former owner still transfers the log, or its opening is deferred. Clients retry this error.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        kind = self.by_topic[key[0]].kind
        epoch = self._epochs.pop(key, at_least=owned.log.state.leader_epoch) if kind.is_eager else 0
        if epoch is None:
            self._try_at(key, _TRY_AGAIN_MS)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        shard = self._shards.setdefault(key, Shard(key))
        shard.log = CoordinatorLog(
            kind, owned, self._config, self._clock, self._deadlines, self.dirty, epoch, self._guard
        )
        shard.state, shard.try_at_ms = ShardState.LOADING, NEVER
        self._update(shard)
        self._load_some(shard)
        return shard

    def _load_some(self, shard: Shard[Any]) -> None:
        """Run one step of a load. When the load ends, the shard is ready or failed.

        After a Shortage it is opening again.
        """
        log = shard.log
        assert log is not None, "a shard without a log does not load"
        if not self._containment.run(
            "loading a coordinator", None, log.load_some, KnownTopics.of(self._image)
        ):
            log.is_damaged = True  # Another attempt would fail at the same record.
        if log.is_starved:
            shard.log = None
            self._try_at(shard.key, _TRY_AGAIN_MS)
        elif log.is_loaded or log.is_damaged:
            now_ns = self._clock.now_ns()
            self._loads.add(shard.key[0], now_ns, now_ns - log.began_ns)
            shard.state = ShardState.FAILED if log.is_damaged else ShardState.READY
            shard.is_settled = bool(shard.waiting)
            self._update(shard)

    def _try_at(self, key: PartitionKey, delay_ms: int) -> None:
        """Open a partition's shard after `delay_ms`, even if no request comes."""
        shard = self._shards.setdefault(key, Shard(key))
        if shard.log is None:
            shard.state = ShardState.OPENING
        shard.try_at_ms = self._clock.now_ns() // NS_PER_MS + delay_ms
        self._update(shard)

    def _open_due(self, shard: Shard[Any], now_ms: int) -> None:
        """Open a shard whose `try_at_ms` is reached."""
        key = shard.key
        shard.try_at_ms = NEVER
        self._opening_budget.reset()  # One shard is opened in each duty cycle, whatever requests have opened before.
        try:
            self._shard(key)
        except KafkaError as error:
            shard = self._shards.setdefault(key, shard)  # A release may have removed it.
            is_eager = self.by_topic[key[0]].kind.is_eager
            if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and (is_eager or shard.waiting):
                self._try_at(key, _TRY_AGAIN_MS)
                return
            if shard.log is None:
                partition = self._image().partition(*key)
                if is_eager and partition is not None and partition.owner == self._handler_index:
                    # The partition's log is offline until an administrator acts. Frequent attempts would only flood the
                    # broker's log file.
                    shard.state, shard.try_at_ms = ShardState.FAILED, now_ms + _OFFLINE_MS
                else:
                    logger.info(
                        "cannot open the coordinator of %s-%d; the next request to it tries again: %s",
                        *key,
                        error,
                    )
                    shard.state = None
            shard.is_settled = bool(shard.waiting)
        self._update(shard)

    def _update(self, shard: Shard[Any]) -> None:
        """Update `_busy` and `_shards` after a change of a shard.

        `_busy` has exactly the shards with a due time (`Shard.due_ms`). A shard without a due time and without a state
        is deleted: its coordinator is not opened, and no request waits for it.
        """
        key = shard.key
        if self._shards.get(key) is not shard:
            return  # A callback has removed it, and another one may be in its place.
        if shard.due_ms != NEVER:
            self._busy[key] = shard
            return
        self._busy.pop(key, None)
        if shard.state is None:
            del self._shards[key]

    def _absent_with_records(self, name: str) -> list[PartitionKey]:
        """Return the partitions of a coordinators' topic that this Handler owns and whose coordinator is not loaded.

        Partitions without a directory are left out, because they have no records. The callers load the coordinators.
        """
        topic = self._image().topic(name)
        return [
            key
            for partition in (topic.partitions if topic is not None else ())
            if partition.owner == self._handler_index
            and ((shard := self._shards.get(key := (name, partition.index))) is None or shard.log is None)
            # A log that was never written has no directory, and opening it would create one.
            and self._partitions.fs.exists(Path(self._config.log_dirs) / f"{name}-{partition.index}")
        ]

    def load_eagerly(self) -> None:
        """Load the coordinators of eager kinds for this Handler's partitions, at the start and when owners change."""
        if self._is_stopping:
            return
        for name, coordinators in self.by_topic.items():
            if coordinators.kind.is_eager:
                for key in self._absent_with_records(name):
                    self._epochs.request(key)
                    self._try_at(key, 0)

    def release(self, key: PartitionKey) -> None:
        """Release the coordinator of a partition that gets another owner. Waiting requests are routed to that owner."""
        self._epochs.discard(key)
        shard = self._shards.get(key)
        if shard is None:
            return
        log, shard.log = shard.log, None
        shard.state, shard.try_at_ms = None, NEVER
        # The next duty cycle wakes the waiting requests and runs the callbacks of `when_loaded`.
        shard.is_settled = bool(shard.waiting or self._on_loaded)
        self._update(shard)
        if log is not None:
            log.coordinator.resign()
            log.release()
            self.dirty.pop(log, None)
            self._stepping.add(log.coordinator)

    def _discard(self, coordinator: Coordinator) -> None:
        """Discard a coordinator that an unexpected exception left half changed.

        Its clients look it up again, and it is loaded again from its log.
        """
        for key, shard in list(self._shards.items()):
            log = shard.log
            if log is not None and log.coordinator is coordinator:
                shard.log, shard.state, shard.try_at_ms = None, None, NEVER
                self.dirty.pop(log, None)
                self._update(shard)
                if self.by_topic[key[0]].kind.is_eager:
                    self._try_at(key, _TRY_AGAIN_MS)
                self._containment.run("discarding a coordinator", None, coordinator.abandon)
                self._containment.run("discarding a coordinator", None, log.abandon)
                self._stepping.add(coordinator)

    # -- changes of the metadata -------------------------------------------------------------------------------

    def on_moved(self, moved: Sequence[MovedPartition]) -> None:
        """Release partitions that have another owner. Call it while their logs are open, to append queued writes."""
        for each in moved:
            if each.topic.name in self.by_topic and each.partition.owner != self._handler_index:
                self.release((each.topic.name, each.partition.index))

    def topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        """Release the coordinators of deleted internal topics.

        The coordinators of other topics start to remove their state about the deleted topics.
        """
        names = {topic.name for topic in topics}
        for key in list(self._shards):
            if key[0] in names:
                self.release(key)
        known = KnownTopics.of(self._image)
        for shard in list(self._shards.values()):
            # A coordinator that still replays its log learns the deleted topics at the end of its replay.
            if shard.log is None or not shard.log.is_replayed or shard.state is ShardState.FAILED:
                continue
            coordinator = shard.log.coordinator
            if self._guard.run(coordinator, "the end of a topic", coordinator.topics_deleted, known):
                self._stepping.add(coordinator)

    def drain(self) -> None:
        """Release all coordinators at a stop. Requests that wait for a load get COORDINATOR_NOT_AVAILABLE."""
        self._is_stopping = True
        self._next_sweep_ms = NEVER
        for key in list(self._shards):
            self.release(key)
        for shard in list(self._busy.values()):
            self._wake(shard)
        self._report_loaded()

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Append the records that coordinators have queued since the last call to their logs."""
        while self.dirty:
            logs = list(self.dirty)
            self.dirty.clear()
            for log in logs:
                if not self._containment.run("a coordinator's write", None, log.flush):
                    self._discard(log.coordinator)
                elif log.is_interrupted:
                    # A Shortage interrupted a change of the log, which rejects writes until it is opened again. Reopen
                    # it without a request, because the coordinator's timers write, too.
                    self._try_at(log.owned.key, _TRY_AGAIN_MS)

    def _next_deadline_ms(self, now_ns: int) -> int:
        """Return how many ms the Handler may sleep before a coordinator has work."""
        due_ms = self._deadlines.first
        if self._next_sweep_ms < due_ms:
            due_ms = self._next_sweep_ms
        if any(self._unfinished):
            if self.dirty or self._stepping.waiting or self._surveys or self._epochs.unsent:
                return 0
            due_ms = min(due_ms, *(shard.due_ms for shard in self._busy.values()))
        left_ms = due_ms - now_ns // NS_PER_MS
        return left_ms if left_ms > 0 else 0

    def work(self, now_ns: int) -> int:
        """Run what is due: timers, one step of a load, one step of coordinators. Return the amount of work.

        This runs in every duty cycle, so it returns after one check if nothing is due.
        """
        self.due_ms = self._next_deadline_ms(now_ns)
        if self.due_ms:
            return 0
        now_ms = now_ns // NS_PER_MS
        work = 0
        if self._deadlines.first <= now_ms:
            for coordinator, name in self._deadlines.pop_due(now_ms, _TIMERS_PER_CYCLE):
                self._guard.run(coordinator, "a timer of a coordinator", coordinator.tick, name)
                self._stepping.add(coordinator)
                work += 1
        if self._busy:
            work += self._work_on_shards(now_ms)
        if self._epochs.unsent:
            self._epochs.send_requests()
        if now_ms >= self._next_sweep_ms:
            self._start_sweeps(now_ms)
        if self._stepping.waiting:
            work += 1
            self._stepping.run()
        if self._surveys:
            work += 1
            self._containment.run("a survey of coordinators", None, self._surveys.run)
        self.flush()
        self.due_ms = self._next_deadline_ms(now_ns)
        return work

    def _work_on_shards(self, now_ms: int) -> int:
        """Open one shard, run one step of one load, and wake the requests whose wait is over."""
        work = 0
        opening = next((each for each in self._busy.values() if each.try_at_ms <= now_ms), None)
        if opening is not None:
            self._open_due(opening, now_ms)
            work += 1
        loading = next((each for each in self._busy.values() if each.state is ShardState.LOADING), None)
        if loading is not None:
            self._load_some(loading)
            work += 1
        self._report_loaded()
        for shard in list(self._busy.values()):
            if shard.is_settled or shard.wait_ends_ms <= now_ms:
                work += self._wake(shard)
        return work

    def _wake(self, shard: Shard[Any]) -> int:
        """Repeat the requests that wait for a shard, in their order. Return the number of requests."""
        waiting = shard.dequeue()
        for on_wake in waiting:
            on_wake()
        self._update(shard)
        return len(waiting)

    def follow_time(self) -> None:
        """Start the sweeps of all coordinators in the next duty cycle, because a test has moved the broker's time."""
        self._sweep_at_ms = dict.fromkeys(self._sweep_at_ms, 0)
        self._next_sweep_ms = 0 if self._sweep_at_ms else NEVER

    def _start_sweeps(self, now_ms: int) -> None:
        for name, at_ms in self._sweep_at_ms.items():
            if now_ms >= at_ms:
                self._sweep_at_ms[name] = now_ms + self.by_topic[name].kind.sweep_interval_ms
                self.when_loaded(name, partial(self._start_sweep, name))
        self._next_sweep_ms = min(self._sweep_at_ms.values())

    def _start_sweep(self, name: str) -> None:
        for coordinator in self.loaded(name):
            if self._guard.run(coordinator, "a sweep", coordinator.start_sweep):
                self._stepping.add(coordinator)

    @property
    def has_steps(self) -> bool:
        """True if a coordinator has steps to run.

        This can be a released coordinator that still answers its waiting requests.
        """
        return bool(self._stepping.waiting)
