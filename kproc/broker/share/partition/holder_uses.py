"""HolderUses: the share partitions of a Handler that each share session uses."""

from __future__ import annotations

from collections import Counter

from kproc.broker.share.partition.messages import ShareHolder
from kproc.broker.share.state.messages import SharePartitionKey


class HolderUses:
    """For each session, the share partitions from which it has acquired records or tried to."""

    __slots__ = ("_counts", "_used")

    def __init__(self) -> None:
        self._used: dict[ShareHolder, dict[SharePartitionKey, None]] = {}
        self._counts: Counter[SharePartitionKey] = Counter()  # The number of sessions that use each.

    def __len__(self) -> int:
        """Return the number of sessions that use share partitions."""
        return len(self._used)

    def add(self, holder: ShareHolder, key: SharePartitionKey) -> None:
        """Record that a session uses a share partition."""
        used = self._used.setdefault(holder, {})
        if key not in used:
            used[key] = None
            self._counts[key] += 1

    def pop(self, holder: ShareHolder) -> dict[SharePartitionKey, None]:
        """Remove the uses of a session. Return the share partitions that it has used."""
        used = self._used.pop(holder, {})
        for key in used:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        return used

    def pop_home(self, handler: int) -> dict[SharePartitionKey, None]:
        """Remove the uses of all sessions of one home. Return the share partitions that they have used."""
        keys: dict[SharePartitionKey, None] = {}
        for holder in [each for each in self._used if each.home == handler]:
            keys |= self.pop(holder)
        return keys

    def count(self, holder: ShareHolder) -> int:
        """Return the number of share partitions that a session uses."""
        return len(self._used.get(holder, ()))

    def is_used(self, key: SharePartitionKey) -> bool:
        """Return True if a session uses the share partition."""
        return key in self._counts
