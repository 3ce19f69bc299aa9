"""ClientBooks and ProbeBooks: record when a connection opens, migrates and closes.

The records are metrics, counts by listener, and reports to the Acceptors. The broker's own readiness probe has separate
books, because it came through no listener, counts for no limit, and its requests are not a client's.
"""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.metrics.requests import PROCESSORS_PART
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_ledger import ConnectionLedger
from kproc.broker.processor.count_reporter import CountReporter


class ClientBooks:
    """The records of one Processor's clients. The Processor stores them to shared memory at its tick."""

    __slots__ = ("_values", "ledger", "reporter")

    is_timed = True

    def __init__(self, metrics: MetricsRow, processor: int, on_unsent: Callable[[], None]) -> None:
        self._values = metrics.values
        self.ledger = ConnectionLedger(metrics.slab.counts(PROCESSORS_PART + processor))
        self.reporter = CountReporter(on_unsent)

    def opened(self, connection: Connection) -> None:
        self.reporter.opened(connection.listener, connection.origin.address)
        self.ledger.opened(connection.listener)
        self._values[SLOT["connections_accepted"]] += 1

    def moved_in(self, connection: Connection) -> None:
        self.reporter.opened(connection.listener, connection.origin.address)

    def is_here(self, connection: Connection) -> None:
        self.ledger.is_here(connection.listener)

    def is_gone(self, connection: Connection) -> None:
        self.ledger.is_gone(connection.listener)

    def moved_away(self, connection: Connection) -> None:
        self.reporter.closed(connection.listener, connection.origin.address)
        self._values[SLOT["connections_moved"]] += 1

    def closed(self, connection: Connection) -> None:
        self.reporter.closed(connection.listener, connection.origin.address)
        self.ledger.closed(connection.listener)
        self._values[SLOT["connections_closed"]] += 1


class ProbeBooks:
    """The records of the broker's own connection: when it closes, its requests are subtracted from the metrics."""

    __slots__ = ("_values",)

    is_timed = False

    def __init__(self, metrics: MetricsRow) -> None:
        self._values = metrics.values

    def opened(self, connection: Connection) -> None:
        pass

    moved_in = is_here = is_gone = moved_away = opened

    def closed(self, connection: Connection) -> None:
        self._values[SLOT["requests"]] -= connection.next_sequence
        self._values[SLOT["responses"]] -= connection.next_send
