"""A model of transactions and of Spark around the exactly-once sink. Whoever acts can die before each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kproc.client import ClientError
from kproc.spark.exactly_once import BatchCommit, Mark, PreparedTask, TransactionLost, Unsettled
from kproc.spark.lane import ProducerIdentity
from kproc.spark.offsets import TopicPartition

NAME = "query"
BATCHES = 2
ROWS = 6
PLACE = TopicPartition("t", 0)
ATTEMPTS_MAX = 4
RUNS_MAX = 8


class Died(BaseException):
    """Death of the process that runs the step."""


@dataclass
class Transaction:
    """State of a transactional id at its coordinator."""

    epoch: int = -1
    state: str = "empty"
    rows: list[tuple[int, int]] = field(default_factory=list)
    marks: dict[tuple[str, int], Mark] = field(default_factory=dict)


class AnswerLost(ClientError):
    """A request was done, or was not, and was given up."""


class Fenced(ClientError):
    """The epoch is not the newest one's."""


class ModelBroker:
    """Transactions, offsets and one topic. `on_step` is called before each step: it may raise, or wait."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, int], Mark] = {}
        self.visible: list[tuple[int, int]] = []
        self.on_step: Callable[[], None] = lambda: None

    # -- what happens by itself

    def time_out(self) -> None:
        """Everything open is aborted, under a raised epoch."""
        for transaction in self.transactions.values():
            if transaction.state == "open":
                self._end(transaction, commit=False)
                transaction.epoch += 1

    def _end(self, transaction: Transaction, *, commit: bool) -> None:
        if commit:
            self.visible += transaction.rows
            self.offsets |= transaction.marks
        transaction.rows, transaction.marks = [], {}
        transaction.state = "committed" if commit else "aborted"

    def _step(self, do: Callable[[], Any]) -> Any:
        self.on_step()
        return do()

    def _current(self, identity: ProducerIdentity) -> Transaction:
        transaction = self.transactions[str(identity.transactional_id)]
        if transaction.epoch != identity.epoch or transaction.state in ("committed", "aborted"):
            raise Fenced("not the newest")
        return transaction

    # -- requests

    def init(self, transactional_id: str) -> ProducerIdentity:
        def do() -> ProducerIdentity:
            transaction = self.transactions.setdefault(transactional_id, Transaction())
            if transaction.state == "open":
                self._end(transaction, commit=False)
            transaction.epoch += 1
            transaction.state = "empty"
            return ProducerIdentity(1, transaction.epoch, transactional_id)

        return self._step(do)

    def write(self, identity: ProducerIdentity, rows: Sequence[tuple[int, int]]) -> None:
        def do() -> None:
            transaction = self._current(identity)
            transaction.state = "open"
            transaction.rows += rows

        self._step(do)

    def mark(self, identity: ProducerIdentity, marks: Mapping[int, Mark]) -> None:
        def do() -> None:
            transaction = self._current(identity)
            transaction.state = "open"
            group = str(identity.transactional_id)
            transaction.marks |= {(group, partition): mark for partition, mark in marks.items()}

        self._step(do)

    def is_open(self, identity: ProducerIdentity, place: TopicPartition) -> bool:
        def do() -> bool:
            transaction = self.transactions[str(identity.transactional_id)]
            return transaction.epoch == identity.epoch and transaction.state == "open"

        return self._step(do)

    def finish(self, identity: ProducerIdentity, *, commit: bool) -> bool:
        def do() -> bool:
            transaction = self.transactions[str(identity.transactional_id)]
            if transaction.epoch != identity.epoch:
                return False
            if transaction.state == "open":
                self._end(transaction, commit=commit)
            return transaction.state == ("committed" if commit else "aborted")

        return self._step(do)

    def marks(self, group: str, partitions: Sequence[int]) -> dict[int, Mark]:
        def do() -> dict[int, Mark]:
            pending = [key for each in self.transactions.values() for key in each.marks]
            if any((group, partition) in pending for partition in partitions):
                raise Unsettled(group)
            return {each: self.offsets.get((group, each), Mark(-1, "")) for each in partitions}

        return self._step(do)

    def open_ids(self, prefix: str) -> list[str]:
        found = [name for name, each in self.transactions.items() if each.state == "open"]
        return self._step(lambda: [name for name in found if name.startswith(prefix)])

    def wait(self) -> None: ...


Cut = Callable[[int, int], list[list[int]]]


def two_tasks(batch: int, run: int) -> list[list[int]]:
    return [list(range(3)), list(range(3, ROWS))]


def another_number_of_tasks(batch: int, run: int) -> list[list[int]]:
    """Two, then three, then one."""
    count = (2, 3, 1)[run % 3]
    return [list(range(ROWS))[number::count] for number in range(count)]


class Spark:
    """Spark's part around the sink. `committed` is Spark's own log, which survives a death of the driver."""

    def __init__(self, broker: ModelBroker, cut: Cut, name: str = NAME) -> None:
        self.broker = broker
        self.name = name
        self.cut = cut
        self.committed = -1
        self.runs = 0
        self.run_task: Callable[..., tuple[PreparedTask | None, bool, bool]] = self.task
        self.run_commit: Callable[..., None] = self.driver

    def task(self, batch: int, task: int, rows: list[int]) -> tuple[PreparedTask | None, bool, bool]:
        """An attempt: (what it prepared, whether it found all done, whether the batch was decided)."""
        commit = BatchCommit(self.broker, self.name, batch)
        if commit.is_done(task):
            return None, True, True
        if not rows:
            return None, False, commit.is_decided
        identity = commit.start(task)
        if identity is None:
            return None, True, commit.is_decided
        self.broker.write(identity, [(batch, row) for row in rows])
        digest = sum(rows)
        prepared = commit.prepare(task, identity, PLACE, records=len(rows), digest=digest)
        return prepared, False, commit.is_decided

    def driver(self, batch: int, told: list[tuple[PreparedTask | None, bool, bool]]) -> None:
        commit = BatchCommit(self.broker, self.name, batch)
        prepared = [each for each, _, _ in told if each is not None]
        if prepared or any(is_decided for _, _, is_decided in told):
            commit.commit(prepared, [task for task, (_, is_done, _) in enumerate(told) if is_done])
        if not batch:
            commit.sweep(prepared)

    def run(self) -> None:
        """From the log on to the last batch; Died when the driver is killed, ClientError when the query fails."""
        self.runs += 1
        for batch in range(self.committed + 1, BATCHES):
            told = []
            for task, rows in enumerate(self.cut(batch, self.runs - 1)):
                told.append(self._attempts(batch, task, rows))
            try:
                self.run_commit(batch, told)
            except ClientError:
                BatchCommit(self.broker, self.name, batch).abort(
                    [each for each, _, _ in told if each is not None], []
                )
                raise
            self.broker.on_step()
            self.committed = batch

    def _attempts(self, batch: int, task: int, rows: list[int]) -> tuple[PreparedTask | None, bool, bool]:
        for _ in range(ATTEMPTS_MAX):
            try:
                return self.run_task(batch, task, rows)
            except ClientError:
                continue
        raise ClientError("the task fails")

    def run_to_the_end(self, between: Callable[[], None] = lambda: None) -> None:
        """As whoever starts a job anew that has ended."""
        for _ in range(RUNS_MAX):
            try:
                self.run()
                return
            except (Died, TransactionLost, Fenced, AnswerLost):
                between()
        raise AssertionError("it does not come to an end")


def dying(*deaths: int) -> Callable[[], None]:
    """Dies at these steps; the count of a death begins with the one before it."""
    left = list(deaths)
    count = 0

    def on_step() -> None:
        nonlocal count
        if left and count == left[0]:
            left.pop(0)
            count = 0
            raise Died
        count += 1

    return on_step


def failing(*failures: int) -> Callable[[], None]:
    """Gives up a request at these steps; what comes next is done by whoever has to clear up."""
    deaths = dying(*failures)

    def on_step() -> None:
        try:
            deaths()
        except Died:
            raise AnswerLost("no answer") from None

    return on_step


def steps_of(cut: Cut) -> int:
    """Count the steps of a run without a death. The driver or a task can die before each of them."""
    spark = Spark(ModelBroker(), cut)
    count = 0

    def on_step() -> None:
        nonlocal count
        count += 1

    spark.broker.on_step = on_step
    spark.run()
    check(spark.broker)
    return count


def check(broker: ModelBroker) -> None:
    """Each row once, and nothing left open for readers to wait for."""
    assert Counter(broker.visible) == Counter((batch, row) for batch in range(BATCHES) for row in range(ROWS))
