"""The Scaler's steps against a scripted supervisor: what it waits for, and what a death in the middle does."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.clock import ManualClock
from kproc.config import Config
from kproc.config.dynamic import DynamicSettings
from kproc.errors import FatalError
from kproc.server.asks import LOST
from kproc.server.listener_set import ListenerSet
from kproc.server.listeners import Endpoint
from kproc.server.plan import Plan
from kproc.server.roles import (
    CLEANER,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    acceptor_id,
    handler_id,
    processor_id,
)
from kproc.server.roles_table import Role, RolesTable
from kproc.server.scale import Scaler
from kproc.transport.agent import AgentId

CONFIG = Config.build({"num.io.threads": 2, "num.network.threads": 2})


class FakeRegions:
    """Counts of connections, and beats that are always new."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.connections: dict[AgentId, int] = {}

    def heartbeat_ns(self, _agent: AgentId) -> int:
        return self._clock.now_ns()

    def metric(self, agent: AgentId, _name: str) -> int:
        return self.connections.get(agent, 0)


class FakeChildren:
    """Children whose every word is the test's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092)
        self.plan = Plan(CONFIG, self.clock, [endpoint], "cluster", was_clean=True)
        self.table = RolesTable()
        self.regions = FakeRegions(self.clock)
        self.handler_count: int | None = 2
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[tuple[str, str, dict[str, Any], Any]] = []
        self.transfers: list[tuple[str, str]] = []
        self.discarded: list[str] = []
        self.cannot_start = False
        for agent in (CONTROLLER, CLEANER, handler_id(0), handler_id(1), processor_id(0), processor_id(1)):
            self.begin(self.table.add(agent))
        self.begin(self.table.add(acceptor_id(0)))

    def begin(self, role: Role) -> None:
        role.child = self  # type: ignore[assignment]
        role.is_ready = True

    def start(self, role: Role, *, is_restart: bool) -> None:
        assert is_restart, "what it will own may be open elsewhere"
        if self.cannot_start:
            raise FatalError("no memory")
        role.child = self  # type: ignore[assignment]

    def introduce(self, role: Role) -> None:
        """Nobody is linked here."""

    def send(self, role: Role, message: dict[str, Any]) -> None:
        self.sent.append((str(role.agent), message))

    def ask(
        self, role: Role, what: str, body: dict[str, Any], on_reply: Any, *, timeout_ns: int | None = None
    ) -> None:
        self.asked.append((str(role.agent), what, body, on_reply))

    def connect_transfer(self, one: Role, other: Role) -> None:
        self.transfers.append((str(one.agent), str(other.agent)))

    def on_change(self) -> None:
        """Nobody is shown anything here."""

    def said(self, role: Role, what: str) -> list[dict[str, Any]]:
        return [message for agent, message in self.sent if agent == str(role.agent) and message["do"] == what]

    def end(self, role: Role) -> None:
        """It has ended: what children.py does about it."""
        role.child = None
        for other in self.table:
            other.users.discard(role.agent)
        if role.is_leaving or role.is_trial:
            self.table.remove(role.agent)

    def discard(self, role: Role) -> None:
        self.discarded.append(str(role.agent))
        self.table.remove(role.agent)


class Rig:
    def __init__(self) -> None:
        self.children = FakeChildren()
        self.table = self.children.table
        self.scaler = Scaler(self.children, ListenerSet(self.children, {}))  # type: ignore[arg-type]
        self.settled: list[dict[str, Any]] = []

    def want(self, **counts: int) -> None:
        names = {"processors": "num.network.threads", "handlers": "num.io.threads"}
        self.scaler.want(DynamicSettings({names[what]: str(count) for what, count in counts.items()}))
        self.scaler.when_settled(self.settled.append)
        self.scaler.advance()

    def roles(self, kind: str) -> list[Role]:
        return self.table.of(kind)

    def ready(self, *roles: Role) -> None:
        for role in roles:
            role.is_ready = True
        self.scaler.advance()

    def end(self, *roles: Role) -> None:
        for role in roles:
            self.children.end(role)
        self.scaler.advance()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_is_as_it_should_be_is_settled_at_once(rig: Rig) -> None:
    rig.want(processors=2, handlers=2)
    assert rig.settled == [{"counts": {"processors": 2, "handlers": 2}, "steps": [], "took_ms": 0}]


def test_new_processors_serve_once_they_are_ready(rig: Rig) -> None:
    rig.want(processors=4)
    new = rig.roles(PROCESSOR)[2:]
    assert not rig.children.said(rig.table[acceptor_id(0)], "targets"), "nobody may hand them a client yet"
    rig.ready(new[0])
    assert rig.settled == []
    rig.ready(new[1])
    assert rig.settled[0]["counts"] == {"processors": 4, "handlers": 2}
    (told,) = rig.children.said(rig.table[acceptor_id(0)], "targets")
    assert len(told["peers"]) == 4


def test_leaving_processors_give_what_they_have_to_those_that_stay(rig: Rig) -> None:
    rig.want(processors=1)
    stays, leaves = rig.roles(PROCESSOR)
    assert rig.children.transfers == [("processor-1", "processor-0")]
    assert rig.children.said(leaves, "leave") == [{"do": "leave", "targets": (stays.agent,)}]
    rig.scaler.advance()
    assert not rig.children.said(leaves, "close"), "it still has connections"
    leaves.is_drained = True
    rig.scaler.advance()
    assert rig.children.said(leaves, "close")
    rig.end(leaves)
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_leaving_processor_that_dies_is_a_change_that_is_done(rig: Rig) -> None:
    rig.want(processors=1)
    rig.end(rig.roles(PROCESSOR)[1])
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_processor_that_waits_for_its_restart_when_it_is_to_leave_is_discarded(rig: Rig) -> None:
    role = rig.roles(PROCESSOR)[1]
    role.child, role.restart_at_ns = None, 1
    rig.want(processors=1)
    assert rig.children.discarded == ["processor-1"]
    assert role.restart_at_ns == 0, "nobody starts it again"
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_processor_that_never_gets_rid_of_its_clients_is_closed_in_the_end(rig: Rig) -> None:
    rig.want(processors=1)
    leaves = rig.roles(PROCESSOR)[1]
    rig.children.clock.advance_ms(61_000)
    rig.scaler.advance()
    assert rig.children.said(leaves, "close")


def test_new_handlers_are_counted_once_they_are_ready(rig: Rig) -> None:
    rig.want(handlers=3)
    assert rig.children.asked == []
    rig.ready(rig.roles(HANDLER)[2])
    ((agent, what, body, on_reply),) = rig.children.asked
    assert (agent, what, body) == ("controller-0", "set_handler_count", {"count": 3})
    assert rig.children.handler_count == 3, "a controller that starts now must be told"
    on_reply({"count": 3})
    rig.scaler.advance()
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 3}


def test_controller_that_dies_is_asked_again(rig: Rig) -> None:
    rig.want(handlers=1)
    controller = rig.table[CONTROLLER]
    controller.child, controller.is_ready = None, False
    rig.children.asked.pop()[3](LOST)
    rig.scaler.advance()
    assert rig.children.asked == []
    rig.children.begin(controller)
    rig.scaler.advance()
    assert rig.children.asked[0][1] == "set_handler_count"


def test_leaving_handler_stays_while_anybody_uses_it(rig: Rig) -> None:
    rig.want(handlers=1)
    leaves = rig.roles(HANDLER)[1]
    assert not leaves.is_leaving, "until it is counted no more it owns partitions"
    rig.children.asked.pop()[3]({"count": 1})
    rig.scaler.advance()
    assert leaves.is_leaving
    leaves.is_drained = True
    leaves.users.discard(processor_id(0))
    rig.scaler.advance()
    assert not rig.children.said(leaves, "close")
    rig.children.end(rig.table[processor_id(1)])  # A user that dies uses nothing.
    rig.scaler.advance()
    assert rig.children.said(leaves, "close")
    rig.end(leaves)
    assert rig.table.get(handler_id(1)) is None


def test_handler_that_waits_for_its_restart_is_discarded_when_those_that_live_have_left(rig: Rig) -> None:
    """Until then a successor would be asked for nothing, and waited for."""
    rig.children.begin(rig.table.add(handler_id(2)))
    dead, lives = rig.roles(HANDLER)[1:]
    dead.child, dead.restart_at_ns = None, 1
    rig.want(handlers=1)
    rig.children.asked.pop()[3]({"count": 1})
    rig.scaler.advance()
    assert dead.restart_at_ns == 0, "nobody starts it again"
    assert len(rig.children.said(rig.table[processor_id(0)], "handler_leaving")) == 2
    assert rig.children.discarded == []
    lives.is_drained = True
    lives.users.clear()
    rig.scaler.advance()
    assert rig.children.discarded == ["handler-1"]
    rig.end(lives)
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 1}


def test_role_that_cannot_be_started_undoes_its_change(rig: Rig) -> None:
    rig.children.cannot_start = True
    rig.want(processors=3)
    assert "no memory" in rig.settled[0]["error"]
    assert rig.children.discarded == ["processor-2"], "whoever has heard of it forgets it"
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 2}
    rig.scaler.advance()
    assert len(rig.roles(PROCESSOR)) == 2, "it is not tried again by itself"


def test_new_role_that_ends_at_once_takes_the_others_with_it(rig: Rig) -> None:
    rig.want(processors=4)
    first, second = rig.roles(PROCESSOR)[2:]
    rig.ready(first)
    rig.end(second)
    assert rig.children.said(first, "close")
    rig.end(first)
    assert "ended at once" in rig.settled[0]["error"]
    assert len(rig.roles(PROCESSOR)) == 2
    rig.want(processors=3)
    assert len(rig.roles(PROCESSOR)) == 3, "another wish is another try"


def test_wishes_that_come_in_the_middle_wait_until_it_is_done(rig: Rig) -> None:
    rig.want(processors=3)
    rig.want(processors=1)
    new = rig.roles(PROCESSOR)[2]
    assert rig.settled == []
    rig.ready(new)
    leaving = [role for role in rig.roles(PROCESSOR) if role.is_leaving]
    assert [role.agent.index for role in leaving] == [1, 2]
    rig.end(*leaving)
    assert [reply["counts"]["processors"] for reply in rig.settled] == [1, 1]
    assert [(step["from"], step["to"]) for step in rig.settled[0]["steps"]] == [(2, 3), (3, 1)]
