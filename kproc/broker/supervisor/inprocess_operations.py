"""InProcessOperations: handles the controller's requests if there is no supervisor process (supervisor_operations.py).

The controller's thread calls `handle`. A role's part of a request runs in the thread of that role, and the reply goes
back to the controller's thread. Snapshots are made by the main thread, because they pause the controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final

from kproc.broker.processor.processor import Processor
from kproc.broker.role.control_requests import LOG_LEVELS, MOVE_TIME, SNAPSHOTS, Gathering, OnReply, Reply
from kproc.broker.role.roles import CLEANER, CONTROLLER, HANDLER, is_control
from kproc.broker.supervisor import broker_time
from kproc.broker.supervisor.logs import set_levels
from kproc.broker.supervisor.role_messages import handle_processor_request
from kproc.broker.supervisor.role_threads import RoleThreads
from kproc.broker.supervisor.snapshots import Snapshots
from kproc.broker.supervisor.supervisor_operations import joined_clients, was_killed
from kproc.broker.transport.agent import Agent
from kproc.common.movable_clock import MovableClock

_NO_PROCESSES: Final = (
    "the number of roles changes at the next start only: roles that share a process cannot be added or ended "
    "(kproc.transport=process can)"
)


class InProcessOperations:
    """Requests of the controller about all roles of a broker without processes."""

    def __init__(
        self,
        agents: Sequence[Agent],
        threads: RoleThreads,
        movable: MovableClock | None,
        *,
        snapshots: Snapshots,
        wake_main: Callable[[], None],
    ) -> None:
        """Keep `agents`, to which the roles are added later.

        `movable` is the broker's clock if its time can be moved.
        """
        self._agents = agents
        self._threads = threads
        self._movable = movable
        self._snapshots = snapshots
        self._snapshot_requests: deque[tuple[dict[str, Any], OnReply]] = deque()
        self._wake_main = wake_main

    def handle(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        """Carry out the controller's request `what`, now or in the main thread.

        `on_reply` is called in the controller's thread. Requests that start, stop or balance processes get an error,
        because this transport has no processes.
        """
        if what == LOG_LEVELS:
            set_levels(body["levels"])
            on_reply({})
        elif what == MOVE_TIME:
            self._move_time(body, on_reply)
        elif what == SNAPSHOTS:
            # The main thread handles it, because a restore stops the threads of all roles, this one included.
            self._snapshot_requests.append((body, on_reply))
            self._wake_main()
        elif what in ("clients", "kill_client"):
            self._request_processors(what, body, on_reply)
        else:
            # All other requests start, stop or balance processes, which this transport does not have.
            pool = [each for each in self._processors() if not is_control(each.id)]
            handlers = [each for each in self._agents if each.id.role == HANDLER]
            counts = {"processors": len(pool), "handlers": len(handlers)}
            on_reply({"error": _NO_PROCESSES, "counts": counts})

    def handle_snapshot_requests(self) -> None:
        """Handle all queued requests about snapshots. The main thread calls this after `wake_main` has woken it."""
        while self._snapshot_requests:
            body, on_reply = self._snapshot_requests.popleft()
            self._snapshots.handle(body, partial(self._reply, on_reply))

    def _reply(self, on_reply: OnReply, reply: Reply) -> None:
        """Send a reply to the controller, in whose thread its callback runs."""
        self._threads.post(self._controller(), partial(on_reply, reply))

    def _controller(self) -> Agent:
        return next(each for each in self._agents if each.id == CONTROLLER)

    def _processors(self) -> list[Processor]:
        return [each for each in self._agents if isinstance(each, Processor)]

    # -- clients -----------------------------------------------------------------------------------------------

    def _request_processors(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        def on_all(replies: dict[Hashable, Reply]) -> None:
            on_reply(joined_clients(replies) if what == "clients" else was_killed(replies))

        processors = self._processors()
        gathering = Gathering(len(processors), on_all)
        for processor in processors:
            receive = gathering.receiver(processor.id)
            action = partial(self._run_processor_request, processor, what, body, receive)
            self._threads.post(processor, action)

    def _run_processor_request(
        self, processor: Processor, what: str, body: dict[str, Any], receive: OnReply
    ) -> None:
        self._reply(receive, handle_processor_request(processor, what, body))

    # -- time --------------------------------------------------------------------------------------------------

    def _move_time(self, body: dict[str, Any], on_reply: OnReply) -> None:
        clock = self._movable
        problem = broker_time.move(clock, body["action"], body["ms"])
        if clock is None or problem is not None:
            on_reply({"error": problem})
            return
        cleaners = [each for each in self._agents if each.id == CLEANER]
        others = [each for each in self._agents if each.id != CLEANER]

        def on_moved() -> None:
            on_reply(broker_time.describe(clock))

        if body["action"] == "show":
            on_moved()
        else:
            # Run the cleaner's timers last, because the cleaner may compact only records that the Handlers have synced.
            self._follow_roles(others, lambda: self._follow_roles(cleaners, on_moved))

    def _follow_roles(self, agents: Sequence[Agent], on_all: Callable[[], None]) -> None:
        """Run the timers of these roles that are due after time was moved.

        The controller's thread then calls `on_all`.
        """
        gathering = Gathering(len(agents), lambda _replies: on_all())
        controller = self._controller()
        for agent in agents:
            receive = gathering.receiver(agent.id)
            on_done = partial(self._threads.post_at_once, controller, partial(receive, {}))
            self._threads.post_at_once(agent, partial(agent.follow_time, on_done))
