"""Sleeper and Waker: no agent sleeps through a wake-up, and no awake agent is woken."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

import pytest

from kproc.broker.ipc import wait as wait_module
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, RingProducer
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd, wake_all
from kproc.broker.ipc.words import fence
from tests.simulation.processes import SimulatedSleeper
from tests.support.ring_pair import Forked, make_ring

INDEX = 5
DEKKER_ROUNDS = 250_000
DEKKER_SECONDS = 0.7


@pytest.fixture
def words():
    with Region.create(RegionKind.SLAB, 4096, 1) as region:
        yield region.words


@pytest.fixture
def eventfd():
    fd = make_eventfd()
    yield fd
    os.close(fd)


def is_signalled(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_eventfd_is_closed_on_exec_and_never_blocks(eventfd):
    assert not os.get_inheritable(eventfd)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(eventfd)


def test_only_a_sleeping_agent_is_signalled(words, eventfd):
    sleeper, waker = Sleeper(words, INDEX, eventfd), Waker(words, INDEX, eventfd)
    waker.wake()
    waker.wake_fenced()
    assert not is_signalled(eventfd)
    sleeper.prepare()
    waker.wake()
    assert is_signalled(eventfd)
    sleeper.cancel()
    os.eventfd_read(eventfd)
    waker.wake()
    assert not is_signalled(eventfd)


def test_wake_reads_after_fence_and_prepare_stores_before(words, eventfd, monkeypatch):
    """The other side's step happens inside the fence here: the moment that only a fence makes visible."""
    sleeper, waker = Sleeper(words, INDEX, eventfd), Waker(words, INDEX, eventfd)
    monkeypatch.setattr(wait_module, "fence", lambda: words.__setitem__(INDEX, 1))
    waker.wake()
    assert is_signalled(eventfd)
    sleeper.cancel()
    seen: list[int] = []
    monkeypatch.setattr(wait_module, "fence", lambda: seen.append(words[INDEX]))
    sleeper.prepare()
    assert seen == [1]


def test_cancel_without_a_signal_clears_the_word(words, eventfd):
    sleeper = Sleeper(words, INDEX, eventfd)
    sleeper.prepare()
    assert words[INDEX] == 1
    sleeper.cancel()
    sleeper.cancel()
    assert words[INDEX] == 0


def test_new_sleeper_is_awake_after_predecessor_died_asleep(words, eventfd):
    words[INDEX] = 1
    Sleeper(words, INDEX, eventfd)
    assert words[INDEX] == 0


def test_many_wakes_of_one_sleep_are_one_event(words, eventfd):
    sleeper, waker = Sleeper(words, INDEX, eventfd), Waker(words, INDEX, eventfd)
    sleeper.prepare()
    with select.epoll() as poller:
        poller.register(eventfd, select.EPOLLIN | select.EPOLLET)
        for _ in range(5):
            waker.wake()
        sleeper.cancel()
        assert poller.poll(0) == [(eventfd, select.EPOLLIN)]
        assert poller.poll(0) == []


def test_signal_of_a_full_eventfd_is_not_an_error(words, eventfd):
    os.eventfd_write(eventfd, (1 << 64) - 2)
    Waker(words, INDEX, eventfd).signal()
    assert is_signalled(eventfd)


def test_wake_all_fences_once_and_signals_the_sleepers(words, monkeypatch):
    fences = []
    monkeypatch.setattr(wait_module, "fence", lambda: fences.append(1))
    fds = [make_eventfd() for _ in range(4)]
    words[10] = words[12] = 1
    wake_all([Waker(words, 10 + place, fd) for place, fd in enumerate(fds)])
    assert [is_signalled(fd) for fd in fds] == [True, False, True, False]
    assert len(fences) == 1
    for fd in fds:
        os.close(fd)


def test_sleeper_wakes_with_an_unread_eventfd(words, eventfd):
    sleeper = Sleeper(words, INDEX, eventfd)
    waker = Waker(words, INDEX, eventfd)
    with select.epoll() as poller:
        poller.register(sleeper.fd, select.EPOLLIN | select.EPOLLET)
        for _ in range(3):
            sleeper.prepare()
            waker.wake()
            assert poller.poll(1) == [(eventfd, select.EPOLLIN)]
            sleeper.cancel()
            assert is_signalled(eventfd), "nobody read it"
            assert poller.poll(0) == []


class Work:
    """Answers `has_work` with what the test put there."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    def __call__(self) -> bool:
        return self.answers.pop(0)


@pytest.mark.parametrize("kind", [Sleeper, SimulatedSleeper])
def test_wait_does_not_sleep_when_the_second_look_finds_work(words, eventfd, kind):
    sleeper = kind(words, INDEX, eventfd)
    timeouts = []
    assert sleeper.wait(lambda timeout: timeouts.append(timeout) or [], 30, Work(True)) == []
    assert not timeouts, "nor does it poll"
    assert words[INDEX] == 0
    assert sleeper.rescued_count == 0


def test_wait_says_that_it_sleeps_while_it_looks_again(words, eventfd):
    sleeper = Sleeper(words, INDEX, eventfd)
    seen = []
    sleeper.wait(lambda _: [(eventfd, 1)], 30, lambda: seen.append(words[INDEX]) or False)
    assert seen == [1]
    assert words[INDEX] == 0


def test_wait_that_times_out_with_nothing_to_do_rescues_nothing(words, eventfd):
    sleeper = Sleeper(words, INDEX, eventfd)
    with select.epoll() as poller:
        poller.register(eventfd, select.EPOLLIN)
        assert sleeper.wait(poller.poll, 0.001, lambda: False) == []
    assert sleeper.rescued_count == 0


def test_lost_wake_up_is_found_after_the_timeout_and_counted(words, eventfd, monkeypatch):
    monkeypatch.setattr(wait_module, "WAKE_GRACE_S", 0.005)
    sleeper = Sleeper(words, INDEX, eventfd)
    with select.epoll() as poller:
        poller.register(eventfd, select.EPOLLIN)
        assert sleeper.wait(poller.poll, 0.001, Work(False, True)) == []
    assert sleeper.rescued_count == 1


def test_wake_up_of_a_preempted_producer_is_late_and_not_lost(words, eventfd):
    sleeper, waker = Sleeper(words, INDEX, eventfd), Waker(words, INDEX, eventfd)
    polls = []

    def poll(timeout: float) -> list[tuple[int, int]]:
        polls.append(timeout)
        if len(polls) == 1:
            return []
        waker.wake()
        return [(eventfd, select.EPOLLIN)]

    assert sleeper.wait(poll, 0.001, Work(False, True)) == [(eventfd, select.EPOLLIN)]
    assert sleeper.rescued_count == 0
    assert polls == [0.001, wait_module.WAKE_GRACE_S]


GATE, STORE, STOP = (0, 16), (32, 48), 64


def play_dekker(words: memoryview, side: int, order: Callable[[], object], seconds: float) -> bytearray:
    """Rounds of "store mine, order, look at yours"; a byte per round, 1 if the look was stale."""
    own_gate, other_gate = GATE[side], GATE[1 - side]
    own, other = STORE[side], STORE[1 - side]
    stale = bytearray()
    deadline = time.monotonic() + seconds
    for number in range(1, DEKKER_ROUNDS + 1):
        if side == 0 and number % 64 == 0 and time.monotonic() > deadline:
            words[STOP] = number  # Seen by the other side with or before the gate: both play as many rounds.
        words[own_gate] = number
        while words[other_gate] < number:
            pass
        if words[STOP] == number:
            break
        words[own] = number
        order()
        stale.append(words[other] < number)
    return stale


def run_dekker(words: memoryview, order: Callable[[], object], seconds: float) -> tuple[int, int]:
    """Rounds played by two processes, and those in which both looks were stale."""
    child = Forked(lambda: play_dekker(words, 1, order, seconds))
    ours = play_dekker(words, 0, order, seconds)
    theirs = child.result()
    assert len(ours) == len(theirs)
    return len(ours), sum(a & b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.long
def test_fence_prevents_lost_wake_up_in_every_round(words):
    rounds, both_stale = run_dekker(words, fence, DEKKER_SECONDS)
    assert rounds >= 50
    assert both_stale == 0, f"{both_stale} of {rounds} rounds"


@pytest.mark.slow
def test_without_the_fence_both_sides_do_miss_each_other(words):
    """Proves that the test above could fail. x86 reorders a store with a later load; so does ARM."""
    total = 0
    for _ in range(20):
        rounds, both_stale = run_dekker(words, lambda: None, 10)
        total += rounds
        if both_stale:
            print(f"{both_stale} of the last {rounds} rounds, {total} in all")
            return
        for place in (*GATE, *STORE, STOP):
            words[place] = 0
    pytest.fail(f"no reordering was seen in {total} rounds")


class Agent:
    """One end of a ping-pong: sleeps for whatever comes, through the whole handshake."""

    def __init__(self, words: memoryview, side: int, regions: list[Region], fds: list[int]) -> None:
        self.consumer = RingConsumer(regions[side])
        self.producer = RingProducer(regions[1 - side])
        self.sleeper = Sleeper(words, 16 * side, fds[side])
        self.waker = Waker(words, 16 * (1 - side), fds[1 - side])
        self.poller = select.epoll()
        self.poller.register(fds[side], select.EPOLLIN | select.EPOLLET)
        self.slept_count = 0

    def receive(self) -> list[int]:
        """The numbers of at least one record."""
        while True:
            numbers = [int.from_bytes(view, "little") for _, view in self.consumer.poll(64)]
            self.consumer.release()
            if numbers:
                return numbers
            self.slept_count += 1
            self.sleeper.wait(self.poller.poll, 5.0, lambda: not self.consumer.is_empty())

    def send(self, number: int) -> None:
        while not self.producer.try_push(1, number.to_bytes(8, "little")):
            os.sched_yield()
        self.producer.publish()
        self.waker.wake()


def test_no_wake_up_is_lost_between_two_processes(words):
    """A lost one would sleep for 5 s and be counted. The second of a pair races with a falling asleep."""
    rounds = 4000
    with make_ring(1024) as first, make_ring(1024) as second:
        fds = [make_eventfd(), make_eventfd()]

        def answer() -> tuple[int, int]:
            agent = Agent(words, 1, [first, second], fds)
            expected = 0
            while expected < 2 * rounds:
                for number in agent.receive():
                    assert number == expected
                    expected += 1
                    agent.send(number)
            return agent.sleeper.rescued_count, agent.slept_count

        child = Forked(answer)
        agent = Agent(words, 0, [first, second], fds)
        for number in range(0, 2 * rounds, 2):
            agent.send(number)
            for _ in range(number % 37):
                pass
            agent.send(number + 1)
            answers: list[int] = []
            while len(answers) < 2:
                answers += agent.receive()
            assert answers == [number, number + 1]
        rescued, slept = child.result()
        agent.poller.close()
        for fd in fds:
            os.close(fd)
    assert (agent.sleeper.rescued_count, rescued) == (0, 0)
    assert slept > rounds // 10, "the other side hardly slept, so this proves little"
