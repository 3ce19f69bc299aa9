"""A Scaler whose children are the test's: what it tells and asks them is noted, and nothing answers by itself."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.control_requests import LOST
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CLEANER, CONTROLLER, acceptor_id, handler_id, processor_id
from kproc.broker.supervisor.listener_set import ListenerSet
from kproc.broker.supervisor.roles_table import ManagedRole, RolesTable
from kproc.broker.supervisor.scale import Scaler
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import ManualClock
from kproc.common.errors import FatalError

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

    def __init__(self, config: Config = CONFIG) -> None:
        self.clock = ManualClock()
        endpoint = ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092)
        self.plan = BrokerPlan(config, self.clock, [endpoint], "cluster", was_clean=True)
        self.table = RolesTable()
        self.regions = FakeRegions(self.clock)
        self.handler_count: int | None = 2
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[tuple[str, str, dict[str, Any], Any]] = []
        self.migrations: list[tuple[str, str]] = []
        self.discarded: list[str] = []
        self.cannot_start = False
        self.changes = 0
        for agent in (CONTROLLER, CLEANER, handler_id(0), handler_id(1), processor_id(0), processor_id(1)):
            self.begin(self.table.add(agent))
        self.begin(self.table.add(acceptor_id(0)))

    def begin(self, role: ManagedRole) -> None:
        role.child = self  # type: ignore[assignment]
        role.is_ready = True

    def start(self, role: ManagedRole, *, is_restart: bool) -> None:
        assert is_restart, "what it will own may be open elsewhere"
        if self.cannot_start:
            raise FatalError("no memory")
        role.child = self  # type: ignore[assignment]

    def introduce(self, role: ManagedRole) -> None:
        """Nobody is linked here."""

    def send(self, role: ManagedRole, message: dict[str, Any]) -> None:
        self.sent.append((str(role.agent), message))

    def send_request(
        self, role: ManagedRole, what: str, body: dict[str, Any], on_reply: Any, *, timeout_ns: int | None = None
    ) -> None:
        self.asked.append((str(role.agent), what, body, on_reply))

    def connect_migration(self, one: ManagedRole, other: ManagedRole) -> None:
        self.migrations.append((str(one.agent), str(other.agent)))

    def on_change(self) -> None:
        """Whoever shows what there is would be told."""
        self.changes += 1

    def said(self, role: ManagedRole, what: str) -> list[dict[str, Any]]:
        return [message for agent, message in self.sent if agent == str(role.agent) and message["do"] == what]

    def end(self, role: ManagedRole) -> None:
        """It has ended: what children.py does about it."""
        role.child = None
        for other in self.table:
            other.users.discard(role.agent)
        if role.is_leaving or role.is_trial:
            self.table.remove(role.agent)

    def discard(self, role: ManagedRole) -> None:
        self.discarded.append(str(role.agent))
        self.table.remove(role.agent)


class Rig:
    def __init__(self, config: Config = CONFIG) -> None:
        self.children = FakeChildren(config)
        self.table = self.children.table
        self.listening = {acceptor_id(0): socket.socket()}
        self.listeners = ListenerSet(self.children, self.listening)  # type: ignore[arg-type]
        self.scaler = Scaler(self.children, self.listeners)  # type: ignore[arg-type]
        self.settled: list[dict[str, Any]] = []

    def close(self) -> None:
        for sock in self.listening.values():
            sock.close()

    def set(self, **settings: str) -> None:
        """These settings are in force; dots are underscores."""
        self.scaler.set_target(DynamicSettings({name.replace("_", "."): text for name, text in settings.items()}))

    def go_on(self, *, silent: Collection[AgentId] = (), turns: int = 200) -> None:
        """Everybody does what it is told, but for those that hang; then time passes."""
        for _ in range(turns):
            asked, self.children.asked = self.children.asked, []
            sent, self.children.sent = self.children.sent, []
            for agent, _, body, on_reply in asked:
                is_silent = agent in map(str, silent)
                on_reply(LOST if is_silent else {"found": [body["host"]]} if "host" in body else body)
            for role in list(self.table):
                told = {message["do"] for agent, message in sent if agent == str(role.agent)}
                role.is_ready = True
                role.is_drained = role.is_drained or bool(told & {"stop", "leave"})
                if "leave" in told:
                    role.users.clear()
                if "close" in told:
                    self.children.end(role)
            self.scaler.advance()
            if not asked and not sent and not self.scaler.is_busy:
                return
        raise AssertionError("the Scaler never comes to rest")

    def want(self, **counts: int) -> None:
        names = {"processors": "num.network.threads", "handlers": "num.io.threads"}
        self.scaler.set_target(DynamicSettings({names[what]: str(count) for what, count in counts.items()}))
        self.scaler.respond_when_settled(self.settled.append)
        self.scaler.advance()

    def roles(self, kind: str) -> list[ManagedRole]:
        return self.table.of(kind)

    def ready(self, *roles: ManagedRole) -> None:
        for role in roles:
            role.is_ready = True
        self.scaler.advance()

    def end(self, *roles: ManagedRole) -> None:
        for role in roles:
            self.children.end(role)
        self.scaler.advance()
