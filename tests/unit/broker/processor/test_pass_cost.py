"""The cost of a Processor's pass, in bytecodes: a bound on what every request pays.

The counts depend on the version of Python, and on nothing that the host does meanwhile. Lower a bound when
a pass has become cheaper; raising one needs a reason.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.broker.ipc.wait import Sleeper
from tests.support.bytecodes import compiled_counter, count_bytecodes
from tests.support.processor_rig import Client, ProcessorRig, Request, framed

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions have other bytecodes")

REQUEST, ANSWER = framed(bytes(100)), framed(bytes(40))
# One pass: the Handler's answer ends the sleep and leaves; the next request ends the next sleep and is passed on.
# It pays for the begin and the end of a run of records, which many share.
LONE_MAX = 1058
# For each of 16 requests that come together, and its answer.
OF_MANY_MAX = 326
IDLE_MAX = 188
# An answer that came before the Processor lay down.
EARLY_ANSWER_MAX = 683


@pytest.fixture
def rig() -> Iterator[ProcessorRig]:
    """Over rings, as a broker has them."""
    with ProcessorRig("ring") as rig:
        rig.clock.advance_ms(1000)
        yield rig


class Script:
    """What happens while the Processor sleeps, one thing in each sleep."""

    def __init__(self, rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rig = rig
        self._events: deque[Callable[[], object]] = deque()
        real = Sleeper.wait

        def wait(sleeper: Sleeper, poll: Callable[[float], list[Any]], *rest: Any) -> list[Any]:
            def poll_after(timeout_s: float) -> list[Any]:
                if self._events:
                    self._happen(self._events.popleft())
                return poll(timeout_s)

            return real(sleeper, poll_after, *rest)

        monkeypatch.setattr(Sleeper, "wait", wait)

    def _happen(self, event: Callable[[], object]) -> None:
        """Let it happen without counting it."""
        counter, tracer = compiled_counter(), sys.gettrace()
        if counter is None or tracer is not None:
            sys.settrace(None)
            event()
            sys.settrace(tracer)
            return
        counter.pause_counting()
        event()
        counter.resume_counting()

    def cost(self, *events: Callable[[], object]) -> int:
        """Of the passes until all of that has happened."""
        self._events.extend(events)
        count = 0
        while self._events:
            count += count_bytecodes(lambda: self._rig.processor.do_work(100), unless_in=__file__)
        return count


@pytest.fixture
def script(rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(rig, monkeypatch)


def warm_up(rig: ProcessorRig, clients: list[Client]) -> list[Request]:
    """Requests of all of them, after some that were answered: nothing is timed, told or learnt any more."""
    for _ in range(3):
        for client in clients:
            client.sock.send(REQUEST)
        rig.step()
        for request in rig.handler.take():
            rig.handler.answer(request, ANSWER)
        rig.step()
        assert all(client.received() == ANSWER for client in clients)
    for client in clients:
        client.sock.send(REQUEST)
    rig.step()
    return rig.handler.take()


def test_request_of_a_lone_client_and_its_answer(rig: ProcessorRig, script: Script) -> None:
    client = rig.connect()
    (request,) = warm_up(rig, [client])

    def ask_again() -> None:
        assert client.received() == ANSWER, "the answer leaves before the Processor sleeps"
        client.sock.send(REQUEST)

    cost = script.cost(lambda: rig.handler.answer(request, ANSWER), ask_again)
    assert [each.sequence for each in rig.handler.take()] == [request.sequence + 1], "it was passed on"
    assert cost <= LONE_MAX


def test_answer_that_comes_before_the_sleep_leaves_in_that_pass(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.connect()
    (request,) = warm_up(rig, [client])
    polls: list[float] = []

    def poll(timeout_s: float) -> list[Any]:
        polls.append(timeout_s)
        return []

    monkeypatch.setattr(rig.processor, "_poll", poll)
    rig.handler.answer(request, ANSWER)
    cost = count_bytecodes(lambda: rig.processor.do_work(100), unless_in=__file__)
    assert client.received() == ANSWER
    assert [each > 0 for each in polls] == [True], "the sockets are looked at once, by the sleep"
    assert cost <= EARLY_ANSWER_MAX


def test_many_responses_before_sleep_do_not_delay_requests(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(16)]
    first, *others = warm_up(rig, clients)
    rig.handler.answer(first, ANSWER)
    rig.processor.handlers.may_have_answers = True  # As after a pass with much to do.
    assert clients[0].received() == b""
    real = rig.processor._has_answers

    def answered_meanwhile() -> bool:
        if others:
            rig.handler.answer(others.pop(), ANSWER)
        return real()

    rig.processor._has_answers = answered_meanwhile
    assert clients[0].sock.send(REQUEST)
    rig.processor.do_work(100)
    assert len(rig.handler.take()) == 1, "the request was read in the same pass"
    while others:
        rig.processor.do_work(100)
    rig.step()
    assert all(client.received() == ANSWER for client in clients)


def test_requests_of_many_clients_and_their_answers(rig: ProcessorRig, script: Script) -> None:
    clients = [rig.connect() for _ in range(16)]
    requests = warm_up(rig, clients)

    def answer() -> None:
        for request in requests:
            rig.handler.answer(request, ANSWER)

    def ask_again() -> None:
        for client in clients:
            assert client.received() == ANSWER
            client.sock.send(REQUEST)

    cost = script.cost(answer, ask_again)
    assert len(rig.handler.take()) == len(clients)
    assert cost <= OF_MANY_MAX * len(clients)


def test_pass_that_finds_nothing(rig: ProcessorRig, script: Script) -> None:
    rig.connect()
    rig.step(3)
    assert script.cost(lambda: None) <= IDLE_MAX
