"""Pipes count bytes as rings do; an AgentThread runs one agent until it is stopped."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from kproc.broker.ipc.ring import RECORD_HEADER, RECORD_ROUND
from kproc.broker.transport.envelope import SEND
from kproc.broker.transport.thread import AgentThread, Pipe, PipeReceiver, PipeSender
from tests.support.scripted_agent import ScriptedAgent

CAPACITY = 4096
DEADLINE_S = 120.0


@pytest.fixture
def pipe() -> tuple[PipeSender, PipeReceiver]:
    shared = Pipe(CAPACITY)
    return PipeSender(shared), PipeReceiver(shared)


def test_record_is_seen_at_publish_and_not_before(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    assert sender.try_push(SEND, b"a", b"b")
    assert receiver.is_empty()
    assert not receiver.poll(10)
    sender.publish()
    assert not receiver.is_empty()
    assert [(kind, bytes(view)) for kind, view in receiver.poll(10)] == [(SEND, b"ab")]


def test_room_comes_back_at_release_and_not_at_poll(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    record = bytes(500)
    count = 0
    while sender.try_push(SEND, record):
        count += 1
    assert count == CAPACITY // 508
    assert sender.reserve(500) is None
    sender.publish()
    receiver.poll(3)
    assert not sender.try_push(SEND, record)
    receiver.release()
    assert [sender.try_push(SEND, record) for _ in range(4)] == [True, True, True, False]


def test_unpublished_records_count_as_used(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, _ = pipe
    sender.try_push(SEND, bytes(92))
    assert sender.free_bytes() == CAPACITY - 100


def test_poll_takes_no_more_than_its_limit_and_keeps_the_order(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    for number in range(5):
        sender.try_push(number + 1, bytes([number]))
    sender.publish()
    assert [kind for kind, _ in receiver.poll(2)] == [1, 2]
    assert [kind for kind, _ in receiver.poll(10)] == [3, 4, 5]


def test_reserved_room_is_used_again_until_it_is_committed(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    first = sender.reserve(100)
    assert first is not None
    first[:] = b"x" * 100
    second = sender.reserve(40)
    assert second is not None
    second[:] = b"y" * 40
    assert sender.free_bytes() == CAPACITY, "a reservation costs nothing"
    sender.commit(30, SEND)
    sender.publish()
    assert [bytes(view) for _, view in receiver.poll(10)] == [b"y" * 30]


def test_committed_record_is_not_written_over_by_the_next_one(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    for letter, length in ((b"a", 90), (b"b", 3), (b"c", 100)):  # Kept, copied, kept.
        view = sender.reserve(100)
        assert view is not None
        view[:length] = letter * length
        sender.commit(length, SEND)
    sender.publish()
    assert [bytes(view) for _, view in receiver.poll(10)] == [b"a" * 90, b"b" * 3, b"c" * 100]


def test_small_record_does_not_keep_a_whole_read_buffer_alive(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    assert sender.reserve(1000) is not None
    sender.commit(10, SEND)
    sender.publish()
    ((_, view),) = receiver.poll(1)
    assert isinstance(view.obj, bytearray)
    assert len(view.obj) == 10


def test_run_of_records_is_one_at_a_time(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    for body in (b"one", b"two" * 20):
        run = sender.reserve_run(60)
        assert run is not None
        data, at, last = run
        RECORD_HEADER.pack_into(data, at, len(body), SEND)
        data[at + RECORD_HEADER.size : at + RECORD_HEADER.size + len(body)] = body
        at += (len(body) + RECORD_ROUND) & -8
        assert at > last
        sender.commit_run(at)
    assert sender.free_bytes() == CAPACITY - 2 * RECORD_HEADER.size - 63
    sender.publish()
    assert [(kind, bytes(view)) for kind, view in receiver.poll(10)] == [(SEND, b"one"), (SEND, b"two" * 20)]


def test_run_without_records_keeps_its_room(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    run = sender.reserve_run(60)
    assert run is not None
    data, at, _ = run
    data[at + RECORD_HEADER.size : at + RECORD_HEADER.size + 4] = b"half"
    sender.commit_run(at)
    view = sender.reserve(60)
    assert view is not None
    assert bytes(view[:4]) == b"half"
    sender.publish()
    assert receiver.poll(10) == []
    while sender.try_push(SEND, bytes(100)):
        pass
    assert sender.reserve_run(100) is None


def test_records_may_be_stamped_in_place(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe
    sender.try_push(SEND, b"immutable")
    sender.publish()
    ((_, view),) = receiver.poll(1)
    view[:2] = b"IM"
    assert bytes(view) == b"IMmutable"


class Errors:
    """What on_error was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, BaseException]] = []
        self.told = threading.Event()

    def __call__(self, agent: object, error: BaseException) -> None:
        self.seen.append((agent, error))
        self.told.set()


def test_thread_runs_its_agent_under_its_name_until_stopped() -> None:
    names: list[str] = []
    agent = ScriptedAgent(lambda: names.append(threading.current_thread().name))
    errors = Errors()
    thread = AgentThread(agent, errors)
    thread.start()
    assert agent.has_worked.wait(DEADLINE_S)
    assert thread.stop(DEADLINE_S)
    assert set(names) == {"handler-3"}
    assert not errors.seen
    cycles = len(names)
    assert thread.stop(DEADLINE_S), "stopping twice does no harm"
    assert len(names) == cycles


def test_agent_may_sleep_no_longer_than_stop_may_wait() -> None:
    agent = ScriptedAgent()
    thread = AgentThread(agent, Errors())
    thread.start()
    assert agent.has_worked.wait(DEADLINE_S)
    assert thread.stop(DEADLINE_S)
    assert set(agent.timeouts) == {100}


def test_posted_actions_run_in_order_between_duty_cycles() -> None:
    events: list[str] = []
    is_done = threading.Event()
    agent = ScriptedAgent(lambda: events.append("cycle"))
    thread = AgentThread(agent, Errors())
    for name in ("first", "second"):
        thread.post(lambda name=name: events.append(f"{name} on {threading.current_thread().name}"))
    thread.post(is_done.set)
    thread.start()
    assert is_done.wait(DEADLINE_S)
    assert thread.stop(DEADLINE_S)
    assert events[:3] == ["cycle", "first on handler-3", "second on handler-3"]


def test_surprise_in_the_agent_ends_its_thread_and_is_handed_on() -> None:
    problem = ValueError("broken")

    def fail() -> None:
        raise problem

    agent, errors = ScriptedAgent(fail), Errors()
    thread = AgentThread(agent, errors)
    thread.start()
    assert errors.told.wait(DEADLINE_S)
    assert thread.stop(DEADLINE_S)
    assert errors.seen == [(agent, problem)]
    assert len(agent.timeouts) == 1


def test_surprise_in_a_posted_action_is_handed_on_too() -> None:
    errors = Errors()
    thread = AgentThread(ScriptedAgent(), errors)
    thread.post(lambda: 1 // 0)
    thread.start()
    assert errors.told.wait(DEADLINE_S)
    assert thread.stop(DEADLINE_S)
    assert isinstance(errors.seen[0][1], ZeroDivisionError)


def test_stop_says_so_when_the_agent_does_not_come_back() -> None:
    gate = threading.Event()
    agent = ScriptedAgent(lambda: agent.has_worked.set() or gate.wait(DEADLINE_S))
    thread = AgentThread(agent, Errors())
    thread.start()
    assert agent.has_worked.wait(DEADLINE_S)
    assert not thread.stop(0.01)
    gate.set()
    assert thread.stop(DEADLINE_S)


def test_thread_that_never_ran_can_be_stopped() -> None:
    assert AgentThread(ScriptedAgent(), Errors()).stop(0)


@pytest.mark.long
def test_pipe_keeps_no_record_that_was_taken(pipe: tuple[PipeSender, PipeReceiver]) -> None:
    sender, receiver = pipe

    class Traced(bytearray):
        """A bytearray that can be watched."""

    sender._pipe.queue.append((SEND, memoryview(Traced(b"x"))))
    batch = receiver.poll(1)
    watched = weakref.ref(batch[0][1].obj)
    del batch
    receiver.release()
    gc.collect()
    assert watched() is None
