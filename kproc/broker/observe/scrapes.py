"""Scrapes: the metrics listener of a role, and the figures that it collects from the Handlers.

The controller runs it. Neither the cleaner, which compacts, nor a role that serves clients may run it: under load
/health would fail, and a service manager would restart the broker.
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
        """Return a descriptor that is readable when `work` has work."""
        return self._responder.fileno()

    def work(self) -> int:
        """Handle the events that are ready. Return the amount of work."""
        return self._responder.work() + self._figures.work()

    def due_ms(self, now_ns: int) -> int:
        """Return the milliseconds until `work` must be called again if no Handler answers."""
        return self._figures.due_ms(now_ns)

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._responder.close()
