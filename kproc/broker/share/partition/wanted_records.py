"""WantedRecords: the choice of the records that a member acquires.

A member acquires whole batches of the log, or exactly as many records as it requests (KIP-1206).

Records that were delivered before come first. A record that fails its consumer again and again must not use up the
deliveries of its neighbours. So records with half of the allowed deliveries are delivered without other records, in
ranges that get smaller with every delivery. At the last delivery a record is alone. Kafka does so since 4.3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from kproc.broker.share.partition.in_flight import ACQUIRED, AVAILABLE, WINDOW_MAX, InFlightRecords, Rules
from kproc.broker.share.partition.messages import AcquiredRange, ShareHolder
from kproc.broker.share.partition.runs import Run

Batches = Sequence[tuple[int, int]]  # (first, last offset) of batches of the log, ascending.


class WantedRecords(msgspec.Struct):
    """One member's request for records, with the limits that are left.

    `records_left` and `batch_size` are as in AcquireParts (messages.py).
    """

    holder: ShareHolder
    records_left: int
    batch_size: int
    deadline_ms: int
    is_exact: bool = False

    def acquire(
        self, records: InFlightRecords, fetched_from: int, batches: Batches, aborted: Batches = ()
    ) -> list[AcquiredRange]:
        """Acquire records of `batches`, which were read from the log at the offset `fetched_from`.

        aborted: the batches that belong to aborted transactions and must not be delivered.
        """
        # The log has no records below the first batch: compaction has removed them after they were delivered and
        # released. Archive them.
        records.archive(fetched_from, batches[0][0] - 1, AVAILABLE)
        lasts = [last for _, last in batches]
        acquired: list[AcquiredRange] = []
        if self._acquire_again(records, lasts, acquired):
            self._acquire_next(records, batches, lasts, acquired)
        if acquired:
            records.join(acquired[0].first, acquired[-1].last)
        for first, last in aborted:
            records.archive(first, last, ACQUIRED)
            acquired = _without(acquired, first, last)
        return acquired

    def _acquire_again(
        self, records: InFlightRecords, lasts: list[int], acquired: list[AcquiredRange]
    ) -> bool:
        """Acquire records that were delivered before.

        Return True if records that were never delivered may be acquired for the same request.
        """
        while self.records_left > 0:
            run = records.first_available()
            if run is None or run.first > lasts[-1]:
                return True
            size_max = _throttled_size(run, records.rules)
            # A crash of a consumer counts as a delivery of every record that it holds. So return the records
            # that were acquired already, and deliver these alone with the next request.
            if size_max and acquired:
                return False
            last = min(run.last, self._last_offset(run.first, lasts))
            if size_max:
                last = min(last, run.first + size_max - 1)
            again = records.acquire_again(run, last, self.holder, self.deadline_ms)
            self._add(again.first, again.last, again.delivery_count, acquired)
            if size_max:
                return False
        return False

    def _acquire_next(
        self, records: InFlightRecords, batches: Batches, lasts: list[int], acquired: list[AcquiredRange]
    ) -> None:
        """Acquire records that were never delivered, up to the limit of records in flight."""
        at = bisect_left(lasts, records.end_offset)
        if at == len(lasts):
            return
        records.skip_to(batches[at][0])
        locks_left = records.rules.size_max - records.size
        # share.partition.max.record.locks is used up (KIP-932). Without a limit, slow consumers would let the
        # window grow to the whole log.
        if locks_left <= 0:
            return
        self.records_left = min(self.records_left, locks_left)
        first = records.end_offset
        end = min(self._last_offset(first, lasts), records.start_offset + WINDOW_MAX - 1)
        while first <= end:
            last = end
            if self.batch_size and not self.is_exact:
                at = bisect_left(lasts, first + self.batch_size - 1)
                last = min(end, lasts[at]) if at < len(lasts) else end
            records.acquire_next(last, self.holder, self.deadline_ms)
            self._add(first, last, 1, acquired)
            first = last + 1

    def _last_offset(self, first: int, lasts: list[int]) -> int:
        """Return the last offset of records from `first` on that are acquired together."""
        last = first + self.records_left - 1
        if last >= lasts[-1]:
            return lasts[-1]
        # KIP-1206: with the mode record_limit the member gets exactly this many records. Otherwise whole
        # batches are acquired, because they are sent whole anyway.
        return last if self.is_exact else lasts[bisect_left(lasts, last)]

    def _add(self, first: int, last: int, delivery_count: int, acquired: list[AcquiredRange]) -> None:
        self.records_left -= last - first + 1
        acquired.append(AcquiredRange(first, last, delivery_count))


def _throttled_size(run: Run, rules: Rules) -> int:
    """Return how many records of a run may be delivered together after its earlier deliveries. 0: no limit."""
    limit = max(2, -(-rules.delivery_count_max // 2))
    if run.delivery_count < limit:
        return 0
    if rules.delivery_count_max > 2 and run.delivery_count >= rules.delivery_count_max - 1:
        return 1
    return max(1, run.batch_size >> (run.delivery_count - limit + 1))


def _without(ranges: list[AcquiredRange], first: int, last: int) -> list[AcquiredRange]:
    """Return the parts of the ranges that are outside of the offsets `first` to `last`."""
    left: list[AcquiredRange] = []
    for each in ranges:
        if each.last < first or each.first > last:
            left.append(each)
            continue
        if each.first < first:
            left.append(AcquiredRange(each.first, first - 1, each.delivery_count))
        if each.last > last:
            left.append(AcquiredRange(last + 1, each.last, each.delivery_count))
    return left
