"""ActivityWheel: finds idle connections, at no cost to a read or a write.

Kafka moves a connection to the end of an access-ordered map at every read and write. In kproc a read or write only
stores the time in the connection. The wheel has a slot for each second; a connection stays in the slot of its last
check until the Processor searches idle connections. The search checks only the slots that can hold idle ones, and moves
each connection in them to the slot of its real last activity. A connection is checked about once per idle time, not
once per request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kproc.broker.processor.connection import Connection

# A slot is 2**30 ns, which is 1.07 s, so that a shift replaces a division.
_SHIFT: Final = 30


class ActivityWheel:
    """All connections of one Processor by the second of their last activity, to find idle ones quickly."""

    def __init__(self) -> None:
        self._slots: dict[int, set[Connection]] = {}

    def add(self, connection: Connection) -> None:
        slot = connection.last_active_ns >> _SHIFT
        connection.activity_slot = slot
        found = self._slots.get(slot)
        if found is None:
            self._slots[slot] = {connection}
        else:
            found.add(connection)

    def discard(self, connection: Connection) -> None:
        slot = connection.activity_slot
        found = self._slots[slot]
        found.remove(connection)
        if not found:
            del self._slots[slot]

    def idle_since(self, before_ns: int) -> list[Connection]:
        """Return the connections that neither sent nor received a byte since `before_ns`."""
        idle: list[Connection] = []
        for members in self._refreshed(before_ns >> _SHIFT):
            idle += [each for each in members if each.last_active_ns < before_ns]
        return idle

    def least_recent(self, count: int, may_be: Callable[[Connection], bool]) -> list[Connection]:
        """Return up to `count` connections that have been idle longest, among those for which `may_be` is true."""
        found: list[Connection] = []
        for members in self._refreshed(None):
            chosen = sorted(filter(may_be, members), key=lambda each: each.last_active_ns)
            found += chosen[: count - len(found)]
            if len(found) == count:
                break
        return found

    def _refreshed(self, last_slot: int | None) -> Iterator[set[Connection]]:
        """Yield the connections of each slot up to `last_slot`, the oldest slot first. None: of all slots.

        First move each connection with a later activity to the slot of that activity.
        """
        previous = -1
        while True:
            slot = min((each for each in self._slots if each > previous), default=None)
            if slot is None or (last_slot is not None and slot > last_slot):
                return
            for connection in [each for each in self._slots[slot] if each.last_active_ns >> _SHIFT != slot]:
                self.discard(connection)
                self.add(connection)
            previous = slot
            if slot in self._slots:
                yield self._slots[slot]
