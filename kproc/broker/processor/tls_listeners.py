"""TlsListeners: what a Processor knows of its broker's TLS listeners. Nothing of TLS is loaded for it: what serves TLS
(tls_connections.py) is made by whoever wires the broker, when the first TLS connection comes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.transport_layer import Transport
from kproc.common.clock import Clock


class TlsSide(Protocol):
    """The TLS side of one Processor."""

    def transport(self, sock: socket.socket, listener: int) -> Transport | None:
        """The transport of a new connection; None if it was closed: the listener has no usable key."""

    def work(self, read: Callable[[Connection], None]) -> int:
        """Read what has more inside, go on with handshakes. Called in each pass while `is_busy`."""

    @property
    def is_busy(self) -> bool:
        """Whether `work` is to be called again, though no descriptor may report anything."""

    def wait_ms(self) -> int:
        """How long the Processor may sleep."""

    def every_second(self) -> None:
        """Close whoever is too late with its handshake."""

    def renew(self) -> list[str]:
        """Read all keys and certificates again; what was wrong with which."""


class TlsListeners:
    """One per Processor. `names` are the listeners' by index, and those that come at run time."""

    __slots__ = ("config", "make", "names", "on_change", "settings", "ticket_secret")

    def __init__(self, config: Config, names: Sequence[str], *, ticket_secret: bytes, make: MakeTls) -> None:
        self.config = config
        self.make = make
        self.names = names
        self.ticket_secret = ticket_secret
        self.settings = DynamicSettings()
        # Called when settings or listeners may be others; set by who has contexts.
        self.on_change: Callable[[], None] | None = None

    def use_names(self, names: Sequence[str]) -> None:
        """The listeners are these from now on."""
        self.names = names
        if self.on_change is not None:
            self.on_change()

    def apply_settings(self, settings: DynamicSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        if self.on_change is not None:
            self.on_change()


MakeTls = Callable[[ConnectionTable, ProcessorState, Clock, TlsListeners], TlsSide]
