"""A transaction coordinator on a manual clock, with a log whose writes are done when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kproc.broker.config import Config
from kproc.broker.coordinator.memory_limit import MemoryLimit
from kproc.broker.coordinator.rules import DueOf, KeyAndValue, KnownTopics, Marker, Timing, Write
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.entry import Environment
from kproc.broker.transaction.messages import AddRequest, EndRequest, Granted, InitRequest
from kproc.broker.transaction.state import PartitionKey, Transaction
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.coordinators import run_steps

NAME = "payments"
P0, P1 = ("orders", 0), ("orders", 1)
TIMEOUT_MS = 60_000
COMMIT, ABORT = True, False


class Log:
    """Appends at `append`, and is durable at `sync`; both at once unless the test holds them."""

    def __init__(self) -> None:
        self.records: list[KeyAndValue] = []
        self.gathered: list[Write] = []
        self.unsynced: list[Write] = []
        self.holds_appends = self.holds_syncs = False
        self.error = ErrorCode.NONE  # Of the next appends.

    def write(self, write: Write) -> None:
        self.gathered.append(write)
        if not self.holds_appends:
            self.append()

    def flush(self) -> None:
        self.append()

    def guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        return callback  # A surprise is to end the test.

    def append(self) -> None:
        while self.gathered:
            write = self.gathered.pop(0)
            if self.error and write.records:
                write.on_done(self.error)
                continue
            self.records += write.records
            for number in range(len(write.records) if write.apply is not None else 0):
                write.apply(number, len(self.records) - len(write.records) + number)
            if write.is_awaited:
                self.unsynced.append(write)
            else:
                write.on_done(ErrorCode.NONE)
        if not self.holds_syncs:
            self.sync()

    def sync(self) -> None:
        unsynced, self.unsynced = self.unsynced, []
        for write in unsynced:
            write.on_done(ErrorCode.NONE)


class CoordinatorRig:
    """The coordinator and all that it is given."""

    def __init__(self, *, version: int = 2, records: Sequence[KeyAndValue] = (), **settings: object) -> None:
        self.clock = ManualClock()
        self.version = version
        self.config = Config.build({name.replace("_", "."): str(value) for name, value in settings.items()})
        self.ids = 1000
        self.memory = MemoryLimit("kproc.transactional.ids.max.bytes", 1 << 30)
        self.id_error: KafkaError | None = None
        self.sent: list[tuple[list[tuple[PartitionKey, Marker]], Callable[[int, int], None]]] = []
        self.restart(records)

    def restart(self, records: Sequence[KeyAndValue], epoch: int = 7, *, holds_syncs: bool = False) -> None:
        """Load a new coordinator from a log."""
        self.log = Log()
        self.log.holds_syncs = holds_syncs
        self.log.records = list(records)
        self.sent = []
        self.deadlines: Deadlines[DueOf] = Deadlines()
        timing = Timing(now_ms=self.now_ms, wall_ms=self.clock.wall_ms, random_id=lambda: "")
        environment = Environment(
            self.config, timing, lambda: self.version, self._new_id, self._send, self.memory
        )
        self.coordinator = TransactionCoordinator(environment, self.log, self.deadlines, epoch)
        # As in CoordinatorReplay, only the last record of each key is replayed, and no tombstone.
        for offset, (key, value) in enumerate(dict(records).items()):
            if value is not None:
                self.coordinator.replay(key, value, offset, None)
        self.coordinator.finish_loading(KnownTopics(lambda _name: b"", {}, lambda _name, _index: 0))
        run_steps(self.coordinator)

    def now_ms(self) -> int:
        return self.clock.now_ns() // 1_000_000

    def _new_id(self, on_id: Callable[[int], None], on_failure: Callable[[KafkaError], None]) -> None:
        if self.id_error is not None:
            on_failure(self.id_error)
            return
        self.ids += 1
        on_id(self.ids)

    def _send(self, parts: Any, on_code: Any) -> None:
        self.sent.append((list(parts), on_code))

    def work(self) -> None:
        """What is due now, as the runtime does it."""
        for coordinator, name in self.deadlines.pop_due(self.now_ms()):
            assert coordinator is self.coordinator
            coordinator.tick(name)
            run_steps(coordinator)

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, with the ticks that the coordinator asks for."""
        end_ms = self.now_ms() + duration_ms
        while self.now_ms() < end_ms:
            step_ms = min(end_ms, max(self.deadlines.first, self.now_ms())) - self.now_ms()
            self.clock.advance_ms(step_ms or 1)
            self.work()

    def take_markers(self, code: int = ErrorCode.NONE, **codes: int) -> list[tuple[PartitionKey, Marker]]:
        """The markers that were sent since the last time; their partitions answer `code`."""
        self.work()
        sent, self.sent = self.sent, []
        for parts, on_code in sent:
            for at, (key, _) in enumerate(parts):
                on_code(at, codes.get(f"p{key[1]}", code))
        return [part for parts, _ in sent for part in parts]

    # Requests; an answer that has not come yet is None.

    def init(self, *, timeout_ms: int = TIMEOUT_MS, name: str = NAME, **current: int) -> list[Granted]:
        answers: list[Granted] = []
        self.coordinator.init(name, InitRequest(timeout_ms, **current), answers.append)
        return answers

    def add(
        self, producer: Granted, *partitions: PartitionKey, version: int = 2, name: str = NAME
    ) -> list[int]:
        codes: list[int] = []
        request = AddRequest(producer.producer_id, producer.epoch, partitions or (P0,), version)
        self.coordinator.add(name, request, codes.append)
        return codes

    def end(self, producer: Granted, is_commit: bool, *, version: int = 2, name: str = NAME) -> list[Granted]:
        answers: list[Granted] = []
        request = EndRequest(producer.producer_id, producer.epoch, is_commit, version)
        self.coordinator.end(name, request, answers.append)
        return answers

    def producer(self, name: str = NAME) -> Granted:
        """A producer that has just begun."""
        (granted,) = self.init(name=name)
        assert granted.error_code == ErrorCode.NONE
        return granted

    def ongoing(self, *, version: int = 2) -> Granted:
        """Begin a transaction with two partitions."""
        producer = self.producer()
        assert self.add(producer, P0, P1, version=version) == [ErrorCode.NONE]
        return producer

    def state(self, name: str = NAME) -> Transaction:
        found = self.coordinator.describe(name)
        assert found is not None
        return found.transaction

    @property
    def word(self) -> str:
        return self.state().state.word
