"""The commit protocol of the exactly-once sink against a model of transactions: every death between two steps.

A query of two batches runs over a broker of a few lines, with Spark's part (tasks, their retries, the log of committed
batches) as short. Whoever acts dies before a step, which is after the one before it; what is visible at the end must
be each row once. Zombies are those who do not know that they are dead, and go on at any later step.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from kproc.client import ClientError
from kproc.spark.exactly_once import BatchCommit, OtherRows, Slot, chunk_count, decode_slots, encode_slots
from tests.support.exactly_once_model import (
    NAME,
    PLACE,
    Cut,
    Died,
    ModelBroker,
    Spark,
    another_number_of_tasks,
    check,
    dying,
    failing,
    steps_of,
    two_tasks,
)


def pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((first, second) for first in range(count) for second in range(count))


@pytest.mark.parametrize("cut", [two_tasks, another_number_of_tasks])
@pytest.mark.long
def test_exactly_once_after_two_deaths_at_any_steps(cut: Cut) -> None:
    count = steps_of(cut)
    assert count > 30
    for deaths in pairs(count):
        spark = Spark(ModelBroker(), cut)
        spark.broker.on_step = dying(*deaths)
        spark.run_to_the_end()
        check(spark.broker)


@pytest.mark.long
def test_exactly_once_after_two_deaths_and_transaction_timeouts() -> None:
    for deaths in pairs(steps_of(two_tasks)):
        spark = Spark(ModelBroker(), two_tasks)
        spark.broker.on_step = dying(*deaths)
        spark.run_to_the_end(spark.broker.time_out)
        check(spark.broker)


def test_exactly_once_after_two_commit_requests_time_out() -> None:
    def with_failures(spark: Spark, *failures: int) -> Callable[..., None]:
        def run_commit(batch: int, told: Any) -> None:
            if spark.runs == 1:
                # Also in what follows: the driver clears up, or cannot.
                spark.broker.on_step = failing(*failures)
            spark.driver(batch, told)

        return run_commit

    for failures in pairs(16):
        spark = Spark(ModelBroker(), another_number_of_tasks)
        spark.run_commit = with_failures(spark, *failures)
        spark.run_to_the_end()
        check(spark.broker)


def test_half_committed_batch_with_other_tasks_is_rejected() -> None:
    refused = 0
    for death in range(steps_of(another_number_of_tasks)):
        spark = Spark(ModelBroker(), another_number_of_tasks)
        spark.broker.on_step = dying(death)
        try:
            spark.run_to_the_end(spark.broker.time_out)
        except OtherRows:
            refused += 1
            assert max(Counter(spark.broker.visible).values(), default=1) == 1
        else:
            check(spark.broker)
    # Between the decision and the last transaction of a batch, twice.
    assert 4 <= refused <= 12


def test_exactly_once_after_task_dies_at_any_step() -> None:
    def attempt_of(spark: Spark, number: int, death: int) -> Callable[..., Any]:
        attempts = 0

        def run_task(*arguments: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts - 1 != number:
                return spark.task(*arguments)
            spark.broker.on_step = dying(death)
            try:
                return spark.task(*arguments)
            except Died:
                raise ClientError("the executor is gone") from None
            finally:
                spark.broker.on_step = lambda: None

        return run_task

    for number in range(4):
        for death in range(7):
            spark = Spark(ModelBroker(), two_tasks)
            spark.run_task = attempt_of(spark, number, death)
            spark.run()
            check(spark.broker)


@pytest.mark.parametrize("is_decided", [False, True])
def test_failed_task_leaves_no_open_transaction_unless_decided(is_decided: bool) -> None:
    broker = ModelBroker()
    spark = Spark(broker, two_tasks)
    told = [spark.task(0, 0, [0, 1]), spark.task(0, 1, [2, 3])]
    prepared = [each for each, _, _ in told if each is not None]
    if is_decided:
        broker.on_step = dying(6)  # Behind the decision, before what follows from it.
        with pytest.raises(Died):
            BatchCommit(broker, NAME, 0).commit(prepared, [])
        broker.on_step = lambda: None
    else:
        spark.task(0, 1, [2, 3])  # Another attempt, which does not come to report.
    BatchCommit(broker, NAME, 0).abort(prepared[:1], [1])
    assert (not broker.open_ids(NAME)) is not is_decided
    spark.run()
    assert Counter(broker.visible)[0, 0] == 1
    assert max(Counter(broker.visible).values()) == 1


class Zombie:
    """A part of a run that is stopped at a step, is taken for dead, and goes on when `wake` is called."""

    def __init__(self, broker: ModelBroker, act: Callable[[], Any], at: int) -> None:
        self._broker = broker
        self._act = act
        self._left = at
        self._stopped = threading.Event()
        self._go_on = threading.Event()
        self.is_stopped = False
        self.answer: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> bool:
        """Run up to the step; whether it stopped there, and did not end before."""
        self._broker.on_step = self._on_step
        self._thread.start()
        self._stopped.wait()
        self._broker.on_step = lambda: None
        return self.is_stopped

    def wake(self) -> None:
        """Run to its end."""
        if self.is_stopped:
            before, self._broker.on_step = self._broker.on_step, lambda: None
            self._go_on.set()
            self._thread.join()
            self._broker.on_step = before

    def _run(self) -> None:
        try:
            self.answer = self._act()
        except ClientError:
            self.answer = None  # Fenced, as it should be.
        self._stopped.set()

    def _on_step(self) -> None:
        self._left -= 1
        if self._left < 0 and not self.is_stopped:
            self.is_stopped = True
            self._stopped.set()
            self._go_on.wait()


def waking(zombie: Zombie, at: int) -> Callable[[], None]:
    """Wakes the zombie at this step from now."""
    left = at

    def on_step() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            zombie.wake()

    return on_step


def attempt_beside_its_successor(task: int, at: int, later: int) -> None:
    """The first attempt at a task stops at a step and goes on at one of its successor, or of what follows."""
    spark = Spark(ModelBroker(), two_tasks)
    seen: list[Zombie] = []

    def run_task(batch: int, number: int, rows: list[int]) -> Any:
        if number != task or seen:
            return spark.task(batch, number, rows)
        seen.append(Zombie(spark.broker, lambda: spark.task(batch, number, rows), at))
        if not seen[0].start():
            return seen[0].answer
        spark.broker.on_step = waking(seen[0], later)
        raise ClientError("its executor is lost")

    spark.run_task = run_task
    spark.run_to_the_end()
    seen[0].wake()
    check(spark.broker)


def driver_beside_its_successor(at: int, later: int) -> None:
    """Stop the driver before one step of a commit, and let it go on beside its successor."""
    spark = Spark(ModelBroker(), two_tasks)
    seen: list[Zombie] = []

    def run_commit(batch: int, told: Any) -> None:
        if seen:
            spark.driver(batch, told)
            return
        seen.append(Zombie(spark.broker, lambda: spark.driver(batch, told), at))
        if seen[0].start():
            spark.broker.on_step = waking(seen[0], later)
            raise Died

    spark.run_commit = run_commit
    spark.run_to_the_end()
    seen[0].wake()
    check(spark.broker)


@pytest.mark.parametrize("task", [0, 1])
def test_exactly_once_with_zombie_task_at_any_step(task: int) -> None:
    for at in range(6):
        for later in range(40):
            attempt_beside_its_successor(task, at, later)


def test_exactly_once_with_zombie_driver_at_any_step() -> None:
    for at in range(12):
        for later in range(40):
            driver_beside_its_successor(at, later)


def test_slots_of_many_tasks_fit_offset_metadata() -> None:
    slots = [Slot(task, 2**62 + task, task % 2**15, 10**9 + task, 2**32 - 1 - task) for task in range(1_000)]
    texts = encode_slots(slots)
    assert len(texts) == chunk_count(texts[0]) > 5
    assert max(map(len, texts)) <= 4_096
    assert decode_slots(texts) == slots
    assert decode_slots(encode_slots([])) == []


@pytest.mark.parametrize("text", ["", "x", "0 ", "1 !!!!", "1 AAAA"])
def test_invalid_commit_decision_is_an_error(text: str) -> None:
    with pytest.raises(ClientError, match="not a decision"):
        decode_slots([text] * chunk_count(text))


def test_large_commit_decision_round_trips() -> None:
    broker = ModelBroker()
    count = 250
    for batch in range(2):
        tasks = [BatchCommit(broker, NAME, batch) for _ in range(count)]
        prepared = []
        for task, commit in enumerate(tasks):
            assert not commit.is_done(task)
            identity = commit.start(task)
            assert identity is not None
            broker.write(identity, [(batch, task)])
            prepared.append(commit.prepare(task, identity, PLACE, records=1, digest=task))
        BatchCommit(broker, NAME, batch).commit(prepared, [])
        again = BatchCommit(broker, NAME, batch)
        assert all(again.is_done(task) for task in range(count))
        count = 10  # Fewer tasks are one text: of the older one's others nothing may be taken.
    assert BatchCommit(broker, NAME, 0).is_done(200)
    assert Counter(broker.visible).most_common(1)[0][1] == 1
