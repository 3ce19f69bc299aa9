"""ShareCounters: counts of an owner of share partitions for the metrics, until the Handler stores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType

# The acknowledgement types with a metric, as in Kafka. Renewals finish nothing, and gaps are no records.
_COUNTED: Final = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)


class ShareCounters:
    """Counts of records since the last `drain`."""

    __slots__ = ("_by_type", "dead_letters", "expired", "lost_letters")

    def __init__(self) -> None:
        self._by_type = [0] * len(AcknowledgeType)
        self.expired = 0  # Records whose acquisition lock has ended.
        self.dead_letters = 0  # Records that were written as dead letters.
        self.lost_letters = 0  # Records that were archived because no dead letter could be written.

    def add_acknowledgements(self, batches: Sequence[AcknowledgeBatch]) -> None:
        """Count the records of acknowledgements, which the caller has validated."""
        for batch in batches:
            types = batch.types
            if len(types) == 1:
                self._by_type[types[0]] += batch.last - batch.first + 1
            else:
                for each in types:
                    self._by_type[each] += 1

    def drain(self) -> tuple[int, int, int, int, int, int]:
        """Return and reset (accepted, released, rejected, expired, dead letters, lost dead letters)."""
        accepted, released, rejected = (self._by_type[each] for each in _COUNTED)
        counts = accepted, released, rejected, self.expired, self.dead_letters, self.lost_letters
        self._by_type = [0] * len(AcknowledgeType)
        self.expired = self.dead_letters = self.lost_letters = 0
        return counts
