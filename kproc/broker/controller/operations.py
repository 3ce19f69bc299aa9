"""kproc's own operations, as the controller serves them: status, topics, logs, scale, rebalance, clients, kill-client.

calls/own_operations.py has their bodies. The controller forwards operations on processes to the supervisor, because
only the supervisor starts and stops processes. So a reply may come in a later duty cycle. `scale` stores the new counts
of Processors and Handlers as dynamic configs before it applies them, so that they survive a restart of the broker.
Kafka's rule that one change may at most double or halve such a count does not apply. A count must be between 1 and
role_count_max().
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import (
    DeleteSnapshot,
    KillClient,
    MoveTime,
    OwnOperation,
    PlanRebalance,
    ReadMonitor,
    Rebalance,
    RestoreSnapshot,
    Scale,
    ShowClients,
    ShowLogs,
    ShowStatus,
    ShowTopics,
    SnapshotOperation,
)
from kproc.broker.cluster.controller import failure_of
from kproc.broker.cluster.role_counts import role_count_max
from kproc.broker.observe.log_survey import LogSurvey
from kproc.broker.observe.network_figures import CONTROL
from kproc.broker.observe.request_lines import HandlerWatches
from kproc.broker.observe.status import Status
from kproc.broker.observe.topic_traffic import TopicTraffic
from kproc.broker.role.control_requests import LOG_LEVELS, MOVE_TIME, SNAPSHOTS, OnReply
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CONTROL_PROCESSOR
from kproc.common.errors import RETRIABLE

if TYPE_CHECKING:
    from kproc.broker.controller.controller import Controller
    from kproc.common.containment import Containment

AskSupervisor = Callable[[str, dict[str, Any], OnReply], None]

# The counts that a scale request can have, and the setting of each. They are stored as settings, so that a restart
# keeps them.
COUNTS: Final = {"processors": "num.network.threads", "handlers": "num.io.threads"}
_NO_SNAPSHOTS: Final = (
    "snapshots are off: start a broker for tests, and no other one, with kproc.faults.enable=true"
)
_LOST: Final = "the controller's request to the supervisor was lost"
_REMEMBERED: Final = 16  # Finished changes that are kept because a client may still ask for their result.
_WAITING_MAX: Final = 16  # Maximum number of changes that wait for an earlier one.


class OperationFailed(Exception):
    """An operation failed; the client gets the message, one line, instead of a result.

    is_retriable: the cause passes, so that the same request can succeed later.
    """

    def __init__(self, reason: str, *, is_retriable: bool = False) -> None:
        super().__init__(reason)
        self.is_retriable = is_retriable


def answered(on_reply: OnReply, result: dict[str, Any]) -> None:
    """Respond with the result of an operation that succeeded."""
    on_reply({"error": None, "result": result, "is_retriable": False})


def refused(on_reply: OnReply, reason: str, *, is_retriable: bool = False) -> None:
    """Respond with the error of an operation that failed. `is_retriable`: its cause passes."""
    on_reply({"error": reason, "result": None, "is_retriable": is_retriable})


def _on_own_answer(on_reply: OnReply, answer: OwnAnswer) -> None:
    on_reply({"error": answer.error, "result": answer.result, "is_retriable": answer.is_retriable})


class _ScaleRequest:
    """One requested change of the role counts, and the callbacks of requests that wait for it."""

    def __init__(self, ticket: str, wanted: dict[str, int]) -> None:
        self.ticket = ticket
        self.wanted = wanted
        self.has_begun = False
        self.reply: dict[str, Any] | None = None
        self.waiting: list[OnReply] = []

    def answer(self) -> None:
        """Reply to every request that waits for this change: with its result, or that it is not done yet."""
        waiting, self.waiting = self.waiting, []
        for on_reply in waiting:
            if self.reply is None:
                answered(on_reply, {"is_done": False, "ticket": self.ticket})
            elif self.reply.get("error"):
                _forward_error(on_reply, self.reply)
            else:
                answered(on_reply, {"is_done": True, **self.reply})


class SharedQuestion:
    """Shares a slow request to another role between clients, so that 1,000 clients do not fill that role's queue.

    One request is in progress at a time. All clients that come meanwhile share the next one. `ask` sends the request
    and calls its argument with the reply, exactly once.
    """

    def __init__(self, ask: Callable[[OnReply], None]) -> None:
        self._ask = ask
        self._waiting: list[OnReply] = []
        self._is_asking = False

    def request(self, on_reply: OnReply) -> None:
        """Call `on_reply` with the reply to a request that is sent during this call or later, not before it."""
        self._waiting.append(on_reply)
        if not self._is_asking:
            self._send_next()

    def _send_next(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._is_asking = True

        def on_answer(reply: dict[str, Any]) -> None:
            self._is_asking = False
            for on_reply in waiting:
                on_reply(reply)
            if self._waiting:
                self._send_next()

        self._ask(on_answer)


class Operations:
    """Handles kproc's own operations, such as status, scale and rebalance, for one controller.

    It does not know whether roles are processes or threads.
    """

    def __init__(self, plan: BrokerPlan, status: Status, ask_supervisor: AskSupervisor) -> None:
        self.status = status
        self._ask = ask_supervisor
        self._has_snapshots = plan.config.kproc_faults_enable
        self._node = str(plan.config.node_id)
        self._wall_ms = plan.clock.wall_ms
        self._scales: deque[_ScaleRequest] = deque()
        self._past_scales: deque[_ScaleRequest] = deque(maxlen=_REMEMBERED)
        self._numbers = itertools.count(1)
        self.await_status: list[OnReply] = []
        self._clients, self._logs = SharedQuestion(self._show_clients), SharedQuestion(self._survey_logs)
        # Part of each ticket, so that a ticket of this controller's predecessor is not taken for one of its own.
        self._started_ms = plan.clock.wall_ms()
        self.controller: Controller  # Set by the controller itself, when it is made.
        self._traffic = TopicTraffic(
            plan.clock.now_ns,
            lambda: self.controller.image,
            lambda *call: self.controller.send_to_handler(*call),
            lambda *call: self.controller.send_to_cleaner(*call),
        )
        self._watches = HandlerWatches(
            plan.clock.now_ns,
            lambda: self.controller.image.handler_count,
            lambda *call: self.controller.send_to_handler(*call),
        )

    def handle(self, operation: OwnOperation, on_reply: OnReply) -> None:
        """Run an operation; `on_reply` gets {"error", "result", "is_retriable"} exactly once, now or later."""
        try:
            if isinstance(operation, ShowStatus):
                self.await_status.append(on_reply)
            elif isinstance(operation, Scale):
                self._scale(operation, on_reply)
            elif isinstance(operation, Rebalance):
                self._ask("rebalance", {}, _passes_on(on_reply))
            elif isinstance(operation, PlanRebalance):
                self._ask("plan_rebalance", {}, _passes_on(on_reply))
            elif isinstance(operation, ShowClients):
                self._clients.request(on_reply)
            elif isinstance(operation, ShowTopics):
                self._traffic.request(partial(answered, on_reply))
            elif isinstance(operation, ReadMonitor):
                self._watches.read(operation, partial(_on_own_answer, on_reply))
            elif isinstance(operation, ShowLogs):
                self._logs.request(on_reply)
            elif isinstance(operation, KillClient):
                self._ask("kill_client", {"id": operation.id}, _passes_on(on_reply))
            elif isinstance(operation, SnapshotOperation):
                self._change_snapshots(operation, on_reply)
            elif isinstance(operation, MoveTime):
                body = {"action": operation.action, "ms": operation.ms}
                self._ask(MOVE_TIME, body, _passes_on(on_reply))
            else:
                answered(on_reply, {})
        except OperationFailed as failure:
            refused(on_reply, str(failure), is_retriable=failure.is_retriable)

    def _change_snapshots(self, operation: SnapshotOperation, on_reply: OnReply) -> None:
        """Let the supervisor create, restore or delete a snapshot of the data directory.

        Raises OperationFailed unless this is a broker for tests (kproc.faults.enable).
        """
        # A restored snapshot replaces all data, so a mistake of a client must not reach a broker with real
        # data.
        if not self._has_snapshots:
            raise OperationFailed(_NO_SNAPSHOTS)
        named = operation if isinstance(operation, RestoreSnapshot | DeleteSnapshot) else None
        body = {"do": operation.__struct_config__.tag, "snapshot": named.snapshot if named else None}
        self._ask(SNAPSHOTS, body, _passes_on(on_reply))

    def answer_status(self, containment: Containment) -> None:
        """Compute the status once, and respond with it to all requests for the status of this duty cycle.

        Computing the status takes some ms.
        """
        waiting, self.await_status = self.await_status, []
        results: list[dict[str, Any]] = []
        containment.run("the status", None, lambda: results.append(self._describe()))
        for on_reply in waiting:
            # After an error in _describe the containment has logged it, and there is no result.
            if results:
                answered(on_reply, results[0])
            else:
                refused(on_reply, "the status failed: see the broker's log")

    def _describe(self) -> dict[str, Any]:
        return {**self.status.describe(), "apis": [each.row() for each in self.status.figures.apis()]}

    def _survey_logs(self, on_reply: OnReply) -> None:
        def on_done(topics: list[dict[str, Any]] | None) -> None:
            if topics is None:
                refused(on_reply, "the cleaner is being restarted", is_retriable=True)
            else:
                answered(on_reply, {"topics": topics, "offline": self.status.offline.describe()})

        LogSurvey(self.controller.image, self.controller.send_to_cleaner, on_done).advance()

    # -- scale -------------------------------------------------------------------------------------------------

    def _scale(self, body: Scale, on_reply: OnReply) -> None:
        """Change the counts of Processors, Handlers or both. With a ticket only wait for an earlier change.

        Respond when the change is done, but at the next tick at the latest, then with {"is_done": False, "ticket"}. The
        client then asks again with the ticket. A longer wait would keep the Handler of the request from stopping.
        Raises OperationFailed.
        """
        ticket = body.ticket
        if ticket is None:
            # Each change can take a minute, so a client that sends them without waiting must not fill the queue.
            if len(self._scales) > _WAITING_MAX:
                raise OperationFailed(
                    f"scale: {_WAITING_MAX} changes wait already, which is the limit", is_retriable=True
                )
            ticket = f"{self._started_ms}-{next(self._numbers)}"
            self._scales.append(_ScaleRequest(ticket, _requested_counts(body)))
        scale = next((each for each in (*self._scales, *self._past_scales) if each.ticket == ticket), None)
        if scale is None:
            raise OperationFailed(
                f"change {ticket!r} is unknown: the controller was restarted, or {_REMEMBERED} later changes have "
                "ended; kproc status shows the present numbers"
            )
        scale.waiting.append(on_reply)
        if scale.reply is not None:
            scale.answer()
        # One change at a time, because each one changes the links between all roles.
        elif len(self._scales) == 1 and not scale.has_begun:
            self._start_scale()

    @property
    def is_waiting(self) -> bool:
        """True if a client waits for a change of the role counts or for replies of Handlers."""
        return bool(self._scales) or self._traffic.is_collecting or self._watches.is_waiting

    def tick(self, now_ns: int) -> None:
        """Respond to the requests that wait for a change of role counts, or too long for replies of Handlers.

        Called ten times a second while such requests exist.
        """
        self.status.sample(now_ns)
        self._traffic.expire(now_ns)
        self._watches.expire(now_ns)
        for scale in self._scales:
            scale.answer()

    def _start_scale(self) -> None:
        """Start the next change of the role counts. One change runs at a time."""
        scale = self._scales[0]
        scale.has_begun = True

        def on_written(reply: dict[str, Any]) -> None:
            error = failure_of(reply)
            if error is not None:
                reason = f"the counts cannot be written down: {error.message}"
                self._on_scaled({"error": reason, "is_retriable": error.code in RETRIABLE})
            else:
                self._ask("settle", {}, self._on_scaled)

        self._write_counts(scale.wanted, on_written)

    def _write_counts(self, counts: dict[str, int], on_written: OnReply) -> None:
        configs = {COUNTS[what]: str(count) for what, count in counts.items()}
        body = {"node": self._node, "configs": configs}
        # Do not wait for the Handlers: a removed Handler learns of the change only from the supervisor, so that the
        # controller and that Handler would wait for each other.
        self.controller.handle_change("override_broker_configs", body, on_written, waits_for_handlers=False)

    def _on_scaled(self, reply: dict[str, Any]) -> None:
        """Finish a change of the role counts with the supervisor's result.

        It is {"steps", "counts", "took_ms"}, and after a failure also has "error" and "is_retriable".
        """
        if reply.get("lost"):
            reply = {"error": _LOST, "is_retriable": True}
        if reply.get("error") and "counts" in reply:
            # Replace counts that could not be reached, because otherwise every start would try them again.
            self._write_counts(reply["counts"], lambda _: self._finish_scale(reply))
        else:
            self._finish_scale(reply)

    def _finish_scale(self, reply: dict[str, Any]) -> None:
        scale = self._scales.popleft()
        scale.reply = reply
        scale.answer()
        self._past_scales.append(scale)
        if self._scales:
            self._start_scale()

    def set_log_levels(self, body: dict[str, Any], on_reply: OnReply) -> None:
        """Set log levels. Body: {"levels": {logger: level}}. The level None means the level of the parent logger.

        `on_reply` is called when every role has set the levels.
        """
        self._ask(LOG_LEVELS, body, on_reply)

    # -- connections -------------------------------------------------------------------------------------------

    def _show_clients(self, on_reply: OnReply) -> None:
        def on_clients(reply: dict[str, Any]) -> None:
            for row in reply.get("clients", ()):
                is_control = row["processor"] == CONTROL_PROCESSOR.index
                row["listener_name"] = CONTROL if is_control else self.status.listener_name(row["listener"])
                # The wall clock can have been set back since the accept, so limit the age to 0.
                row["age_ms"] = max(0, self._wall_ms() - row["accepted_ms"])
            _passes_on(on_reply)(reply)

        self._ask("clients", {}, on_clients)


def _passes_on(on_reply: OnReply) -> OnReply:
    """Return a callback for the supervisor's reply. It calls `on_reply` with the reply's result or error."""

    def on_supervisor_reply(reply: dict[str, Any]) -> None:
        if reply.get("lost"):
            refused(on_reply, _LOST, is_retriable=True)
        elif reply.get("error"):
            _forward_error(on_reply, reply)
        else:
            answered(on_reply, reply)

    return on_supervisor_reply


def _forward_error(on_reply: OnReply, reply: dict[str, Any]) -> None:
    """Respond with the error in a reply of the supervisor, which is retriable only if the reply says that."""
    refused(on_reply, str(reply["error"]), is_retriable=reply.get("is_retriable", False))


def _requested_counts(body: Scale) -> dict[str, int]:
    given = {"processors": body.processors, "handlers": body.handlers}
    wanted = {what: count for what, count in given.items() if count is not None}
    if not wanted:
        raise OperationFailed("scale needs a number of processors or of handlers")
    most = role_count_max()
    for what, count in wanted.items():
        if not 1 <= count <= most:
            raise OperationFailed(f"{what} must be a number from 1 to {most}, not {count}")
    return wanted
