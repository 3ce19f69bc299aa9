"""A rolling check of one topic: what was acknowledged against what each follower sees, in bounded memory.

`tests/support/checker.py` compares whole logs at the end, which an hour's worth is too much for. Values are the same
`<producer>:<number>`, then a blank and padding. A follower must see every acknowledged value at its offset, offsets
without a gap, and the numbers of one producer growing; an acknowledged value that it has not seen after OVERDUE_SECONDS
is lost.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

# Twice what a client may take to reconnect, to find a role's successor and to catch up on a busy host.
OVERDUE_SECONDS = 90.0
SEEN_MAX = (
    20_000  # Values of a partition that are kept while their acknowledgement is under way: minutes of it.
)

Place = tuple[int, bytes]


@dataclass
class _Follower:
    """What one consumer has seen."""

    next_offset: dict[int, int] = field(default_factory=dict)
    numbers: dict[Place, int] = field(default_factory=dict)  # (partition, producer) -> the last number.
    seen: dict[Place, int] = field(
        default_factory=dict
    )  # (partition, value) -> offset, not acknowledged yet.
    missing: dict[Place, tuple[int | None, float]] = field(
        default_factory=dict
    )  # Acknowledged, not seen yet.


class Ledger:
    """Acknowledgements from any number of producers, views of a fixed number of followers. Any thread calls it."""

    def __init__(self, followers: list[str]) -> None:
        self._followers = {name: _Follower() for name in followers}
        self._lock = threading.Lock()
        self.problems: list[str] = []
        self.acknowledged_count = self.seen_count = 0

    def acknowledged(self, partition: int, offset: int | None, value: bytes) -> None:
        """The broker has answered for this value; tools that do not tell the offset pass None."""
        place = partition, value.split(b" ")[0]
        with self._lock:
            self.acknowledged_count += 1
            for name, each in self._followers.items():
                found = each.seen.pop(place, None)
                if found is None:
                    each.missing[place] = offset, time.monotonic()
                else:
                    self._compare(name, place, offset, found)

    def seen(self, name: str, partition: int, offset: int, value: bytes) -> None:
        """A follower has got this record."""
        place = partition, value.split(b" ")[0]
        with self._lock:
            self.seen_count += 1
            each = self._followers[name]
            expected = each.next_offset.get(partition, offset)
            if offset != expected:
                self.problems.append(f"gap: {name} got {partition}/{offset} where {expected} was due")
            each.next_offset[partition] = offset + 1
            self._check_order(name, each, place, offset)
            wanted = each.missing.pop(place, None)
            if wanted is None:
                each.seen[place] = offset
                while len(each.seen) > SEEN_MAX:
                    del each.seen[next(iter(each.seen))]
            else:
                self._compare(name, place, wanted[0], offset)

    def _check_order(self, name: str, each: _Follower, place: Place, offset: int) -> None:
        partition, value = place
        producer, _, number_text = value.partition(b":")
        number, before = int(number_text), each.numbers.get((partition, producer), -1)
        if number <= before:
            kind = "duplicate" if number == before else "reordered"
            self.problems.append(
                f"{kind}: {name} got {value!r} at {partition}/{offset} after number {before}"
            )
        each.numbers[partition, producer] = max(before, number)

    def _compare(self, name: str, place: Place, wanted: int | None, found: int) -> None:
        if wanted not in (None, found):
            self.problems.append(f"moved: {place} was acknowledged at {wanted}, {name} got it at {found}")

    def floor(self, partition: int) -> int:
        """The offset below which every follower has read."""
        with self._lock:
            return min(each.next_offset.get(partition, 0) for each in self._followers.values())

    def overdue(self, seconds: float = OVERDUE_SECONDS) -> list[str]:
        """What was acknowledged so long ago and has not been seen."""
        now = time.monotonic()
        with self._lock:
            return [
                f"lost: {name} has not got {value!r}, acknowledged at {partition}/{offset} {now - at:.0f} s ago"
                for name, each in self._followers.items()
                for (partition, value), (offset, at) in each.missing.items()
                if now - at >= seconds
            ]
