"""ActivityWheel: connections by the second in which they were last active, as far as anybody has looked.

Kafka keeps an access-ordered map and touches it at every read and write. Here a read or write only stores the time
in the connection; the wheel is put right when somebody asks for the idle ones, and then only the seconds that could
hold them are looked at. Each look moves a connection forward to where it belongs, so that it is seen about once per
idle time and not once per check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kproc.net.connection import Connection

_SHIFT: Final = 30  # 1.07 s, and no division.


class ActivityWheel:
    """All connections of one Processor. Times are `last_active_ns` of the connections themselves."""

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
        """Connections without a byte since `before_ns`."""
        idle: list[Connection] = []
        for members in self._refreshed(before_ns >> _SHIFT):
            idle += [each for each in members if each.last_active_ns < before_ns]
        return idle

    def least_recent(self, count: int, may_be: Callable[[Connection], bool]) -> list[Connection]:
        """So many that have been idle longest, of those that `may_be` accepts."""
        found: list[Connection] = []
        for members in self._refreshed(None):
            chosen = sorted(filter(may_be, members), key=lambda each: each.last_active_ns)
            found += chosen[: count - len(found)]
            if len(found) == count:
                break
        return found

    def _refreshed(self, last_slot: int | None) -> Iterator[set[Connection]]:
        """The slots in order, up to `last_slot`, each with only those that really belong there."""
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
