"""CountReporter: a Processor tells the Acceptors which connections it has and which sockets it has registered.

Acceptors decide about limits, connections end in Processors, and either may die. So every Processor sends every
Acceptor its changes per (listener, address) over their handoff socket. An Acceptor keeps one table per Processor and
drops it with the socket. Counts are therefore right after any death, and after a connection migrated: one Processor
reports it as closed, the other as opened.

An acknowledgement travels in one message with the change that it causes. The Acceptor counts a socket itself until
then, so a connection is never counted twice and never missing.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final

from kproc.broker.role.handoff import CHANGES_MAX, CREDITS, Key, Report
from kproc.broker.transport.agent import AgentId

logger = logging.getLogger(__name__)

_NOT_NOW: Final = (BlockingIOError, InterruptedError)


class _AcceptorSocket:
    """The socket to one Acceptor, and the acknowledgements and changes of counts that have not been sent over it."""

    __slots__ = ("answers", "changes", "is_new", "peer", "sock")

    def __init__(self, peer: AgentId, sock: socket.socket, changes: dict[Key, int]) -> None:
        self.peer = peer
        self.sock = sock
        self.changes = changes
        self.answers: list[int] = []
        self.is_new = True


class CountReporter:
    """Reports a Processor's connections and registered sockets to the Acceptors.

    One per Processor, called by its thread.

    `has_unsent` says whether `flush` has anything to send. `on_unsent` is called at every change.
    """

    def __init__(self, on_unsent: Callable[[], None] = lambda: None) -> None:
        self._totals: dict[Key, int] = {}
        self._readers: dict[socket.socket, _AcceptorSocket] = {}
        self._on_unsent = on_unsent
        self.has_unsent = False

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """Report every open connection to an Acceptor that has started. The caller owns the socket."""
        self._readers[sock] = _AcceptorSocket(peer, sock, dict(self._totals))
        self._mark_unsent()

    def detach(self, peer: AgentId, sock: socket.socket | None = None) -> None:
        """Remove the socket `sock`, or every socket of `peer`, which has ended. A successor may be attached already."""
        for reader in [each for each in self._readers.values() if each.peer == peer]:
            if sock is None or reader.sock is sock:
                del self._readers[reader.sock]

    def opened(self, listener: int, address: bytes) -> None:
        """Count a connection that was registered here."""
        self._change((address, listener), 1)

    def closed(self, listener: int, address: bytes) -> None:
        """Uncount a connection that was closed, or has migrated to another Processor."""
        self._change((address, listener), -1)

    def acknowledge(self, sock: socket.socket, answer: int) -> None:
        """Queue the acknowledgement of a client's socket for the Acceptor at `sock`. The next flush sends it.

        answer: the serial of the client's socket, with the bit REFUSED if this Processor has not kept the socket.
        """
        reader = self._readers.get(sock)
        # Without an entry for `sock` the Acceptor has ended. This Processor keeps the connection and sends nothing.
        if reader is not None:
            reader.answers.append(answer)
            self._mark_unsent()

    @property
    def totals(self) -> dict[Key, int]:
        """Return this Processor's numbers of open connections by (address, listener). Callers must not change them."""
        return self._totals

    def flush(self) -> None:
        """Send the unsent changes, as far as the sockets accept them. Called at most once per duty cycle."""
        if not self.has_unsent:
            return
        self.has_unsent = False
        for reader in list(self._readers.values()):
            try:
                self._send(reader)
            except _NOT_NOW:
                # The socket is full, because the Acceptor is slow or stopped. Further changes are added to the waiting
                # ones.
                self.has_unsent = True
            except OSError as error:
                # The Acceptor has ended. Its successor attaches a new socket and gets all counts.
                logger.info(
                    "cannot send the numbers of connections to %s, its successor will get them: %s",
                    reader.peer,
                    error,
                )
                del self._readers[reader.sock]

    def _change(self, key: Key, change: int) -> None:
        _add(self._totals, key, change)
        for reader in self._readers.values():
            _add(reader.changes, key, change)
        self._mark_unsent()

    def _mark_unsent(self) -> None:
        self.has_unsent = True
        self._on_unsent()

    def _send(self, reader: _AcceptorSocket) -> None:
        changes, answers = reader.changes, reader.answers
        pending = sorted(changes.items(), key=_by_change, reverse=True)
        start = 0
        # Send the first report even if it is empty, because the Acceptor waits for it (ConnectionCounts.expect).
        while changes or answers or reader.is_new:
            some = pending[start : start + CHANGES_MAX]
            said = answers[:CREDITS]
            reader.sock.send(Report(said, some, has_more=len(some) < len(changes)).pack())
            reader.is_new = False
            del answers[: len(said)]
            for key, _ in some:
                del changes[key]
            start += len(some)


def _by_change(entry: tuple[Key, int]) -> int:
    return entry[1]


def _add(counts: dict[Key, int], key: Key, change: int) -> None:
    """Add `change` to the count of `key`. Remove a count of 0, because addresses that never return would pile up."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
