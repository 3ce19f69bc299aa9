"""RoleMessages: handles the supervisor's messages and requests to a running role, the same on every transport.

A child process reads them from its control socket (child.py). A role in a thread gets them between two duty cycles
(inprocess.py). Replies and reports go back through `send`.

    messages     settings, targets, leave, handler_leaving, stop
    requests     every role: log_levels, reopen_log, follow_time (answered when the role's due timers have run)
                 Processor: clients, kill_client, move, still (answered when none of its connections is migrating any
                 more), close_listener, open_listener, listeners (their names), renew_certificates
                 Handler: endpoints
                 controller: every operation on the metadata
    sent back    drained      the role has nothing left, after stop or leave
                 unused       the role uses a leaving Handler for none of its clients any more
                 answer       the reply to a request
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.controller.controller import Controller
from kproc.broker.handler.handler import Handler
from kproc.broker.processor.processor import Processor
from kproc.broker.role.control_requests import FOLLOW_TIME, LOG_LEVELS, LOOK_UP, REOPEN_LOG, answer
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.supervisor import logs
from kproc.broker.transport.agent import Agent, AgentId
from kproc.common import log_levels

logger = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], None]
OnReply = Callable[[dict[str, Any]], None]


class RoleMessages:
    """Handles the supervisor's messages to one role. Only the thread that runs the role calls it."""

    def __init__(self, agent: Agent, send: Send) -> None:
        self._agent = agent
        self._send = send
        self._leaving_handlers: set[AgentId] = set()
        self._awaits_drain = False
        self._await_still: list[OnReply] = []
        # True while the supervisor waits for a condition that only `report` detects, such as the end of a drain. A
        # plain field and not a property, because the role reads it in every duty cycle.
        self.owes_news = False
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "stop": self._stop,
            "settings": self._apply_settings,
            "targets": self._use_targets,
            "leave": self._start_leave,
            "handler_leaving": self._handler_leaving,
            "ask": self._handle_request,
        }

    def handle(self, message: dict[str, Any]) -> bool:
        """Handle one of the supervisor's messages that the module docstring lists.

        Return False for any other message.
        """
        handler = self._handlers.get(message["do"])
        if handler is None:
            return False
        handler(message)
        self._update_owed()
        return True

    def report(self) -> None:
        """Report to the supervisor what has become true since the last call.

        That is: the role is drained, a Handler that leaves is unused, or no migration of connections is in progress.

        Called between duty cycles while `owes_news` is true.
        """
        agent = self._agent
        if self._awaits_drain and agent.is_drained():
            self._awaits_drain = False
            self._send({"do": "drained"})
        if self._await_still:
            assert isinstance(agent, Processor)
            if not agent.is_moving:
                waiting, self._await_still = self._await_still, []
                for on_reply in waiting:
                    on_reply({})
        if self._leaving_handlers:
            assert isinstance(agent, Processor)
            for peer in [each for each in self._leaving_handlers if not agent.uses(each)]:
                self._leaving_handlers.discard(peer)
                self._send({"do": "unused", "peer": peer})
        self._update_owed()

    def discard_peer(self, peer: AgentId) -> None:
        """Report nothing more about a leaving Handler, because it has ended.

        Until then this role waits to report that it uses the Handler for no client any more.
        """
        self._leaving_handlers.discard(peer)
        self._update_owed()

    def _update_owed(self) -> None:
        self.owes_news = self._awaits_drain or bool(self._leaving_handlers or self._await_still)

    # -- messages ----------------------------------------------------------------------------------------------

    def _stop(self, _message: dict[str, Any]) -> None:
        self._awaits_drain = True
        self._agent.drain()

    def _apply_settings(self, message: dict[str, Any]) -> None:
        assert isinstance(self._agent, (Acceptor, Processor))
        self._agent.apply_settings(DynamicSettings.of_message(message))

    def _use_targets(self, message: dict[str, Any]) -> None:
        assert isinstance(self._agent, Acceptor)
        self._agent.use_only(frozenset(AgentId(*peer) for peer in message["peers"]))

    def _start_leave(self, message: dict[str, Any]) -> None:
        self._awaits_drain = True
        if isinstance(self._agent, Processor):
            self._agent.begin_leave([AgentId(*peer) for peer in message["targets"]])
        else:
            assert isinstance(self._agent, Handler)
            self._agent.begin_leave()

    def _handler_leaving(self, message: dict[str, Any]) -> None:
        assert isinstance(self._agent, Processor)
        peer = AgentId(*message["peer"])
        self._agent.handler_leaving(peer)
        self._leaving_handlers.add(peer)

    # -- requests ----------------------------------------------------------------------------------------------

    def _handle_request(self, message: dict[str, Any]) -> None:
        token = message["token"]

        def on_reply(reply: dict[str, Any]) -> None:
            self._send(answer(token, reply))

        self._run_request(message["what"], message["body"], on_reply)

    def _run_request(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        agent = self._agent
        if what == LOG_LEVELS:
            log_levels.apply(body["levels"])
            on_reply({})
        elif what == REOPEN_LOG:
            logs.reopen_file()
            on_reply({})
        elif what == FOLLOW_TIME:
            agent.follow_time(lambda: on_reply({}))
        elif isinstance(agent, Controller):
            if what == LOOK_UP:
                agent.resolve_host(body["host"], lambda found: on_reply({"found": found}))
            else:
                agent.handle_change(what, body, on_reply)
        elif what == "endpoints":
            assert isinstance(agent, Handler)
            agent.apply_endpoints([ListenerEndpoint(**fields) for fields in body["endpoints"]])
            on_reply({})
        elif what == "still":
            self._await_still.append(on_reply)
        else:
            assert isinstance(agent, Processor), what
            on_reply(handle_processor_request(agent, what, body))


def handle_processor_request(processor: Processor, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Carry out the request `what` of the supervisor: describe, close or move connections, or change listeners.

    Return the reply.
    """
    if what == "clients":
        return {"clients": processor.describe_connections()}
    if what == "kill_client":
        return {"is_killed": processor.kill_connection(body["id"])}
    if what == "close_listener":
        return {"closed": processor.close_listener(body["listener"])}
    if what == "open_listener":
        processor.open_listener(body["listener"])
        return {}
    if what == "listeners":
        processor.use_listeners(body["names"])
        return {}
    if what == "renew_certificates":
        return {"problems": processor.renew_certificates()}
    assert what == "move", what
    return {"moving": processor.move_connections(body["count"], AgentId(*body["target"]))}
