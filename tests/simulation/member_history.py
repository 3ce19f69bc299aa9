"""MemberHistory: judges what a coordinator assigns to the members of one group (KIP-848, KIP-1071).

A partition or task has one owner at a time, unless the former owner was not heard for a session. Epochs never go back.
When no fault is left, every part has one owner, all members have one epoch, and nobody has more than his share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Part = tuple[bytes, int]  # The id of a topic or subtopology, and a partition.


class MemberHistory:
    """The members of one group, by their clients' names."""

    def __init__(self, violate: Callable[[str], None], session_ns: int) -> None:
        self._violate = violate
        self.session_ns = session_ns
        self.owners: dict[Part, str] = {}
        self._heard_ns: dict[str, int] = {}  # When the last heartbeat that was answered was sent.
        # The epoch, or 0 while the member has something to do, and what it owns.
        self.members: dict[str, tuple[int, set[Part]]] = {}
        self.epoch = 0  # The greatest that any member was told.

    def answered(self, name: str, epoch: int, *, sent_ns: int, epoch_before: int) -> None:
        """A heartbeat was answered. `epoch_before`: what the member or, if it joined, anybody knew when it was sent."""
        self._heard_ns[name] = sent_ns
        if epoch < epoch_before:
            self._violate(f"{name}: the epoch went back from {epoch_before} to {epoch}")
        self.epoch = max(self.epoch, epoch)

    def own(self, name: str, before: set[Part], after: set[Part], *, now_ns: int, is_strict: bool) -> None:
        """A member owns other parts than before."""
        for part in before - after:
            if self.owners.get(part) == name:
                del self.owners[part]
        for part in after - before:
            other = self.owners.get(part)
            if other is not None and now_ns - self._heard_ns[other] < self.session_ns and is_strict:
                self._violate(f"{name}: {part} is owned by {other}, too")
            self.owners[part] = name

    def is_settled(self, parts: Iterable[Part]) -> bool:
        """Return True if the members have these parts in equal shares, at one epoch."""
        epochs = {epoch for epoch, _ in self.members.values()}
        owned = [part for _, own in self.members.values() for part in own]
        sizes = [len(own) for _, own in self.members.values()]
        return (
            epochs != {0}
            and len(epochs) == 1
            and sorted(owned) == sorted(parts)
            and max(sizes) - min(sizes) <= 1
        )
