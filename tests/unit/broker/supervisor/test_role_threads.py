"""RoleThreads: an action runs in the thread of its role, and roles without threads are called at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from kproc.broker.ipc.wait import Sleeper, make_eventfd
from kproc.broker.metrics.slab import SLAB_BYTES
from kproc.broker.role.roles import CLEANER
from kproc.broker.supervisor.role_threads import RoleThreads
from kproc.broker.transport.agent import AgentId
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import PATIENCE_SECONDS

HANDLER_0 = AgentId("handler", 0)


@pytest.fixture
def dozes() -> Iterator[dict[AgentId, Sleeper]]:
    words = memoryview(bytearray(SLAB_BYTES)).cast("q")
    made = {agent: Sleeper(words, row, make_eventfd()) for row, agent in enumerate((HANDLER_0, CLEANER))}
    yield made
    for doze in made.values():
        os.close(doze.fd)


def never_fails(agent: object, error: BaseException) -> None:
    raise AssertionError(agent) from error


def test_posted_action_runs_in_the_thread_of_its_role(dozes: dict[AgentId, Sleeper]) -> None:
    agents = [ScriptedAgent(agent_id=each) for each in dozes]
    threads = RoleThreads(dozes)
    threads.start(agents, never_fails)
    ran_in: list[str] = []
    is_done = threading.Event()
    threads.post(agents[1], lambda: ran_in.append(threading.current_thread().name))
    threads.post_at_once(agents[1], is_done.set)
    assert is_done.wait(PATIENCE_SECONDS)
    assert ran_in == [str(CLEANER)]
    assert threads.stop()
    threads.abandon()


def test_action_of_a_role_without_thread_runs_at_once(dozes: dict[AgentId, Sleeper]) -> None:
    ran: list[str] = []
    threads = RoleThreads(dozes)
    agent = ScriptedAgent(agent_id=HANDLER_0)
    threads.post_at_once(agent, lambda: ran.append("now"))
    assert ran == ["now"]
    # The main thread polls these descriptors, and nothing would read the signal.
    with pytest.raises(BlockingIOError):
        os.eventfd_read(dozes[HANDLER_0].fd)


def test_pause_of_writers_lets_other_roles_run(dozes: dict[AgentId, Sleeper]) -> None:
    acceptor = AgentId("acceptor", 0)
    agents = [ScriptedAgent(agent_id=each) for each in (HANDLER_0, acceptor)]
    threads = RoleThreads(dozes | {acceptor: dozes[CLEANER]})
    threads.start(agents, never_fails)
    with threads.pause_writers():
        cycles = len(agents[0].timeouts)
        agents[1].has_worked.clear()
        assert agents[1].has_worked.wait(PATIENCE_SECONDS)
        assert len(agents[0].timeouts) == cycles
    agents[0].has_worked.clear()
    assert agents[0].has_worked.wait(PATIENCE_SECONDS)
    assert threads.stop()
