"""Requests by API: exact counts and timings, in the slab's memory behind the rows. One writer for each part.

    counts     448 parts of 16 KiB for Processors, then 448 for Handlers, then one for the controller:
               cells | tag u64 | value u64 |, the first empty tag ends them
    timings    448 parts of 512 KiB, one for each Processor: 64 blocks of two pages, each
               | API key + 1 | 7 words | 8 histograms |

Both are sparse: an unused API or role costs only address space. A tag is stored after its value and never changes. The
successor of a role finds its cells again, so counters continue after a restart.

tag: | kind u16 | zero u16 | a u16 | b u16 |, plus 1 in the highest bit, so that no tag is 0
    REQUESTS   a: API key    b: version          (Handler, controller) received requests
    ERRORS     a: API key    b: error code       (Handler, controller) error codes in answers, without NONE
    OPENED     a: listener                       (Processor) connections that came from an Acceptor
    CLOSED     a: listener                       (Processor) connections that ended, here or by their Processor's death
    OPEN       a: listener                       (Processor) open connections, a gauge
    VERIFIED   a: bucket of the time             (Handler) answers of transactions' coordinators to partitions' owners
    VERIFYING                                    (Handler) total time of these answers, in microseconds
    UNVERIFIED                                   (Handler) partitions that these answers rejected
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kproc.broker.metrics.histogram import HISTOGRAM_WORDS, Histogram, add

REQUESTS, ERRORS, OPENED, CLOSED, OPEN, VERIFIED, VERIFYING, UNVERIFIED = range(1, 9)
# The histograms of one API, by Kafka's names. Times are in microseconds, the last is in bytes.
TIMINGS: Final = (
    "RequestQueueTimeMs",
    "LocalTimeMs",
    "RemoteTimeMs",
    "ThrottleTimeMs",
    "ResponseQueueTimeMs",
    "ResponseSendTimeMs",
    "TotalTimeMs",
    "RequestBytes",
)
TOTAL: Final = TIMINGS.index("TotalTimeMs")

ROLES_MAX: Final = 448
_CELLS: Final = 1024
_CELL_WORDS: Final = 2
_COUNT_WORDS: Final = _CELLS * _CELL_WORDS
_BLOCKS: Final = 64
_BLOCK_WORDS: Final = 1024
_BLOCK_HEAD: Final = 8
_TIMING_WORDS: Final = _BLOCKS * _BLOCK_WORDS
_PRESENT: Final = 1 << 63
assert _BLOCK_HEAD + len(TIMINGS) * HISTOGRAM_WORDS <= _BLOCK_WORDS, "the histograms of an API need two pages"

PROCESSORS_PART, HANDLERS_PART, CONTROLLER_PART = 0, ROLES_MAX, 2 * ROLES_MAX
_TIMINGS_AT: Final = (CONTROLLER_PART + 1) * _COUNT_WORDS
REQUEST_WORDS: Final = _TIMINGS_AT + ROLES_MAX * _TIMING_WORDS
"""Words of the slab that all counts and timings of requests take, behind the rows of the roles."""


class Count(NamedTuple):
    """A counter or gauge as it was read: its kind, and its labels `a` and `b` (see the module's table)."""

    kind: int
    a: int
    b: int
    value: int


def _counts_at(start: int, part: int) -> int:
    return start + part * _COUNT_WORDS


def _timings_at(start: int, processor: int) -> int:
    return start + _TIMINGS_AT + processor * _TIMING_WORDS


def read_counts(words: memoryview, start: int, part: int) -> Iterator[Count]:
    """Yield every counter and gauge that one role has in the slab.

    start: the index of the word behind the slab's rows. part: the role's number among the parts that follow the rows.
    """
    at = _counts_at(start, part)
    for cell in range(at, at + _COUNT_WORDS, _CELL_WORDS):
        tag = words[cell]
        # Cells are filled from the front and never emptied, so the first free one ends the list.
        if not tag:
            return
        # Error codes are int16, and UNKNOWN_SERVER_ERROR is -1, so the sign is restored below.
        b = tag & 0xFFFF
        yield Count((tag >> 48) & 0x7FFF, (tag >> 16) & 0xFFFF, b - ((b & 0x8000) << 1), words[cell + 1])


def read_timings(words: memoryview, start: int, processor: int, into: dict[int, list[Histogram]]) -> None:
    """Add one Processor's timings to the histograms `into`, by API key."""
    at = _timings_at(start, processor)
    for block in range(at, at + _TIMING_WORDS, _BLOCK_WORDS):
        api_key = words[block] - 1
        if api_key < 0:
            return
        histograms = into.setdefault(api_key, [Histogram() for _ in TIMINGS])
        for number, histogram in enumerate(histograms):
            first = block + _BLOCK_HEAD + number * HISTOGRAM_WORDS
            histogram.add(words[first : first + HISTOGRAM_WORDS])


class Counts:
    """A role's counters by kind and labels (API and version, for example).

    It counts in a dict, which `store` copies into shared words.
    """

    __slots__ = ("_at", "_cells", "_counts", "_words")

    def __init__(self, words: memoryview, start: int, part: int) -> None:
        self._words = words
        self._at = _counts_at(start, part)
        self._cells: dict[int, int] = {}  # tag -> its cell
        self._counts: dict[int, int] = {}
        cell = self._at
        # A successor continues the counters of its predecessor. A counter that falls to 0 would look like a rate to a
        # monitor.
        while cell < self._at + _COUNT_WORDS and words[cell]:
            self._cells[words[cell]] = cell
            self._counts[words[cell]] = words[cell + 1]
            cell += _CELL_WORDS

    def add(self, kind: int, a: int, b: int = 0, count: int = 1) -> None:
        """Add `count` to the counter of this kind with the labels `a` and `b`. Other processes see it after `store`."""
        tag = _PRESENT | kind << 48 | a << 16 | (b & 0xFFFF)
        counts = self._counts
        counts[tag] = counts.get(tag, 0) + count

    def set(self, kind: int, a: int, value: int) -> None:
        """Set the gauge of this kind with the label `a`. Other processes see it after `store`."""
        self._counts[_PRESENT | kind << 48 | a << 16] = value

    def get(self, kind: int, a: int, b: int = 0) -> int:
        return self._counts.get(_PRESENT | kind << 48 | a << 16 | (b & 0xFFFF), 0)

    def keys_of(self, kind: int) -> list[int]:
        """Return every label `a` that has a counter of this kind, for example all listeners."""
        return [(tag >> 16) & 0xFFFF for tag in self._counts if (tag >> 48) & 0x7FFF == kind]

    def store(self) -> None:
        """Publish all counts, about ten times a second. Others do not see counts beyond the 1024 cells."""
        words, cells = self._words, self._cells
        for tag, value in self._counts.items():
            cell = cells.get(tag)
            if cell is not None:
                words[cell + 1] = value
            elif len(cells) < _CELLS:
                cell = cells[tag] = self._at + len(cells) * _CELL_WORDS
                # Value before tag, because a reader believes a cell that has a tag.
                words[cell + 1] = value
                words[cell] = tag


class Timings:
    """The histograms of request times that one Processor writes, by API, in the slab."""

    __slots__ = ("_at", "_blocks", "_words")

    def __init__(self, words: memoryview, start: int, processor: int) -> None:
        self._words = words
        self._at = _timings_at(start, processor)
        self._blocks: dict[int, int] = {}  # API key -> first word of its histograms
        block = self._at
        while block < self._at + _TIMING_WORDS and words[block]:
            self._blocks[words[block] - 1] = block + _BLOCK_HEAD
            block += _BLOCK_WORDS

    def add(
        self, api_key: int, times_us: tuple[int, int, int, int, int, int, int], request_bytes: int
    ) -> None:
        """Add one request, with its times in us in the order of TIMINGS.

        There are blocks for 64 APIs. Discard the request if other APIs have all of them.
        """
        at = self._blocks.get(api_key)
        if at is None:
            if len(self._blocks) == _BLOCKS:
                return
            block = self._at + len(self._blocks) * _BLOCK_WORDS
            at = self._blocks[api_key] = block + _BLOCK_HEAD
            self._words[block] = api_key + 1
        words = self._words
        for value in times_us:
            add(words, at, value if value > 0 else 0)
            at += HISTOGRAM_WORDS
        add(words, at, request_bytes)
