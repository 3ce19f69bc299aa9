"""A Processor's reports to the Acceptors: which connections it holds, and which sockets it took.

Connection limits are decided by Acceptors, connections end in Processors, and any of them may die. So every
Processor tells every Acceptor what it opened and closed, as changes per (listener, address) over their hand-over
pair; an Acceptor keeps one table per pair and drops it with the pair. Nobody has to be asked, and counts are right
after any death and after any move of a connection (one Processor closed it, another opened it).

Acknowledgements go through here too, in one message with the changes: an Acceptor counts a socket itself until its
acknowledgement, so a connection is never uncounted in between, nor counted twice.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

from kproc.net.handoff import CHANGES_MAX, CREDITS, Key, Report
from kproc.transport.agent import AgentId

logger = logging.getLogger(__name__)

_NOT_NOW: Final = (BlockingIOError, InterruptedError)


class _Reader:
    """One Acceptor: its socket, and what it has not been told."""

    __slots__ = ("answers", "changes", "is_new", "peer", "sock")

    def __init__(self, peer: AgentId, sock: socket.socket, changes: dict[Key, int]) -> None:
        self.peer = peer
        self.sock = sock
        self.changes = changes
        self.answers: list[int] = []
        self.is_new = True


class CountReporter:
    """One per Processor, called by the thread that runs it.

    `has_unsent`, which is asked at every duty cycle: an Acceptor has not been told of everything; `flush` tells it.
    """

    def __init__(self) -> None:
        self._totals: dict[Key, int] = {}
        self._readers: dict[socket.socket, _Reader] = {}
        self.has_unsent = False

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """An Acceptor is there (again): it is told of everything that is open. The socket stays the caller's."""
        self._readers[sock] = _Reader(peer, sock, dict(self._totals))
        self.has_unsent = True

    def detach(self, peer: AgentId, sock: socket.socket | None = None) -> None:
        """The pair is gone: `sock`, or every one with `peer`. Its successor may be attached already."""
        for reader in [each for each in self._readers.values() if each.peer == peer]:
            if sock is None or reader.sock is sock:
                del self._readers[reader.sock]

    def opened(self, listener: int, address: bytes) -> None:
        """A connection was registered."""
        self._change((address, listener), 1)

    def closed(self, listener: int, address: bytes) -> None:
        """A connection that `opened` counted is closed, or lives in another Processor now."""
        self._change((address, listener), -1)

    def acknowledge(self, sock: socket.socket, answer: int) -> None:
        """Answer a hand-over that came by `sock`: the serial, perhaps with REFUSED. Leaves at the next flush."""
        reader = self._readers.get(sock)
        if reader is not None:  # Else that Acceptor ended; a connection that it gave us is ours all the same.
            reader.answers.append(answer)
            self.has_unsent = True

    @property
    def totals(self) -> dict[Key, int]:
        """Open connections by (address, listener); to look at, not to write."""
        return self._totals

    def flush(self) -> None:
        """Send what there is, as far as the sockets take it. Once per duty cycle; free when nothing happened."""
        if not self.has_unsent:
            return
        self.has_unsent = False
        for reader in list(self._readers.values()):
            try:
                self._send(reader)
            except _NOT_NOW:
                self.has_unsent = True  # It is slow or stopped. Changes coalesce meanwhile.
            except OSError as error:
                logger.info("%s cannot be told of connections: %s", reader.peer, error)
                del self._readers[reader.sock]

    def _change(self, key: Key, change: int) -> None:
        _add(self._totals, key, change)
        for reader in self._readers.values():
            _add(reader.changes, key, change)
        self.has_unsent = True

    def _send(self, reader: _Reader) -> None:
        changes, answers = reader.changes, reader.answers
        # What was opened goes first, with the answers about it.
        pending = sorted(changes.items(), key=_by_change, reverse=True)
        start = 0
        while changes or answers or reader.is_new:  # The first report comes in any case: "these are all".
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
    """Add, and keep no entry for nothing: clients' addresses come and go without end."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
