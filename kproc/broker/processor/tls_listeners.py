"""TlsListeners: names and settings from which a Processor makes TLS contexts, without loading any TLS code.

The TLS side (tls_connections.py) is made by `make` at the first TLS connection. The code that wires the broker supplies
`make`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.processor_state import ProcessorState
from kproc.common.clock import Clock

if TYPE_CHECKING:
    from kproc.broker.processor.tls_connections import TlsConnections


class TlsListeners:
    """The settings from which TLS contexts are made, without any TLS code loaded. One per Processor.

    `names` has the names of all listeners by index, also of those without TLS and of those added at run time.
    """

    __slots__ = ("config", "make", "names", "on_change", "settings", "ticket_secret")

    def __init__(self, config: Config, names: Sequence[str], *, ticket_secret: bytes, make: MakeTls) -> None:
        self.config = config
        self.make = make
        self.names = names
        self.ticket_secret = ticket_secret
        self.settings = DynamicSettings()
        # Called when settings or listeners may have changed. TlsConnections sets it.
        self.on_change: Callable[[], None] | None = None

    def use_names(self, names: Sequence[str]) -> None:
        """Set the names of the open listeners, by index, after listeners were added or removed."""
        self.names = names
        if self.on_change is not None:
            self.on_change()

    def apply_settings(self, settings: DynamicSettings) -> None:
        """Use changed settings of the broker for the TLS contexts of new connections."""
        self.settings = settings
        if self.on_change is not None:
            self.on_change()


MakeTls = Callable[[ConnectionTable, ProcessorState, Clock, TlsListeners], "TlsConnections"]
