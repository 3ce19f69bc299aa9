"""InProcessRoles: roles are built in memory of this process and linked as the topology says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.api import load_all
from kproc.broker.config import Config
from kproc.broker.handler.handler import Handler
from kproc.broker.processor.processor import Processor
from kproc.broker.role.roles import CLEANER, CONTROLLER, handler_id
from kproc.broker.supervisor.broker import SupervisorCalls
from kproc.broker.supervisor.inprocess_roles import InProcessRoles
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.topology import CLOSE_WAVES, initial_roles
from kproc.common.clock import NS_PER_S, SystemClock

HANDLERS = 2


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[InProcessRoles]:
    load_all()
    config = Config.build(
        {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "kproc.transport": "inline"}
    )
    sockets = ListeningSockets(config)
    roles = InProcessRoles(config, sockets)
    plan = sockets.make_plan(SystemClock(), "cluster")
    calls = SupervisorCalls(send_request=lambda *_: None, send_settings=lambda _: None)
    roles.build(CONTROLLER, plan, calls)
    for agent, _ in initial_roles({"": 1}, HANDLERS, sockets.by_acceptor):
        roles.build(agent, plan, calls)
    roles.connect_all()
    yield roles
    for agent in roles.in_waves(CLOSE_WAVES):
        agent.close()
    roles.release()
    sockets.close()


def test_every_role_gets_its_links_and_the_metadata(roles: InProcessRoles) -> None:
    for _ in range(20):
        for agent in roles.agents:
            agent.do_work(0)
    handlers = [each for each in roles.agents if isinstance(each, Handler)]
    assert len(handlers) == HANDLERS
    assert all(each.has_image() for each in handlers)
    (processor,) = (each for each in roles.agents if isinstance(each, Processor))
    assert all(processor.uses(handler_id(index)) is False for index in range(HANDLERS))
    assert sorted(processor.handlers.by_index) == list(range(HANDLERS))


def test_rows_name_every_role_of_this_process(roles: InProcessRoles) -> None:
    rows = [(row["role"], row["index"], row["state"]) for row in roles.rows()]
    assert rows == [(each.id.role, each.id.index, "running") for each in roles.agents]


def test_silent_role_is_found_unless_it_is_the_cleaner(roles: InProcessRoles) -> None:
    clock = SystemClock()
    for agent in roles.agents:
        agent.do_work(0)
    before_ns = clock.now_ns()
    assert roles.find_silent(before_ns, NS_PER_S) is None
    later_ns = before_ns + 10 * NS_PER_S
    assert roles.find_silent(later_ns, NS_PER_S) == str(roles.agents[0].id)
    everything = list(roles.agents)
    roles.agents[:] = [each for each in everything if each.id == CLEANER]
    assert roles.find_silent(later_ns, NS_PER_S) is None
    roles.agents[:] = everything  # The fixture closes all of them.
