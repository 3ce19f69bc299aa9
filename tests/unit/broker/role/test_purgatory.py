"""Delayed operations: completed exactly once, by whatever comes first, and forgotten everywhere after that."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kproc.broker.role.purgatory import DelayedCall, DelayedOperation, Purgatory
from kproc.common.clock import ManualClock
from kproc.common.deadlines import NEVER


class Waiting(DelayedOperation):
    """Completes when told that it may; writes down what happened to it."""

    def __init__(self, deadline_ns: int, *, name: str = "", then: Callable[[], None] = lambda: None) -> None:
        super().__init__(deadline_ns)
        self.name = name
        self.can_complete = False
        self.tries = 0
        self.completions = 0
        self.expirations = 0
        self._then = then

    def try_complete(self) -> bool:
        self.tries += 1
        return self.can_complete and self.complete()

    def on_complete(self) -> None:
        self.completions += 1
        self._then()

    def on_expire(self) -> None:
        self.expirations += 1
        super().on_expire()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def purgatory(clock: ManualClock) -> Purgatory:
    return Purgatory(clock.now_ns)


def parked(purgatory: Purgatory, clock: ManualClock, *keys: object, wait_ms: int = 100) -> Waiting:
    operation = Waiting(clock.now_ns() + wait_ms * 1_000_000)
    purgatory.watch(operation, keys)
    return operation


def test_event_on_a_key_tries_only_those_that_watch_it(purgatory: Purgatory, clock: ManualClock) -> None:
    one, other = parked(purgatory, clock, "a"), parked(purgatory, clock, "b")
    purgatory.check("a")
    purgatory.check("nobody watches this")
    assert (one.tries, other.tries) == (1, 0)
    assert len(purgatory) == 2


def test_completing_twice_answers_once() -> None:
    operation = Waiting(0)
    assert operation.complete()
    assert not operation.complete()
    operation.on_expire()
    assert operation.completions == 1


def test_operation_that_cannot_complete_yet_stays(purgatory: Purgatory, clock: ManualClock) -> None:
    operation = parked(purgatory, clock, "a")
    for _ in range(3):
        purgatory.check("a")
    assert operation.tries == 3
    assert operation.completions == 0
    operation.can_complete = True
    purgatory.check("a")
    assert operation.completions == 1


def test_operation_completes_once_although_all_its_keys_fire(
    purgatory: Purgatory, clock: ManualClock
) -> None:
    operation = parked(purgatory, clock, "a", "b", "c")
    operation.can_complete = True
    for key in "abcabc":
        purgatory.check(key)
    clock.advance_ms(1000)
    purgatory.expire()
    purgatory.expire_all()
    assert (operation.tries, operation.completions, operation.expirations) == (1, 1, 0)
    assert not any(purgatory.is_watched(key) for key in "abc")
    assert len(purgatory) == 0


def test_deadline_completes_what_nothing_else_did(purgatory: Purgatory, clock: ManualClock) -> None:
    operation = parked(purgatory, clock, "a", wait_ms=100)
    clock.advance_ns(100_000_000 - 1)
    assert purgatory.expire() == 0
    clock.advance_ns(1)
    assert purgatory.expire() == 1
    assert (operation.expirations, operation.completions) == (1, 1)
    assert purgatory.expire() == 0
    operation.can_complete = True
    purgatory.check("a")
    assert operation.tries == 0
    assert not purgatory.is_watched("a")


def test_operations_expire_in_the_order_of_their_deadlines(purgatory: Purgatory, clock: ManualClock) -> None:
    order: list[str] = []
    for name, wait_ms in (("late", 30), ("first", 10), ("second", 10), ("middle", 20)):
        operation = Waiting(clock.now_ns() + wait_ms * 1_000_000, then=lambda name=name: order.append(name))
        purgatory.watch(operation, ["k"])
    clock.advance_ms(20)
    assert purgatory.expire() == 3
    clock.advance_ms(20)
    assert purgatory.expire() == 1
    assert order == ["first", "second", "middle", "late"]


def test_cancelled_operation_is_never_answered(purgatory: Purgatory, clock: ManualClock) -> None:
    operation = parked(purgatory, clock, "a")
    operation.can_complete = True
    purgatory.cancel(operation)
    purgatory.check("a")
    clock.advance_ms(1000)
    assert purgatory.expire() == 0
    purgatory.expire_all()
    assert (operation.tries, operation.completions, operation.expirations) == (0, 0, 0)
    assert len(purgatory) == 0
    purgatory.cancel(operation)
    assert len(purgatory) == 0, "cancelling twice counts once"


def test_operation_that_completed_some_other_way_is_dropped(purgatory: Purgatory, clock: ManualClock) -> None:
    operation = parked(purgatory, clock, "a")
    operation.complete()
    purgatory.finished(operation)
    clock.advance_ms(1000)
    assert purgatory.expire() == 0
    assert operation.completions == 1
    assert not purgatory.is_watched("a")


def test_unseen_completed_operation_is_dropped_by_next_event(
    purgatory: Purgatory, clock: ManualClock
) -> None:
    operation = parked(purgatory, clock, "a")
    operation.complete()
    purgatory.check("a")
    assert operation.tries == 0
    assert len(purgatory) == 0


def test_one_event_may_complete_many_and_they_may_park_others(
    purgatory: Purgatory, clock: ManualClock
) -> None:
    successors: list[Waiting] = []
    operations = [
        Waiting(
            clock.now_ns() + 1, then=lambda: successors.append(parked(purgatory, clock, "a", wait_ms=500))
        )
        for _ in range(3)
    ]
    for operation in operations:
        operation.can_complete = True
        purgatory.watch(operation, ["a"])
    purgatory.check("a")
    assert [operation.completions for operation in operations] == [1, 1, 1]
    assert len(purgatory) == 3
    assert [successor.tries for successor in successors] == [0, 0, 0]
    purgatory.check("a")
    assert [successor.tries for successor in successors] == [1, 1, 1]


def test_completion_may_cancel_other_operation_of_same_key(purgatory: Purgatory, clock: ManualClock) -> None:
    victim = Waiting(clock.now_ns() + 1)
    killer = Waiting(clock.now_ns() + 1, then=lambda: purgatory.cancel(victim))
    for operation in (killer, victim):
        operation.can_complete = True
        purgatory.watch(operation, ["a"])
    purgatory.check("a")
    assert (killer.completions, victim.completions) == (1, 0)
    assert len(purgatory) == 0


def test_operation_with_no_keys_waits_for_its_deadline(purgatory: Purgatory, clock: ManualClock) -> None:
    operation = parked(purgatory, clock, wait_ms=5)
    assert len(purgatory) == 1
    clock.advance_ms(5)
    assert purgatory.expire() == 1
    assert operation.completions == 1


def test_next_deadline_is_that_of_one_that_still_waits(purgatory: Purgatory, clock: ManualClock) -> None:
    assert purgatory.deadlines.first == NEVER
    first, second = parked(purgatory, clock, "a", wait_ms=10), parked(purgatory, clock, "a", wait_ms=20)
    assert purgatory.deadlines.first == first.deadline_ns
    purgatory.cancel(first)
    assert purgatory.deadlines.first == second.deadline_ns
    purgatory.cancel(second)
    assert purgatory.deadlines.first == NEVER


def test_everything_expires_when_the_broker_stops(purgatory: Purgatory, clock: ManualClock) -> None:
    operations = [parked(purgatory, clock, number % 3, wait_ms=10_000) for number in range(100)]
    purgatory.cancel(operations[7])
    purgatory.expire_all()
    assert [operation.completions for operation in operations] == [int(at != 7) for at in range(100)]
    assert len(purgatory) == 0
    assert purgatory.deadlines.first == NEVER


def test_call_at_a_time_does_not_come_early(purgatory: Purgatory, clock: ManualClock) -> None:
    calls: list[int] = []
    purgatory.call_at(clock.now_ns() + 100_000_000, lambda: calls.append(1))
    for _ in range(2):
        clock.advance_ms(49)
        purgatory.expire_all()
        assert (calls, len(purgatory)) == ([], 1)
    clock.advance_ms(2)
    purgatory.expire()
    assert (calls, len(purgatory)) == ([1], 0)


def test_request_parked_during_expire_all_keeps_its_deadline(
    purgatory: Purgatory, clock: ManualClock
) -> None:
    late: list[Waiting] = []
    first = Waiting(clock.now_ns() + 1, then=lambda: late.append(parked(purgatory, clock, "b", wait_ms=10)))
    purgatory.watch(first, ["a"])
    purgatory.expire_all()
    assert purgatory.deadlines.first == late[0].deadline_ns
    clock.advance_ms(10)
    assert purgatory.expire() == 1
    assert late[0].completions == 1


def test_deadlines_of_completed_operations_do_not_pile_up(purgatory: Purgatory, clock: ManualClock) -> None:
    """A busy consumer parks and completes thousands of times within one max.wait.ms."""
    stays = parked(purgatory, clock, "stays", wait_ms=60_000)
    for _ in range(5_000):
        operation = parked(purgatory, clock, "busy", wait_ms=30_000)
        operation.can_complete = True
        purgatory.check("busy")
    assert len(purgatory.deadlines._heap) <= 100
    assert len(purgatory) == 1
    assert purgatory.deadlines.first == stays.deadline_ns
    clock.advance_ms(60_000)
    assert purgatory.expire() == 1
    assert stays.completions == 1


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_events_completes_each_exactly_once(
    purgatory: Purgatory, clock: ManualClock, seed: int
) -> None:
    source = random.Random(seed)
    waiting: list[Waiting] = []
    cancelled: set[Waiting] = set()
    made: list[Waiting] = []
    for _ in range(2_000):
        match source.randrange(5):
            case 0 | 1:
                keys = source.sample(range(8), source.randint(0, 3))
                made.append(parked(purgatory, clock, *keys, wait_ms=source.randint(0, 50)))
                waiting.append(made[-1])
            case 2 if waiting:
                source.choice(waiting).can_complete = True
                purgatory.check(source.randrange(8))
            case 3 if waiting:
                victim = source.choice(waiting)
                if not victim.is_completed:
                    cancelled.add(victim)
                purgatory.cancel(victim)
            case _:
                clock.advance_ms(source.randint(0, 5))
                purgatory.expire()
        waiting = [operation for operation in waiting if not operation.is_completed]
        assert len(purgatory) == len(waiting)
    clock.advance_ms(1000)
    purgatory.expire()
    assert [operation.completions for operation in made] == [int(each not in cancelled) for each in made]
    assert not purgatory.watchers
    assert len(purgatory) == 0


def make_slow(deadline_ns: int) -> Waiting:
    operation = Waiting(deadline_ns)
    operation.is_slow = True
    return operation


def test_one_slow_operation_is_tried_in_each_cycle(purgatory: Purgatory, clock: ManualClock) -> None:
    deadline_ns = clock.now_ns() + 1_000
    slow, quick = [make_slow(deadline_ns) for _ in range(3)], Waiting(deadline_ns)
    for operation in (*slow, quick):
        purgatory.watch(operation, ["a"])
    purgatory.check("a")
    assert [each.tries for each in (*slow, quick)] == [0, 0, 0, 1]
    for cycle in range(3):
        assert purgatory.deadlines.first <= clock.now_ns()
        purgatory.expire()
        assert sum(each.tries for each in slow) == cycle + 1
    # Their own deadlines are in force again.
    assert (purgatory.deadlines.first, purgatory.expire()) == (deadline_ns, 0)
    clock.advance_ns(1_000)
    assert [purgatory.expire() for _ in range(4)] == [2, 1, 1, 0]
    assert [each.expirations for each in slow] == [1, 1, 1]
    assert purgatory.watch_count == 0


def test_slow_operation_completes_after_an_event(purgatory: Purgatory, clock: ManualClock) -> None:
    operation = make_slow(clock.now_ns() + 1_000)
    purgatory.watch(operation, ["a", "b"])
    assert purgatory.watch_count == 2
    operation.can_complete = True
    purgatory.check("a")
    assert (purgatory.expire(), operation.completions, operation.expirations) == (1, 1, 0)
    assert (len(purgatory), purgatory.watch_count, purgatory.watchers) == (0, 0, {})


def test_deferred_work_runs_in_order_one_per_cycle(purgatory: Purgatory, clock: ManualClock) -> None:
    done: list[str] = []

    def defer(name: str) -> None:
        purgatory.defer(lambda: done.append(name))

    purgatory.defer(lambda: defer("c"))
    for name in "ab":
        defer(name)
    clock.advance_ns(1)
    for count in range(4):
        assert done == ["a", "b", "c"][: max(0, count - 1)]
        purgatory.expire()
    assert (done, len(purgatory)) == (["a", "b", "c"], 0)


def test_delayed_call_runs_once_at_its_deadline(purgatory: Purgatory, clock: ManualClock) -> None:
    done: list[str] = []
    due_ns = clock.now_ns() + 5_000_000
    purgatory.watch(DelayedCall(due_ns, lambda: done.append("a")), ("key",))
    for name in "bc":
        purgatory.watch(DelayedCall(due_ns, lambda name=name: done.append(name), is_slow=True), ())
    cancelled = DelayedCall(due_ns, lambda: done.append("cancelled"))
    purgatory.watch(cancelled, ())
    purgatory.cancel(cancelled)
    purgatory.check("key")
    assert not done, "no event completes it"
    clock.advance_ms(5)
    purgatory.expire()
    assert sorted(done) == ["a", "b"], "one slow call in each duty cycle"
    purgatory.expire()
    assert (sorted(done), len(purgatory), purgatory.watchers) == (["a", "b", "c"], 0, {})
