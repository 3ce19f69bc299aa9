"""ListeningSockets: the sockets at which a broker listens, bound before its roles exist and kept for successors."""

from __future__ import annotations

import contextlib
import socket

from kproc.broker.config import Config
from kproc.broker.role.listeners import (
    open_control_listener,
    open_listeners,
    open_metrics_listener,
    start_listening,
)
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CONTROL_ACCEPTOR, acceptor_id
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
                # A later listener may fail to bind, and the ports of the earlier ones must be free again when the error
                # is reported.
                stack.callback(sock.close)
            control = open_control_listener(config)
            if control is not None:
                stack.callback(control[1].close)
            metrics = open_metrics_listener(config)
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

    def make_plan(self, clock: Clock, cluster_id: str) -> BrokerPlan:
        """Return the BrokerPlan of a broker that listens at these sockets."""
        return BrokerPlan(
            config=self._config,
            clock=clock,
            endpoints=self._endpoints,
            cluster_id=cluster_id,
            control=self._control,
            metrics=self._metrics,
            movable=MovableClock() if self._config.kproc_time_movable else None,
        )

    def start(self) -> None:
        """Let clients connect. Raises FatalError if another process listens at an address by now."""
        start_listening(self.by_acceptor.values(), self._config)

    def close_acceptors(self) -> None:
        """Close the sockets at which clients connect."""
        for sock in self.by_acceptor.values():
            sock.close()

    def close(self) -> None:
        """Close all sockets."""
        self.close_acceptors()
        if self.metrics is not None:
            self.metrics.close()
