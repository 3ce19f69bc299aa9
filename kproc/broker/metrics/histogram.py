"""Log-linear histograms: four buckets to each octave, as words that one writer adds to and anybody reads.

Each value below 4 has a bucket of its own. Above that, the range from 2^e to 2^(e+1) is cut into four equal parts, so
that a bucket is at most a quarter of its lower bound wide. 124 buckets reach to 2^32: 71 minutes in microseconds, 4 GiB
in bytes. Larger values fall into the last bucket.

    | sum of the values | largest value | 124 buckets |         126 words
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

BUCKETS: Final = 124
SUM, LARGEST, FIRST = 0, 1, 2
HISTOGRAM_WORDS: Final = FIRST + BUCKETS


def bucket_of(value: int) -> int:
    """Return the bucket that a value falls into."""
    if value < 4:
        return max(value, 0)
    # Four buckets an octave: the two bits behind the leading one choose among them, so a bucket is at most a quarter of
    # its lower bound wide.
    octave = value.bit_length() - 3
    return min((octave << 2) + (value >> octave), BUCKETS - 1)


def lower_bound(bucket: int) -> int:
    """Return the smallest value of a bucket. The bucket ends before the lower bound of the next one."""
    if bucket < 4:
        return bucket
    return (4 + (bucket & 3)) << ((bucket >> 2) - 1)


def add(words: memoryview, at: int, value: int) -> None:
    """Add one value to the histogram whose words begin at `at`."""
    words[at] += value
    if value > words[at + LARGEST]:
        words[at + LARGEST] = value
    words[at + FIRST + bucket_of(value)] += 1


class Histogram:
    """A copy of one histogram, or the sum of several."""

    __slots__ = ("buckets", "count", "largest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.count = 0
        self.total = 0
        self.largest = 0

    @classmethod
    def of_buckets(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Return a histogram from (bucket, count) pairs in ascending order. `largest` is the end of the last bucket."""
        answer = cls()
        for bucket, count in pairs:
            answer.buckets[bucket] = count
            answer.count += count
            answer.largest = lower_bound(bucket + 1)
        return answer

    def add(self, words: Sequence[int] | memoryview) -> None:
        """Add the words of another histogram.

        Its writer may change the words meanwhile, so `count` is the sum of the buckets that were read.
        """
        self.total += words[SUM]
        self.largest = max(self.largest, words[LARGEST])
        buckets = self.buckets
        for bucket, count in enumerate(words[FIRST:HISTOGRAM_WORDS]):
            if count:
                buckets[bucket] += count
                self.count += count

    def since(self, earlier: Histogram) -> Histogram:
        """Return the values added after `earlier` was read. Their largest value is unknown, so keep that of all."""
        answer = Histogram()
        answer.buckets = [max(0, a - b) for a, b in zip(self.buckets, earlier.buckets, strict=True)]
        answer.count = sum(answer.buckets)
        answer.total = max(0, self.total - earlier.total)
        answer.largest = self.largest
        return answer

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the value below which `share` (0 to 1) of the values lie, interpolated within its bucket.

        Return 0 for a histogram without values.
        """
        wanted = share * self.count
        below = 0
        for bucket, count in enumerate(self.buckets):
            if count and below + count >= wanted:
                low, high = lower_bound(bucket), lower_bound(bucket + 1)
                # Assume that the values of a bucket are spread evenly, because nothing more is known of them.
                inside = low + (high - low) * (wanted - below) / count
                return min(inside, float(self.largest))
            below += count
        return 0.0

    def below(self, bounds: Iterable[int]) -> list[int]:
        """Return for each bound how many values are smaller. Bounds ascend, and each is a lower bound of a bucket."""
        answer, bucket, below = [], 0, 0
        for bound in bounds:
            while bucket < BUCKETS and lower_bound(bucket) < bound:
                below += self.buckets[bucket]
                bucket += 1
            answer.append(below)
        return answer
