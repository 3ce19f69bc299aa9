"""LeaderEpochs: the leader epochs of a log with their first offsets (KIP-101).

No I/O: log_append.py and log_start.py write the epochs to leader-epoch-checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kproc.broker.storage.format import NO_EPOCH, NO_OFFSET


class LeaderEpochs:
    """Entries of (epoch, first offset). Epochs and offsets increase strictly."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def latest(self) -> int:
        """The newest epoch that has an entry, or -1 without entries."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def first_offset(self) -> int | None:
        """The offset where the oldest entry begins, or None without entries."""
        return self._starts[0] if self._starts else None

    def entries(self) -> list[tuple[int, int]]:
        """Return all entries, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start: int) -> bool:
        """Add an epoch that begins at an offset. Return False if the epoch is the latest already.

        As in Kafka, an epoch that wrote nothing is dropped: entries that are not strictly before the new one, by epoch
        and by offset, are removed.
        """
        if epoch == self.latest:
            return False
        # Remove the entry of a leader that wrote nothing, because it has the same start as its successor's.
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def assign_newer(self, epoch: int | None, start: int) -> None:
        """Add an epoch that was found in a batch header, if it is newer than the latest one."""
        if epoch is not None and epoch > self.latest:
            self.assign(epoch, start)

    def truncate_from(self, end: int) -> bool:
        """Remove epochs that begin at or after the log's end. Return True if an epoch was removed."""
        before = len(self._epochs)
        while self._starts and self._starts[-1] >= end:
            self._epochs.pop()
            self._starts.pop()
        return len(self._epochs) != before

    def truncate_to(self, start: int) -> bool:
        """Remove epochs that end at or before the log's start. The epoch of the start then begins there.

        Returns True if an entry has changed.
        """
        keep = bisect_right(self._starts, start) - 1
        # No entry begins before the start, so none has to change.
        if keep < 0 or (keep == 0 and self._starts[0] == start):
            return False
        del self._epochs[:keep], self._starts[:keep]
        self._starts[0] = start
        return True

    def find_end_offset(self, epoch: int, *, log_end: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch <= `epoch`, or (-1, -1) for a newer one than every entry.

        These are the rules of OffsetsForLeaderEpoch (KIP-279). An epoch ends where the next one begins. An epoch older
        than every entry is returned itself, with the offset where the oldest entry begins.
        """
        # KIP-279: for an epoch that this log has never had, the client must not truncate by a guess.
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        # The newest epoch is still being written, so it ends where the log ends.
        if epoch == self._epochs[-1]:
            return epoch, log_end
        after = bisect_right(self._epochs, epoch)
        return (self._epochs[after - 1] if after else epoch), self._starts[after]

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that wrote the record at `offset`, or -1 if the offset is before the first known epoch."""
        number = bisect_right(self._starts, offset) - 1
        return self._epochs[number] if number >= 0 else NO_EPOCH
