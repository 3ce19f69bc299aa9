"""ListeningSockets: the sockets at which a broker listens.

They are bound before any role exists and kept for restarted Acceptors.
"""

from __future__ import annotations

import contextlib
import socket

from kproc.broker.config import Config
from kproc.broker.role.listeners import (
    close_listener,
    open_control_listener,
    open_listener,
    open_listeners,
    open_metrics_listener,
    start_listening,
)
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CONTROL_ACCEPTOR, acceptor_id
from kproc.broker.supervisor.data_directory import make_fs
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import Clock
from kproc.common.movable_clock import MovableClock


class ListeningSockets:
    """The sockets of the listeners, the control listener and the metrics listener. They are bound at creation.

    by_acceptor: the sockets at which clients connect, by the Acceptor that accepts there. ListenerSet adds and removes
    some while the broker runs.
    """

    def __init__(self, config: Config) -> None:
        """Bind all sockets. Raises FatalError if an address cannot be used."""
        with contextlib.ExitStack() as stack:
            opened = open_listeners(config)
            for _, sock in opened:
                # If a later listener cannot be bound, close the earlier ones, so that their ports are free when the
                # error is reported.
                stack.callback(sock.close)
            control = open_control_listener(config)
            if control is not None:
                stack.callback(control[1].close)
            metrics = open_metrics_listener(config)
            # Everything is bound. From here on close() of this object closes the sockets.
            stack.pop_all()
        self._config = config
        self._endpoints = [endpoint for endpoint, _ in opened]
        self._control = control[0] if control is not None else None
        self._metrics = metrics[0] if metrics is not None else None
        self.metrics = metrics[1] if metrics is not None else None
        self.by_acceptor: dict[AgentId, socket.socket] = {
            acceptor_id(index): sock for index, (_, sock) in enumerate(opened)
        }
        if control is not None:
            self.by_acceptor[CONTROL_ACCEPTOR] = control[1]
        self._at_start = dict(self.by_acceptor)

    def make_plan(self, clock: Clock, cluster_id: str) -> BrokerPlan:
        """Return the BrokerPlan of a broker that listens at these sockets."""
        return BrokerPlan(
            config=self._config,
            clock=clock,
            endpoints=self._endpoints,
            cluster_id=cluster_id,
            control=self._control,
            metrics=self._metrics,
            movable=MovableClock(clock) if self._config.kproc_time_movable else None,
            fs=make_fs(self._config),
        )

    def start(self) -> None:
        """Call listen() on the sockets, so that clients can connect.

        Raises FatalError if another process already listens there.
        """
        start_listening(self.by_acceptor.values(), self._config)

    def keep(self) -> None:
        """Prepare the sockets for the next run of the broker, which listens at the addresses of the first run.

        Each socket is replaced by a duplicate, because roles in this process close their own. A listener that was added
        at run time is closed, and one that was removed is opened again. Raises FatalError if that fails.
        """
        for sock in self.by_acceptor.values():
            if sock not in self._at_start.values():
                close_listener(sock)
        for agent, sock in self._at_start.items():
            # dup(2): both descriptors are the same socket, so the port stays bound, and clients in its
            # backlog are not lost.
            self._at_start[agent] = sock.dup() if sock.fileno() >= 0 else self._open_again(agent)
            sock.close()
        self.by_acceptor.clear()
        self.by_acceptor.update(self._at_start)
        if self.metrics is not None:
            former, self.metrics = self.metrics, self.metrics.dup()
            former.close()

    def _open_again(self, agent: AgentId) -> socket.socket:
        port = self._endpoints[agent.index].bound_port
        _, sock = open_listener(self._config.listeners[agent.index]._replace(port=port), self._config)
        return sock

    def close_acceptors(self) -> None:
        """Close the sockets at which clients connect."""
        for sock in self.by_acceptor.values():
            sock.close()

    def close(self) -> None:
        """Close all sockets."""
        self.close_acceptors()
        if self.metrics is not None:
            self.metrics.close()
