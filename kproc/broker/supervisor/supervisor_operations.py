"""SupervisorOperations: handles the controller's requests to the supervisor, and balances connections.

Clients cause these requests through the controller:

settle          wait until the counts match the settings; reply with the changes and their duration
rebalance       move connections from busy Processors to idle ones
plan_rebalance  reply with the moves that a rebalance would make
clients         every connection of every Processor
kill_client     close one connection, wherever it is
log_levels      change the levels of loggers, in every role
snapshots       create, restore or delete a snapshot (snapshots.py)
move_time       advance or freeze the broker's time, and run the due timers of every role
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, Final

from kproc.broker.role.control_requests import (
    FOLLOW_TIME,
    LOG_LEVELS,
    MOVE_TIME,
    REOPEN_LOG,
    SNAPSHOTS,
    Gathering,
    OnReply,
    Reply,
)
from kproc.broker.role.roles import CLEANER, PROCESSOR
from kproc.broker.supervisor import broker_time
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.logs import reopen_file, set_levels
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.broker.supervisor.scale import Scaler
from kproc.broker.supervisor.snapshots import Snapshots
from kproc.broker.transport.agent import AgentId
from kproc.common.movable_clock import MovableClock

_LOOK_NS: Final = 1_000_000_000
# Longest wait for a role's reply. A role stopped by SIGSTOP must not delay the client, or others at the control
# listener, for longer.
_ANSWER_NS: Final = 3_000_000_000
# With kproc.rebalance=auto, rebalance only if this many measurements in a row, one per second, find uneven loads. A
# single burst would be over before connections have migrated.
_UNEVEN_LOOKS: Final = 3


class SupervisorOperations:
    """Handles the controller's requests to the supervisor.

    One per supervisor, which calls `advance` at every turn of its loop.
    """

    def __init__(self, children: Children, scaler: Scaler, snapshots: Snapshots) -> None:
        self._children = children
        self._snapshots = snapshots
        self._scaler = scaler
        self._balancer = scaler.changes.balancer
        self._clock = children.plan.clock
        self._is_automatic = children.plan.config.kproc_rebalance == "auto"
        self._next_look_ns = 0
        self._uneven_looks = 0
        self._steps: Generator[Callable[[], bool], None, None] | None = None
        self._condition: Callable[[], bool] = lambda: True
        self._rebalances: list[OnReply] = []

    def handle(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        """Handle the request `what` and call `on_reply` with the reply, now or later."""
        if what == "settle":
            self._scaler.respond_when_settled(on_reply)
        elif what == "rebalance":
            self._rebalances.append(on_reply)
        elif what == "plan_rebalance":
            on_reply({"moves": self._planned_moves()})
        elif what == "clients":
            self._request_processors("clients", body, lambda replies: on_reply(joined_clients(replies)))
        elif what == LOG_LEVELS:
            set_levels(body["levels"])  # Children that are forked from now on inherit the levels.
            self._request_all(self._children.table, what, body, lambda _replies: on_reply({}))
        elif what == SNAPSHOTS:
            self._snapshots.handle(body, on_reply)
        elif what == MOVE_TIME:
            self._move_time(body, on_reply)
        else:
            assert what == "kill_client", what
            self._request_processors(what, body, lambda replies: on_reply(was_killed(replies)))

    def _move_time(self, body: dict[str, Any], on_reply: OnReply) -> None:
        clock = self._children.plan.movable
        problem = broker_time.move(clock, body["action"], body["ms"])
        if clock is None or problem is not None:
            on_reply({"error": problem})
        elif body["action"] == "show":
            on_reply(broker_time.describe(clock))
        else:
            others = (role for role in self._children.table if role.agent != CLEANER)
            self._request_all(others, FOLLOW_TIME, {}, lambda _replies: self._follow_cleaner(clock, on_reply))

    def _follow_cleaner(self, clock: MovableClock, on_reply: OnReply) -> None:
        # Run the cleaner's timers last, because the cleaner may compact only records that the Handlers have synced.
        cleaner = self._children.table.of(CLEANER.role)
        self._request_all(cleaner, FOLLOW_TIME, {}, lambda _replies: on_reply(broker_time.describe(clock)))

    def reopen_log(self) -> None:
        """Let every process open the log file again, if there is one."""
        if reopen_file():
            self._request_all(self._children.table, REOPEN_LOG, {}, lambda _replies: None)

    @property
    def is_busy(self) -> bool:
        """True while connections are being balanced. `advance` must then be called often, to check conditions."""
        return self._steps is not None

    def advance(self) -> None:
        """Measure loads, and migrate connections on request or with kproc.rebalance=auto if loads are uneven.

        No migration begins while the counts of roles change.
        """
        now_ns = self._clock.now_ns()
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + _LOOK_NS
            self._balancer.measure_rates()
            self._consider()
        if self._steps is None and self._rebalances and not self._scaler.is_busy:
            self._steps = self._rebalance(self._rebalances)
            self._rebalances = []
        while self._steps is not None and self._condition():
            try:
                self._condition = next(self._steps)
            except StopIteration:
                self._steps, self._condition = None, lambda: True

    def _consider(self) -> None:
        if not self._is_automatic or self._scaler.is_busy or self._rebalances:
            return
        is_uneven = any(self._balancer.is_uneven(pool) for pool in self._children.table.pools())
        self._uneven_looks = self._uneven_looks + 1 if is_uneven else 0
        if self._uneven_looks >= _UNEVEN_LOOKS:
            self._uneven_looks = 0
            self._rebalances.append(lambda _reply: None)

    def _rebalance(self, waiters: list[OnReply]) -> Generator[Callable[[], bool], None, None]:
        moved: list[dict[str, Any]] = []
        moves = []
        for pool in self._children.table.pools():
            yield from self._balancer.wait_for_metrics(pool)
            planned = self._balancer.plan(pool, by_rate=True)
            yield from self._balancer.move(planned, moved)
            moves += planned
        # Reply before the migrations end, because the requesting client's own connection may be among them.
        for on_reply in waiters:
            on_reply({"moves": moved})
        yield from self._balancer.wait_until_still(moves)

    def _planned_moves(self) -> list[dict[str, Any]]:
        """Return the migrations that a rebalance would start now, by the last stored metrics.

        A Processor stores them at least twice a second, unless it hangs.
        """
        return [
            {"from": source.agent.index, "to": target.agent.index, "connections": count}
            for pool in self._children.table.pools()
            for source, target, count in self._balancer.plan(pool, by_rate=True)
        ]

    def _request_processors(
        self, what: str, body: dict[str, Any], on_all: Callable[[dict[Hashable, Reply]], None]
    ) -> None:
        self._request_all(self._children.table.of(PROCESSOR), what, body, on_all)

    def _request_all(
        self,
        roles: Iterable[ManagedRole],
        what: str,
        body: dict[str, Any],
        on_all: Callable[[dict[Hashable, Reply]], None],
    ) -> None:
        roles = [role for role in roles if role.child is not None]
        gathering = Gathering(len(roles), on_all)
        for role in roles:
            self._children.send_request(
                role, what, body, gathering.receiver(role.agent), timeout_ns=_ANSWER_NS
            )


def joined_clients(replies: dict[Hashable, Reply]) -> Reply:
    """Return the Processors' replies to `clients` as one list, with the Processor's index added to each connection.

    `silent` lists the Processors that ended or did not reply in time.
    """
    rows: list[dict[str, Any]] = []
    silent: list[int] = []
    for agent, reply in replies.items():
        assert isinstance(agent, AgentId)
        if reply.get("lost"):
            silent.append(agent.index)
        rows += ({**row, "processor": agent.index} for row in reply.get("clients", ()))
    return {"clients": rows, "silent": silent}


def was_killed(replies: dict[Hashable, Reply]) -> Reply:
    """Return the reply to `kill_client`: `is_killed` is True if any Processor had the connection and closed it."""
    return {"is_killed": any(reply.get("is_killed") for reply in replies.values())}
