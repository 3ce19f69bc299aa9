"""The slab: one shared-memory row per role instance, written only by that role, read by anybody.

    region payload:  | spec crc u64 | row 0: 128 words | row 1: 128 words | ... | counts and timings of requests.py |
    row:             | sleeping | pid | reserved x 6 | one word per declared metric |

The sleeping word tells producers whether the role must be woken (ipc/wait.py). A row belongs to one AgentId for the
life of the broker. A restarted role uses the same row, and its counters continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kproc.broker.metrics import requests
from kproc.broker.metrics.histogram import Histogram
from kproc.broker.metrics.requests import REQUEST_WORDS, Count, Counts, Timings
from kproc.broker.metrics.spec import METRICS, SLOT, SPEC_CRC
from kproc.common.errors import FatalError

ROW_WORDS: Final = 128
SLEEPING_WORD: Final = 0
PID_WORD: Final = 1
METRIC_WORD: Final = 8
ROWS_MAX: Final = 1024  # 1 MiB of address space; only rows in use cost memory.
_HEAD_WORDS: Final = 8
_PAGE_WORDS: Final = 512
REQUESTS_WORD: Final = -(-(_HEAD_WORDS + ROWS_MAX * ROW_WORDS) // _PAGE_WORDS) * _PAGE_WORDS
SLAB_BYTES: Final = 8 * (REQUESTS_WORD + REQUEST_WORDS)  # 239 MiB of address space.
assert METRIC_WORD + len(METRICS) <= ROW_WORDS, "the slab's rows are too short for the metric table"


class Slab:
    """All rows, over the words of one shared region (or of plain memory, for threads)."""

    def __init__(self, words: memoryview, *, is_new: bool) -> None:
        self.words = words
        if is_new:
            words[0] = SPEC_CRC
        # The order of the metrics is the layout, so a role of another version would write the words of other metrics.
        elif words[0] != SPEC_CRC:
            raise FatalError("the metrics slab was made by another version of kproc")

    @staticmethod
    def row_word(row: int) -> int:
        """Return the index of the row's first word."""
        return _HEAD_WORDS + row * ROW_WORDS

    @staticmethod
    def metric_word(row: int, name: str) -> int:
        """Return the index of the word that holds one metric of a row."""
        return Slab.row_word(row) + METRIC_WORD + SLOT[name]

    def read(self, row: int) -> dict[str, int]:
        """Return all metrics of one row by name. The words are read one by one, so they are not of one instant."""
        start = self.row_word(row) + METRIC_WORD
        return {name: self.words[start + slot] for name, slot in SLOT.items()}

    def read_one(self, row: int, name: str) -> int:
        """Return one metric of a row."""
        return int(self.words[self.metric_word(row, name)])

    def counts(self, part: int) -> Counts:
        """Return the object with which a role counts requests and connections. Only that role may use it."""
        return Counts(self.words, REQUESTS_WORD, part)

    def timings(self, processor: int) -> Timings:
        """Return the object with which a Processor writes its histograms. Only that Processor may use it."""
        return Timings(self.words, REQUESTS_WORD, processor)

    def read_counts(self, part: int) -> Iterator[Count]:
        """Yield a role's counts of requests and connections."""
        return requests.read_counts(self.words, REQUESTS_WORD, part)

    def read_timings(self, processor: int, into: dict[int, list[Histogram]]) -> None:
        """Add one Processor's timings to the histograms `into`, by API key."""
        requests.read_timings(self.words, REQUESTS_WORD, processor, into)

    def pid(self, row: int) -> int:
        return int(self.words[self.row_word(row) + PID_WORD])


class MetricsRow:
    """The row of the metrics slab that one role writes.

    The role counts in the list `values`, and `store` publishes it.
    """

    def __init__(self, slab: Slab, row: int, pid: int) -> None:
        self.slab = slab
        start = slab.row_word(row)
        self._words = slab.words
        self._start = start + METRIC_WORD
        self.sleeping_word = start + SLEEPING_WORD
        slab.words[start + PID_WORD] = pid
        # Start with the predecessor's values, so that counters continue after a restart. Gauges are set again before
        # the next store.
        self.values = [int(slab.words[self._start + slot]) for slot in range(len(METRICS))]

    def store(self) -> None:
        """Publish every value. Called about ten times a second, not per request."""
        words, start = self._words, self._start
        for slot, value in enumerate(self.values, start):
            words[slot] = value

    def store_one(self, slot: int) -> None:
        """Publish one value at once, because other roles enforce a shared limit with it."""
        self._words[self._start + slot] = self.values[slot]

    def sum_elsewhere(self, name: str, rows: Iterable[int]) -> int:
        """Return the sum of one metric over the rows of other roles."""
        words = self._words
        return sum(words[Slab.metric_word(row, name)] for row in rows)
