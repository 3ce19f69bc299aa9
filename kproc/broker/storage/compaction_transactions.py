"""CleanedTransactions: the transactions in a log during compaction, as Kafka's CleanedTransactionMetadata.

Records of aborted transactions are removed. A marker stays as long as the log has records of its transaction, and
after that until its delete horizon: consumers that have read the transaction must also see how it ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from kproc.broker.storage.format import AbortedTransaction
from kproc.wire.batch_header import (
    ATTRIBUTES,
    PRODUCER_ID,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import TRANSACTIONAL


class CleanedTransactions:
    """Decides which transactional batches and markers are removed. A pass calls it for each of them, in log order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = [(entry.first_offset, entry) for entry in aborted]
        heapq.heapify(self._coming)
        # Aborted transactions that are open at the present offset, by producer id.
        self._aborted: dict[int, AbortedTransaction] = {}
        # Producers in `_aborted` with at least one batch in the log. Their markers must stay.
        self._seen: set[int] = set()
        self._committed: set[int] = set()

    def on_batch(self, header: Header) -> bool:
        """Return True if a data batch belongs to an aborted transaction. Compaction then removes its records."""
        if not header[ATTRIBUTES] & TRANSACTIONAL:
            return False
        self._advance(last_offset_of(header))
        producer_id = header[PRODUCER_ID]
        if producer_id in self._aborted:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def on_marker(self, header: Header, is_abort: bool | None) -> tuple[bool, AbortedTransaction | None]:
        """Return (True if the marker may be removed, the row that the new transaction index must keep or None).

        `is_abort` is None for an empty control batch, whose marker an earlier compaction removed.
        """
        self._advance(last_offset_of(header))
        producer_id = header[PRODUCER_ID]
        # An earlier compaction has removed the marker and the records of its transaction.
        if is_abort is None:
            return True, None
        if not is_abort:
            found = producer_id in self._committed
            self._committed.discard(producer_id)
            # Keep the commit marker as long as the log has a record of its transaction: a reader must learn how the
            # transaction ended.
            return not found, None
        entry = self._aborted.pop(producer_id, None)
        if entry is None or producer_id not in self._seen:
            return True, None
        self._seen.discard(producer_id)
        return False, entry

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            entry = heapq.heappop(self._coming)[1]
            self._aborted.setdefault(entry.producer_id, entry)
