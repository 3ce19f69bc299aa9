"""Scrapes: the metrics listener of a role, with what it gathers from the Handlers.

The controller has it. It must not be the role that compacts, nor one that serves clients: /health would fail with the
load that it is to report, and a service manager would restart the broker.
"""

from __future__ import annotations

from kproc.broker.observe.broker_figures import BrokerFigures
from kproc.broker.observe.metrics_http import MetricsResponder


class Scrapes:
    """Driven by the duty cycle of the role that owns it."""

    def __init__(self, responder: MetricsResponder, figures: BrokerFigures) -> None:
        self._responder = responder
        self._figures = figures

    def fileno(self) -> int:
        """Readable when `work` has something to do."""
        return self._responder.fileno()

    def work(self) -> int:
        """Serve what is ready; return how much that was."""
        return self._responder.work() + self._figures.work()

    def due_ms(self, now_ns: int) -> int:
        """Milliseconds until `work` must be called again if no Handler answers."""
        return self._figures.due_ms(now_ns)

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._responder.close()
