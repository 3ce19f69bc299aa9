"""ClientCounters and ProbeCounters: count connections that open, migrate and close.

They count in metrics, by listener, and in reports to the Acceptors. The broker's own readiness probe has separate
counters, because it came through no listener, counts for no limit, and its requests are not a client's.
"""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.metrics.requests import CLOSED, OPEN, OPENED, PROCESSORS_PART, Counts
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.count_reporter import CountReporter


class ListenerCounts:
    """Counts of open, opened and closed connections by listener, in shared memory. Stored at the Processor's tick.

    A connection counts as opened once, at the Processor that got it from an Acceptor, and as closed once, at the
    Processor where it ended, even if it migrated in between. Connections that died with a Processor are counted as
    closed by its successor, which reads in the slab how many were open.
    """

    __slots__ = ("_counts", "_open")

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._open: dict[int, int] = {}
        # Count the connections of a Processor that died as closed. The slab still has their number as open.
        for listener in counts.keys_of(OPEN):
            counts.add(CLOSED, listener, count=counts.get(OPEN, listener))
            self._open[listener] = 0

    def opened(self, listener: int) -> None:
        self._counts.add(OPENED, listener)

    def closed(self, listener: int) -> None:
        self._counts.add(CLOSED, listener)

    def is_here(self, listener: int) -> None:
        """Count a connection that was registered, or migrated here."""
        self._open[listener] = self._open.get(listener, 0) + 1

    def is_gone(self, listener: int) -> None:
        """Count a connection that was closed, or migrated away."""
        self._open[listener] -= 1

    def store(self) -> None:
        for listener, count in self._open.items():
            self._counts.set(OPEN, listener, count)
        self._counts.store()


class ClientCounters:
    """Counts the connections of clients in the metrics, by listener, and in the reports to the Acceptors.

    One per Processor.
    """

    __slots__ = ("_values", "listeners", "reporter")

    is_timed = True  # The times of the requests are metrics.

    def __init__(self, metrics: MetricsRow, processor: int, on_unsent: Callable[[], None]) -> None:
        self._values = metrics.values
        self.listeners = ListenerCounts(metrics.slab.counts(PROCESSORS_PART + processor))
        self.reporter = CountReporter(on_unsent)

    def opened(self, connection: Connection) -> None:
        """Count a new connection. An Acceptor passed it to this Processor, and no other Processor had it before."""
        self.reporter.opened(connection.listener, connection.origin.address)
        self.listeners.opened(connection.listener)
        self._values[SLOT["connections_accepted"]] += 1

    def moved_in(self, connection: Connection) -> None:
        """Report to the Acceptors a connection that migrated here. `is_here` counts it in the metrics."""
        self.reporter.opened(connection.listener, connection.origin.address)

    def is_here(self, connection: Connection) -> None:
        """Count an open connection of a listener: it is new, migrated here, or came back from a failed migration."""
        self.listeners.is_here(connection.listener)

    def is_gone(self, connection: Connection) -> None:
        """Count a connection that left this Processor's tables."""
        self.listeners.is_gone(connection.listener)

    def moved_away(self, connection: Connection) -> None:
        """Count a connection that migrated to another Processor."""
        self.reporter.closed(connection.listener, connection.origin.address)
        self._values[SLOT["connections_moved"]] += 1

    def closed(self, connection: Connection) -> None:
        """Count a connection that was closed."""
        self.reporter.closed(connection.listener, connection.origin.address)
        self.listeners.closed(connection.listener)
        self._values[SLOT["connections_closed"]] += 1


class ProbeCounters:
    """The counters of the broker's own connection: when it closes, its requests are subtracted from the metrics."""

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


# Each connection has one of these, which is called when the connection opens, migrates or closes.
ConnectionCounters = ClientCounters | ProbeCounters
