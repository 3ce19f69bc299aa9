"""What a pass of a Processor costs, in bytecodes: a bound on what every request pays.

The counts depend on the version of Python, and on nothing that the host does meanwhile. Lower a bound when
a pass has become cheaper; raising one needs a reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.ipc.wait import Sleeper
from tests.support.bytecodes import count_bytecodes
from tests.unit.net.rig import Client, ProcessorRig, Request, framed

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions have other bytecodes")

REQUEST, ANSWER = framed(bytes(100)), framed(bytes(40))
# Two passes: an answer leaves and a request comes in; the Handler's answer ends the sleep.
LONE_MAX = 1130
# For each of 16 requests that come together, and its answer.
OF_MANY_MAX = 540
IDLE_MAX = 200


@pytest.fixture
def rig() -> Iterator[ProcessorRig]:
    """Over rings, as a broker has them."""
    with ProcessorRig("ring") as rig:
        rig.clock.advance_ms(1000)
        yield rig


class Script:
    """What happens while the Processor sleeps."""

    def __init__(self, rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rig = rig
        self._meanwhile: Callable[[], object] = lambda: None
        real = Sleeper.wait

        def wait(sleeper: Sleeper, poll: Callable[[float], list[Any]], *rest: Any) -> list[Any]:
            def poll_after(timeout_s: float) -> list[Any]:
                self._meanwhile()
                return poll(timeout_s)

            return real(sleeper, poll_after, *rest)

        monkeypatch.setattr(Sleeper, "wait", wait)

    def cost(self, meanwhile: Callable[[], object]) -> int:
        """Of one pass, in whose sleep that happens."""

        def uncounted() -> None:
            tracer = sys.gettrace()
            sys.settrace(None)
            meanwhile()
            sys.settrace(tracer)

        self._meanwhile = uncounted
        return count_bytecodes(lambda: self._rig.processor.do_work(100), unless_in="test_pass_cost.py")


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

    slept = script.cost(lambda: rig.handler.answer(request, ANSWER))
    served = script.cost(ask_again)
    assert [each.sequence for each in rig.handler.take()] == [request.sequence + 1], "it was passed on"
    assert slept + served <= LONE_MAX


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

    cost = script.cost(answer) + script.cost(ask_again)
    assert len(rig.handler.take()) == len(clients)
    assert cost <= OF_MANY_MAX * len(clients)


def test_pass_that_finds_nothing(rig: ProcessorRig, script: Script) -> None:
    rig.connect()
    rig.step(3)
    assert script.cost(rig.doze.drain) <= IDLE_MAX
