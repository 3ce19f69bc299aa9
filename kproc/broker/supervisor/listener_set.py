"""ListenerSet: the supervisor's listeners, which AlterConfigs of `listeners` adds and removes while clients work.

A name identifies a listener, as in Kafka. A listener whose name stays is left alone even if its address changes. A
listener has an index, which every connection carries and which selects the Acceptor's row of the slab. The index of a
removed listener is reused: first by a listener of the same name, and by another one only when every index has been
used. Before an index is reused, the Processors close all connections of its old listener. Otherwise a migrating
connection would count as one of the new listener.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import socket
from collections.abc import Callable, Generator
from typing import Any, Final

from kproc.broker.config import EndPoint
from kproc.broker.config.listeners import LISTENERS_MAX
from kproc.broker.role.control_requests import LOOK_UP
from kproc.broker.role.listeners import ListenerEndpoint, close_listener, needs_look_up, open_listener
from kproc.broker.role.roles import CONTROLLER, HANDLER, PROCESSOR, acceptor_id, is_control
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.broker.transport.agent import AgentId
from kproc.common.errors import FatalError

logger = logging.getLogger(__name__)

Steps = Generator[Callable[[], bool], None, None]
AllAnswered = Generator[Callable[[], bool], None, bool]
# Longest wait of a change of listeners for a role's reply. A role stopped by SIGSTOP reads the change when it
# continues.
_ANSWER_NS: Final = 10_000_000_000
_EMPTY: Final = ListenerEndpoint("", "", 0, "", 0)
NO_PLACES: Final = "a Processor that hangs may still have connections of removed listeners"


class ListenerSet:
    """All listeners for clients, by index, without the control listener. Owned by the supervisor."""

    def __init__(self, children: Children, listening: dict[AgentId, socket.socket]) -> None:
        self._children = children
        self._listening = listening
        self._config = children.plan.config
        # Indexes of removed listeners, with the name of the last listener of each. A listener that is added again gets
        # its old index. The index that has been free for the longest time comes first.
        self._used: dict[int, str] = {}
        # The configured endpoint of every listener by name, including listeners that were removed at run time.
        self._configured = {each.name: each for each in self._config.listeners}

    def names(self) -> dict[int, str]:
        """Return the names of the listeners that are open now, by index."""
        return {at: each.name for at, each in enumerate(self._children.plan.endpoints) if each.name}

    def configured_endpoint(self, index: int) -> EndPoint:
        """Return the endpoint with which a listener can be reopened at the port that it is bound to now."""
        each = self._children.plan.endpoints[index]
        return self._configured[each.name]._replace(port=each.bound_port)

    def replace_before_start(
        self, wanted: tuple[EndPoint, ...]
    ) -> Generator[Callable[[], bool], None, dict[EndPoint, str]]:
        """Bind the wanted listeners and close the others, before any role but the controller runs.

        A listener that was set at run time and cannot be bound is skipped: if it made the start fail, no client could
        correct the setting. If no listener is left, the broker opens the listeners of its static settings, and raises
        FatalError if these cannot be bound either. Returns the skipped listeners with the reasons.
        """
        shut: dict[EndPoint, str] = {}
        static = {each.name: each for each in self._config.listeners}
        endpoints = {each.name: each for each in self._children.plan.endpoints}
        socks = {each.name: self._listening[acceptor_id(at)] for at, each in enumerate(endpoints.values())}
        for name in [name for name in endpoints if static[name] not in wanted]:
            endpoints.pop(name)
            close_listener(socks.pop(name))
        for each in [each for each in wanted if each.name not in endpoints]:
            try:
                endpoints[each.name], socks[each.name] = yield from self._open(each)
            except FatalError as error:
                logger.error("%s", error)
                shut[each] = str(error)
        if not endpoints:
            logger.error(
                "listeners: none of the listeners set at run time can be opened; opening those of the configuration"
            )
            for each in self._config.listeners:
                endpoints[each.name], socks[each.name] = yield from self._open(each)
        for at in range(len(self._children.plan.endpoints)):
            del self._listening[acceptor_id(at)]
        # Number the sockets again in the wanted order, because an Acceptor finds its listener by their common index.
        names = [each.name for each in wanted if each.name in endpoints] or list(endpoints)
        for at, name in enumerate(names):
            self._listening[acceptor_id(at)] = socks[name]
        self._set_endpoints([endpoints[name] for name in names])
        return shut

    # -- while the broker runs ---------------------------------------------------------------------------------

    def add(self, end_point: EndPoint) -> Generator[Callable[[], bool], None, ManagedRole]:
        """Bind a listener and announce it to Handlers and Processors.

        Return the role of its Acceptor for the caller to start.
        """
        index = yield from self._acquire_index(end_point.name)
        endpoint, sock = yield from self._open(end_point)
        endpoints = list(self._children.plan.endpoints)
        endpoints += [_EMPTY] * (index + 1 - len(endpoints))
        endpoints[index] = endpoint
        self._listening[acceptor_id(index)] = sock
        self._set_endpoints(endpoints)
        yield from self._request_all(
            HANDLER, "endpoints", {"endpoints": [fields_of(each) for each in endpoints]}
        )
        yield from self._request_all(PROCESSOR, "listeners", {"names": [each.name for each in endpoints]})
        return self._children.table.add(acceptor_id(index))

    def close(self, index: int) -> None:
        """Close the listener's port, so that no new client can connect."""
        logger.info("closing listener %s", self._children.plan.endpoints[index].name)
        close_listener(self._listening.pop(acceptor_id(index)))

    def release_index(self, index: int) -> Steps:
        """Close the connections of a listener whose Acceptor has ended, and free its index."""
        yield from self._request_all(PROCESSOR, "close_listener", {"listener": index})
        endpoints = list(self._children.plan.endpoints)
        self._used[index] = endpoints[index].name
        endpoints[index] = _EMPTY
        self._set_endpoints(endpoints)

    def _set_endpoints(self, endpoints: list[ListenerEndpoint]) -> None:
        """Set the endpoints for the status and for roles that start later."""
        self._children.plan = dataclasses.replace(self._children.plan, endpoints=endpoints)
        self._children.on_change()

    def _open(
        self, end_point: EndPoint
    ) -> Generator[Callable[[], bool], None, tuple[ListenerEndpoint, socket.socket]]:
        """Bind and open a listener. Return its endpoint and its socket.

        The supervisor must never block, so the controller resolves the host name. Each yielded function returns True
        when the generator can continue. Raises FatalError if the name cannot be resolved or the address cannot be
        bound.
        """
        found: list[str] = []
        if needs_look_up(end_point, self._config):
            found = yield from self._resolve_host(end_point)
            if not found:
                raise FatalError(f"listeners: cannot resolve the host of {end_point}")
        opened = open_listener(end_point, self._config, found)
        self._configured[end_point.name] = end_point
        return opened

    def _resolve_host(self, end_point: EndPoint) -> Generator[Callable[[], bool], None, list[str]]:
        """Let the controller resolve a host name, and return the addresses. Repeat it if the controller dies.

        Each yielded function returns True when the generator can continue.
        """
        controller = self._children.table[CONTROLLER]
        while True:
            replies: list[dict[str, Any]] = []
            yield lambda: controller.child is not None
            self._children.send_request(controller, LOOK_UP, {"host": end_point.host}, replies.append)
            yield functools.partial(bool, replies)
            if not replies[0].get("lost"):
                return list(replies[0]["found"])

    # -- indexes ------------------------------------------------------------------------------------------------

    def has_free_indexes(self, count: int) -> AllAnswered:
        """Return True if `count` more listeners can get indexes.

        Call it before closing the listeners that they replace.

        An index that was used before counts only if every Processor replies in time that no connection is migrating.
        """
        if count <= LISTENERS_MAX - len(self.names()) - len(self._used):
            return True
        return (yield from self._request_all(PROCESSOR, "still", {}))

    def _acquire_index(self, name: str) -> Generator[Callable[[], bool], None, int]:
        """Return the index for a new listener.

        Raise FatalError if every index has a listener or may have connections.
        """
        free = [index for index in range(LISTENERS_MAX) if index not in self.names()]
        unused = [index for index in free if index not in self._used]
        own = [index for index, before in self._used.items() if before == name]
        for index in [*own, *unused[:1], *(each for each in self._used if each not in own)]:
            if index not in self._used:
                return index
            if (yield from self._request_all(PROCESSOR, "open_listener", {"listener": index})):
                del self._used[index]
                return index
        raise FatalError(f"listeners: cannot add {name}: {NO_PLACES}")

    def _request_all(self, kind: str, what: str, body: dict[str, Any]) -> AllAnswered:
        """Send the request `what` to every role of a kind. Wait until each has replied or died.

        Return False if one did not reply in time.
        """
        requested = [
            (each, each.child)
            for each in self._children.table.of(kind)
            if each.child is not None and not is_control(each.agent)
        ]
        replies: dict[AgentId, dict[str, Any]] = {}
        for each, _ in requested:
            on_reply = functools.partial(replies.__setitem__, each.agent)
            self._children.send_request(each, what, body, on_reply, timeout_ns=_ANSWER_NS)
        yield lambda: len(replies) == len(requested)
        return not any(replies[each.agent].get("lost") and each.child is child for each, child in requested)


def fields_of(endpoint: ListenerEndpoint) -> dict[str, Any]:
    """Return an endpoint as a dict, for a message."""
    return {field: getattr(endpoint, field) for field in endpoint.__struct_fields__}
