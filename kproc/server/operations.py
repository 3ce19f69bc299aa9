"""kproc's own operations, as the controller serves them: status, scale, rebalance, clients, kill-client.

Each is `operation(body, on_reply)` and may answer later: what concerns the processes is asked of the supervisor,
which alone starts and ends them. Counts chosen here are written down as dynamic configs first, so that they survive
a restart of the broker; Kafka's rule of half and double does not bind them, the bounds below do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kproc.cluster.controller import failure_of
from kproc.cluster.role_counts import role_count_max
from kproc.server.asks import OnReply
from kproc.server.plan import Plan
from kproc.server.status import Status

if TYPE_CHECKING:
    from kproc.server.controller import Controller

PrivateOperation = Callable[[dict[str, Any], OnReply], None]
AskSupervisor = Callable[[str, dict[str, Any], OnReply], None]

# What a scale request may name, and the setting behind it.
COUNTS: Final = {"processors": "num.network.threads", "handlers": "num.io.threads"}
_LOST: Final = "the controller lost its question to the supervisor; try again"


class OperationFailed(Exception):
    """What the asker is told instead of a result; one line."""


def answered(on_reply: OnReply, result: dict[str, Any]) -> None:
    """The reply of an operation that was done."""
    on_reply({"error": None, "result": result})


def refused(on_reply: OnReply, reason: str) -> None:
    """The reply of an operation that was not."""
    on_reply({"error": reason, "result": None})


class Operations:
    """The table of operations of one controller. Tells nobody who runs the roles."""

    def __init__(self, plan: Plan, status: Status, ask_supervisor: AskSupervisor) -> None:
        self._status = status
        self._ask = ask_supervisor
        self._node = str(plan.config.node_id)
        self._scales: deque[tuple[dict[str, int], OnReply]] = deque()
        self.controller: Controller  # Set by the controller itself, when it is made.
        self._operations: dict[str, PrivateOperation] = {
            "status": self._show_status,
            "scale": self._scale,
            "rebalance": self._rebalance,
            "clients": self._show_clients,
            "kill-client": self._kill_client,
        }

    def serve(self, name: str, body: dict[str, Any], on_reply: OnReply) -> None:
        """Do it, now or later; `on_reply` gets {"error", "result"} exactly once."""
        operation = self._operations.get(name)
        if operation is None:
            refused(on_reply, f"unknown operation {name!r}")
            return
        try:
            operation(body, on_reply)
        except OperationFailed as failure:
            refused(on_reply, str(failure))

    def _show_status(self, _body: dict[str, Any], on_reply: OnReply) -> None:
        answered(on_reply, self._status.describe())

    # -- scale -------------------------------------------------------------------------------------------------

    def _scale(self, body: dict[str, Any], on_reply: OnReply) -> None:
        """{"processors": N, "handlers": M}, either or both. One at a time: the next begins when this one is done."""
        self._scales.append((_wanted_counts(body), on_reply))
        if len(self._scales) == 1:
            self._begin_scale()

    def _begin_scale(self) -> None:
        wanted, _ = self._scales[0]

        def on_written(reply: dict[str, Any]) -> None:
            error = failure_of(reply)
            if error is not None:
                self._end_scale({"error": f"the counts cannot be written down: {error.message}"})
            else:
                self._ask("settle", {}, self._end_scale)

        self._write_counts(wanted, on_written)

    def _write_counts(self, counts: dict[str, int], on_written: OnReply) -> None:
        configs = {COUNTS[what]: str(count) for what, count in counts.items()}
        self.controller.serve("override_broker_configs", {"node": self._node, "configs": configs}, on_written)

    def _end_scale(self, reply: dict[str, Any]) -> None:
        """The supervisor has done what it could: {"error", "steps", "counts", "took_ms"}."""
        if reply.get("lost"):
            reply = {"error": _LOST}
        error = reply.get("error")
        if error and "counts" in reply:
            # What could not be reached must not be tried again at every start.
            self._write_counts(reply["counts"], lambda _: self._answer_scale(reply))
        else:
            self._answer_scale(reply)

    def _answer_scale(self, reply: dict[str, Any]) -> None:
        _, on_reply = self._scales.popleft()
        if reply.get("error"):
            refused(on_reply, str(reply["error"]))
        else:
            answered(on_reply, {key: reply[key] for key in ("counts", "steps", "took_ms")})
        if self._scales:
            self._begin_scale()

    # -- connections -------------------------------------------------------------------------------------------

    def _rebalance(self, _body: dict[str, Any], on_reply: OnReply) -> None:
        self._ask("rebalance", {}, _passes_on(on_reply))

    def _show_clients(self, _body: dict[str, Any], on_reply: OnReply) -> None:
        self._ask("clients", {}, _passes_on(on_reply))

    def _kill_client(self, body: dict[str, Any], on_reply: OnReply) -> None:
        connection_id = body.get("id")
        if not isinstance(connection_id, int) or isinstance(connection_id, bool):
            raise OperationFailed("kill-client needs the id of a connection, as `kproc clients` shows it")
        self._ask("kill_client", {"id": connection_id}, _passes_on(on_reply))


def _passes_on(on_reply: OnReply) -> OnReply:
    """Makes the supervisor's reply the operation's."""

    def take(reply: dict[str, Any]) -> None:
        if reply.get("lost"):
            refused(on_reply, _LOST)
        elif reply.get("error"):
            refused(on_reply, str(reply["error"]))
        else:
            answered(on_reply, reply)

    return take


def _wanted_counts(body: dict[str, Any]) -> dict[str, int]:
    wanted = {what: body[what] for what in COUNTS if body.get(what) is not None}
    if not wanted:
        raise OperationFailed("scale needs a number of processors or of handlers")
    most = role_count_max()
    for what, count in wanted.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
            raise OperationFailed(f"{what} must be a number from 1 to {most}, not {count!r}")
    return wanted
