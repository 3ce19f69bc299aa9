"""ListenerSet: the supervisor's listeners, which come and go by AlterConfigs of `listeners` while clients work.

A listener is known by its name, as in Kafka: one that is named before and after is left alone whatever its address
says. Its index travels with every connection and stands in every role's list of endpoints, so a removed one leaves
its place empty for good: what still names it, a connection that is just being moved, is not taken for another's.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Callable, Generator
from typing import Any, Final

from kproc.config import EndPoint
from kproc.errors import FatalError
from kproc.server.children import Children
from kproc.server.listeners import Endpoint, close_listener, open_listener
from kproc.server.roles import ACCEPTOR_COUNT_MAX, HANDLER, PROCESSOR, acceptor_id, is_control
from kproc.server.roles_table import Role
from kproc.transport.agent import AgentId

logger = logging.getLogger(__name__)

Steps = Generator[Callable[[], bool], None, None]
# The last place is the control listener's Acceptor's.
_INDEX_END: Final = ACCEPTOR_COUNT_MAX - 1
# A role that is stopped hears of a listener when it goes on; nothing else waits for that.
_TELL_NS: Final = 10_000_000_000
_EMPTY: Final = Endpoint("", "", 0, "", 0)


class ListenerSet:
    """All listeners of the data plane, by index. Owned by the supervisor."""

    def __init__(self, children: Children, listening: dict[AgentId, socket.socket]) -> None:
        self._children = children
        self._listening = listening
        self._config = children.plan.config
        self._next_index = len(children.plan.endpoints)
        self._asked = {each.name: each for each in self._config.listeners}  # Also of those that are gone.

    def names(self) -> dict[int, str]:
        """The name of each listener that there is."""
        return {at: each.name for at, each in enumerate(self._children.plan.endpoints) if each.name}

    def end_point(self, index: int) -> EndPoint:
        """What opens that listener again, with the port that it has."""
        each = self._children.plan.endpoints[index]
        return self._asked[each.name]._replace(port=each.bound_port)

    def replace_before_start(self, wanted: tuple[EndPoint, ...]) -> dict[str, str]:
        """No role has an endpoint yet: bind what is wanted now and let go of what is not.

        What was changed on the running broker and cannot be bound (any more) must not keep the broker from starting,
        for then nobody could change it back: it is left out, and if nothing is left the broker has the listeners that
        it was started with. FatalError if it cannot have those either. Returns the names left out, and why.
        """
        shut: dict[str, str] = {}
        static = {each.name: each for each in self._config.listeners}
        endpoints = {each.name: each for each in self._children.plan.endpoints}
        socks = {each.name: self._listening[acceptor_id(at)] for at, each in enumerate(endpoints.values())}
        for name in [name for name in endpoints if static[name] not in wanted]:
            endpoints.pop(name)
            close_listener(socks.pop(name))
        for each in [each for each in wanted if each.name not in endpoints]:
            try:
                endpoints[each.name], socks[each.name] = open_listener(each, self._config)
                self._asked[each.name] = each
            except FatalError as error:
                logger.error("%s", error)
                shut[each.name] = str(error)
        if not endpoints:
            logger.error("listeners: none of those that were set can be bound; opening those of the start")
            for each in self._config.listeners:
                endpoints[each.name], socks[each.name] = open_listener(each, self._config)
                self._asked[each.name] = each
        for at in range(len(self._children.plan.endpoints)):
            del self._listening[acceptor_id(at)]
        names = [each.name for each in wanted if each.name in endpoints] or list(endpoints)
        for at, name in enumerate(names):
            self._listening[acceptor_id(at)] = socks[name]
        self._set_endpoints([endpoints[name] for name in names])
        self._next_index = len(names)
        return shut

    # -- while the broker runs ---------------------------------------------------------------------------------

    def add(self, end_point: EndPoint) -> Generator[Callable[[], bool], None, Role]:
        """Bind it, let every Handler know it, and only then let an Acceptor look at it: its role, to be started."""
        index = self._free_index()
        endpoint, sock = open_listener(end_point, self._config)
        endpoints = list(self._children.plan.endpoints)
        endpoints += [_EMPTY] * (index + 1 - len(endpoints))
        endpoints[index] = endpoint
        self._listening[acceptor_id(index)] = sock
        self._asked[end_point.name] = end_point
        self._set_endpoints(endpoints)
        yield from self._tell(HANDLER, "endpoints", {"endpoints": [fields_of(each) for each in endpoints]})
        return self._children.table.add(acceptor_id(index))

    def shut(self, index: int) -> None:
        """Its port is free and nobody new gets in."""
        logger.info("closing listener %s", self._children.plan.endpoints[index].name)
        close_listener(self._listening.pop(acceptor_id(index)))

    def forget(self, index: int) -> Steps:
        """Its Acceptor has ended: close its connections, empty its place."""
        yield from self._tell(PROCESSOR, "close_listener", {"listener": index})
        endpoints = list(self._children.plan.endpoints)
        endpoints[index] = _EMPTY
        self._set_endpoints(endpoints)

    def _set_endpoints(self, endpoints: list[Endpoint]) -> None:
        """For whoever is started from now on, and for who asks what there is."""
        self._children.plan = dataclasses.replace(self._children.plan, endpoints=endpoints)
        self._children.on_change()

    def _free_index(self) -> int:
        if self._next_index == _INDEX_END:
            raise FatalError(f"listeners: a restart is needed after {_INDEX_END} of them")
        self._next_index += 1
        return self._next_index - 1

    def _tell(self, role: str, what: str, body: dict[str, Any]) -> Steps:
        """Ask every role of a kind, and wait until each has done it, ended, or taken too long."""
        roles = [
            each
            for each in self._children.table.of(role)
            if each.child is not None and not is_control(each.agent)
        ]
        replies: list[dict[str, Any]] = []
        for each in roles:
            self._children.ask(each, what, body, replies.append, timeout_ns=_TELL_NS)
        yield lambda: len(replies) == len(roles)


def fields_of(endpoint: Endpoint) -> dict[str, Any]:
    """An endpoint as a message's body."""
    return {field: getattr(endpoint, field) for field in endpoint.__struct_fields__}
