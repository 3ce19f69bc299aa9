"""Percentiles of measured times, in bounded memory.

Times are counted in buckets as in HdrHistogram: the width of a bucket is at most 1/128 of its values. The broker's own
histograms (broker/metrics/histogram.py) have wider buckets to save shared memory.
"""

from __future__ import annotations

import math
from typing import Final

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_BITS: Final = 8
_NS_PER_MS: Final = 1_000_000


class Percentiles:
    """Counts of times in ns. Only one thread calls `add`.

    Other threads may merge this object into their own Percentiles at the same time.
    """

    __slots__ = ("_buckets", "_total_ns", "count", "largest_ns", "smallest_ns")

    def __init__(self) -> None:
        # Bucket -> count. A bucket's number is composed of the number of low bits dropped from a time and its 8 highest
        # bits.
        self._buckets: dict[int, int] = {}
        self._total_ns = 0
        self.count = 0
        self.smallest_ns = 0
        self.largest_ns = 0

    def add(self, time_ns: int) -> None:
        time_ns = max(0, time_ns)
        dropped = max(0, time_ns.bit_length() - _BITS)
        bucket = (dropped << _BITS) + (time_ns >> dropped)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._total_ns += time_ns
        self.smallest_ns = min(self.smallest_ns, time_ns) if self.count else time_ns
        self.largest_ns = max(self.largest_ns, time_ns)
        self.count += 1

    def merge(self, other: Percentiles) -> None:
        """Add the times that another Percentiles has counted."""
        if not other.count:
            return
        self.smallest_ns = min(self.smallest_ns, other.smallest_ns) if self.count else other.smallest_ns
        self.largest_ns = max(self.largest_ns, other.largest_ns)
        self._total_ns += other._total_ns
        # Copy the dict first, because the other object's thread can insert a bucket at any time. Count from the copy,
        # so that the total fits.
        for bucket, count in other._buckets.copy().items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
            self.count += count

    @property
    def mean_ns(self) -> float:
        return self._total_ns / self.count if self.count else 0.0

    def quantile_ns(self, share: float) -> int:
        """Return the time in ns that `share` (0 to 1) of the times do not exceed, at most 1 % too long.

        Return 0 if no time was added.
        """
        left = max(1, math.ceil(share * self.count))
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                dropped, kept = divmod(bucket, 1 << _BITS)
                return min(((kept + 1) << dropped) - 1, self.largest_ns)
        return self.largest_ns

    def in_ms(self) -> dict[str, float]:
        """Return min, mean, percentiles and max in milliseconds."""
        times = {
            "min": self.smallest_ns,
            "mean": self.mean_ns,
            **{name: self.quantile_ns(share) for name, share in SHARES.items()},
            "max": self.largest_ns,
        }
        return {name: round(time_ns / _NS_PER_MS, 4) for name, time_ns in times.items()}
