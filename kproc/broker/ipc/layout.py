"""Layout of shared memory: the place of every shared word, declared once, computed, and checked at import.

    region (one sealed memfd)
    +-----------------------------+ 0
    | region header, one page     |   magic, version, kind, generation, payload bytes, sparse or not
    +-----------------------------+ 4096
    | payload                     |   a ring, two rings (a link), an arena, a metrics slab, a partition table
    +-----------------------------+ a whole number of pages

    ring (anywhere in a payload, 128-byte aligned)
    +-----------------------------+ 0     line 0: never changes after the ring was made
    | capacity                    |
    +-----------------------------+ 128   line 1: stored by the producer only
    | tail                        |
    +-----------------------------+ 256   line 2: stored by the consumer only
    | head, is_over               |
    +-----------------------------+ 384
    | records, `capacity` bytes   |
    +-----------------------------+ 384 + capacity

    record (8-byte aligned, never wraps)
    | length u32 | kind u32 | payload, `length` bytes | 0-7 bytes to the next multiple of 8 |
    kind 0 is padding: it fills the end of the ring when a record does not fit there.

Words are 64 bits in host byte order, because a region never leaves its host. Readers reject another version, so any
change here must raise LAYOUT_VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

LAYOUT_VERSION: Final = 2
REGION_MAGIC: Final = int.from_bytes(b"kprocRGN", "little")
PAGE_BYTES: Final = 4096  # Page size of memfds and of MADV_REMOVE on every CPU that kproc supports.
WORD_BYTES: Final = 8
# Two 64-byte lines, because Intel's adjacent-line prefetcher moves lines in pairs. Words of different writers in one
# pair would bounce between the CPUs although they share no byte.
LINE_BYTES: Final = 128


class Word(NamedTuple):
    """One 64-bit word that several processes share.

    `starts_line` puts it into a cache line that only its writer writes.
    """

    name: str
    doc: str
    starts_line: bool = False


class Layout:
    """The order of words in shared memory, with the computed index of each. A constant; never changed after import."""

    def __init__(self, name: str, words: Sequence[Word], total_bytes: int) -> None:
        self.name = name
        self.words = tuple(words)
        self.total_bytes = total_bytes
        self.word: dict[str, int] = {}
        place = 0
        for word in words:
            if word.starts_line:
                place = align(place, LINE_BYTES)
            assert word.name not in self.word, f"{name}: two words are called {word.name}"
            self.word[word.name] = place // WORD_BYTES
            place += WORD_BYTES
        assert place <= total_bytes, f"{name}: {place} bytes of words do not fit into {total_bytes}"


def align(value: int, grain: int) -> int:
    """Round up to a multiple of `grain`, a power of two."""
    return (value + grain - 1) & -grain


REGION_HEADER: Final = Layout(
    "region header",
    (
        Word("magic", "REGION_MAGIC: this memfd is one of ours."),
        Word("version", "LAYOUT_VERSION of the process that made the region."),
        Word("kind", "A RegionKind: a descriptor handed to the wrong place is refused, not misread."),
        Word("generation", "Grows with every replacement; a late descriptor of a dead peer is refused."),
        Word("payload_bytes", "What the maker asked for, before rounding up to pages."),
        Word("is_sparse", "1 if pages come with the first touch: such a region is never mapped populated."),
    ),
    total_bytes=PAGE_BYTES,
)

RING_HEADER: Final = Layout(
    "ring header",
    (
        Word("capacity", "Bytes of records, a power of two; stored once, before anybody attaches.", True),
        Word("tail", "Sequence up to which records are whole; stored by the producer at publish().", True),
        Word("head", "Sequence up to which bytes may be reused; stored by the consumer at release().", True),
        Word(
            "is_over", "1 once the consumer has ended in order: it took nothing of what lies behind the head."
        ),
    ),
    total_bytes=3 * LINE_BYTES,
)

RECORD_HEADER_BYTES: Final = 8
PADDING_KIND: Final = 0
# A smaller ring could not hold four of the smallest records. In a larger ring a u32 length could overflow.
RING_CAPACITY_BYTES_MIN: Final = 256
RING_CAPACITY_BYTES_MAX: Final = 1 << 31


def ring_bytes(capacity: int) -> int:
    """Return the bytes that a ring of this capacity takes in a payload: header, records, padding to the next ring."""
    return align(RING_HEADER.total_bytes + capacity, LINE_BYTES)


assert REGION_HEADER.word["magic"] == 0, "the magic must come first: it is what a foreign file is told by"
_RING_LINES: Final = [place * WORD_BYTES // LINE_BYTES for place in RING_HEADER.word.values()]
assert _RING_LINES == [0, 1, 2, 2], "words of two writers share a cache line pair"
assert PAGE_BYTES % LINE_BYTES == 0, "a payload must begin on a cache line"
