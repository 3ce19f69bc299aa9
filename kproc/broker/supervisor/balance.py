"""Balancer: moves connections from busy Processors to idle ones, on request or automatically (kproc.rebalance=auto).

A Processor's load is its requests per second, measured by the counter in its row of the slab. If the Processors are
idle, the number of connections counts instead, so that idle clients are spread, too. The Processor chooses which of its
connections migrate. No connection is closed, and requests in progress migrate with their connection
(processor/migration.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from typing import Any, Final

from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.broker.transport.agent import AgentId

logger = logging.getLogger(__name__)

Steps = Generator[Callable[[], bool], None, None]
# A set of Processors that together handle fewer requests per second than this counts as idle.
_BUSY_REQUESTS_PER_S: Final = 100
# With kproc.rebalance=auto, connections migrate when the busiest Processor handles this many times the mean requests
# per second. Of two Processors, the busier one then handles three quarters of all requests.
_UNEVEN: Final = 1.5
# Stop waiting for migrations after this time, because a client that reads nothing delays its own migration and a
# stopped Processor delays all of its migrations.
_MOVE_NS: Final = 10_000_000_000
# Longest wait until a Processor stores its metrics row. After this time the Processor hangs, and its last metrics are
# used.
_MEASURE_NS: Final = 1_000_000_000


class Balancer:
    """Measures the Processors' loads, and plans how many connections migrate from which Processor to which.

    One per supervisor.
    """

    def __init__(self, children: Children) -> None:
        self._children = children
        self._clock = children.plan.clock
        self._seen_ns = 0
        self._seen: dict[AgentId, int] = {}
        self._rates: dict[AgentId, float] = {}

    def measure_rates(self) -> None:
        """Measure the requests per second of every Processor. Called about once a second."""
        now_ns = self._clock.now_ns()
        seconds = (now_ns - self._seen_ns) / 1e9
        seen = {
            role.agent: self._children.regions.metric(role.agent, "requests")
            for role in self._children.table.processors()
        }
        if self._seen_ns and seconds > 0:
            self._rates = {
                agent: max(0, count - self._seen.get(agent, count)) / seconds for agent, count in seen.items()
            }
        self._seen_ns, self._seen = now_ns, seen

    def plan(self, pool: str, *, by_rate: bool) -> list[tuple[ManagedRole, ManagedRole, int]]:
        """Return the migrations that even out the loads of the set `pool`: (source, target, number of connections).

        A set is the Processors that serve the same listeners. With `by_rate` the load is requests per second, unless
        the set is idle. Otherwise it is the number of connections.
        """
        roles = self._children.table.processors(pool)
        held = {
            role.agent: self._children.regions.metric(role.agent, "connections")
            for role in roles
            if role.child is not None
        }
        roles = [role for role in roles if role.agent in held]
        if len(roles) < 2:
            return []
        rates = {role.agent: self._rates.get(role.agent, 0.0) for role in roles}
        if by_rate and sum(rates.values()) >= _BUSY_REQUESTS_PER_S:
            return _moves(roles, rates, held)
        return _moves(roles, {agent: float(count) for agent, count in held.items()}, held)

    def is_uneven(self, pool: str) -> bool:
        """Return True if a set of Processors is busy, and its busiest one has more than _UNEVEN times the mean load."""
        rates = [self._rates.get(role.agent, 0.0) for role in self._children.table.processors(pool)]
        return sum(rates) >= _BUSY_REQUESTS_PER_S and max(rates) > _UNEVEN * sum(rates) / len(rates)

    def spread(self, pool: str) -> Steps:
        """Even out the number of connections, after Processors were added."""
        yield from self.wait_for_metrics(pool)
        moves = self.plan(pool, by_rate=False)
        yield from self.move(moves, [])
        yield from self.wait_until_still(moves)

    def wait_for_metrics(self, pool: str) -> Steps:
        """Wait, for at most _MEASURE_NS, until every Processor has stored new metrics, as it does twice a second."""
        began_ns = self._clock.now_ns()
        metric = self._children.regions.heartbeat_ns
        roles = self._children.table.processors(pool)
        yield (
            lambda: (
                all(role.child is None or metric(role.agent) >= began_ns for role in roles)
                or self._clock.now_ns() >= began_ns + _MEASURE_NS
            )
        )

    def move(self, moves: list[tuple[ManagedRole, ManagedRole, int]], moved: list[dict[str, Any]]) -> Steps:
        """Start these migrations. Append a row with source, target and number of connections of each to `moved`.

        Done when every source has replied. The caller must run `wait_until_still` afterwards.
        """
        waiting = len(moves)

        def count_moved(source: ManagedRole, target: ManagedRole) -> Callable[[dict[str, Any]], None]:
            def on_reply(reply: dict[str, Any]) -> None:
                nonlocal waiting
                waiting -= 1
                count = reply.get("moving", 0)
                moved.append({"from": source.agent.index, "to": target.agent.index, "connections": count})

            return on_reply

        for source, target, count in moves:
            self._children.connect_migration(source, target)
            body = {"count": count, "target": target.agent}
            self._children.send_request(
                source, "move", body, count_moved(source, target), timeout_ns=_MOVE_NS
            )
        yield lambda: waiting == 0

    def wait_until_still(self, moves: list[tuple[ManagedRole, ManagedRole, int]]) -> Steps:
        """Wait, for at most _MOVE_NS, until no connection is migrating.

        Only then may Processors be added or removed.
        """
        givers = {source.agent: source for source, _, count in moves if count}
        replies: list[dict[str, Any]] = []
        for source in givers.values():
            self._children.send_request(source, "still", {}, replies.append)
        deadline_ns = self._clock.now_ns() + _MOVE_NS
        yield lambda: len(replies) == len(givers) or self._clock.now_ns() >= deadline_ns


def _moves(
    roles: list[ManagedRole], loads: dict[AgentId, float], held: dict[AgentId, int]
) -> list[tuple[ManagedRole, ManagedRole, int]]:
    """Return migrations from Processors above the mean load to those below it: (source, target, connections).

    loads: the load of each Processor. held: its number of connections. Each connection of a source is assumed to have
    the source's mean load per connection.
    """
    mean = sum(loads.values()) / len(roles)
    givers = sorted((r for r in roles if loads[r.agent] > mean), key=lambda r: -loads[r.agent])
    takers = sorted((r for r in roles if loads[r.agent] < mean), key=lambda r: loads[r.agent])
    room = {role.agent: mean - loads[role.agent] for role in takers}
    moves = []
    for giver in givers:
        if not held[giver.agent]:
            continue
        each = loads[giver.agent] / held[giver.agent]
        surplus = loads[giver.agent] - mean
        for taker in takers:
            # Do not migrate a connection if only half of its load or less is surplus, because the next plan would
            # migrate it back.
            wanted = math.ceil(min(surplus, room[taker.agent]) / each - 0.5)
            # Leave the source at least one connection: moving its only one would move the whole load and balance
            # nothing.
            count = min(wanted, held[giver.agent] - 1)
            if count > 0:
                moves.append((giver, taker, count))
                surplus -= count * each
                room[taker.agent] -= count * each
    return moves
