"""PartitionTable: start and end of each partition's log in shared memory, as its owner last published them.

Each slot (assigned in cluster/image.py) has a row of 9 words, written by the owning Handler behind a seqlock and read
by its successor and the cleaner. The supervisor holds the region, so it outlives a Handler, but not the broker. After a
Handler's death its successor trusts the end and position in a row. The bytes up to there are complete in the page
cache, so it scans only the bytes behind them. Records below the high watermark were visible to clients and stay
visible. After a failed sync only the page cache may have them. The row then has the flag SYNC_FAILED, and no Handler
opens that log again in this run (storage/failed_sync.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kproc.broker.cluster.image import SLOT_COUNT, ClusterImage, PartitionImage
from kproc.broker.ipc.words import RowWriter, read_row

_VALUES: Final = 8
# Sequence word and values, padded to whole cache lines, so that rows of different Handlers share none.
ROW_WORDS: Final = 16
TABLE_BYTES: Final = 8 * ROW_WORDS * SLOT_COUNT  # The table is 16 MiB of sparse memory.
NOBODY: Final = -1
# Added to the owner's index in the row's first word, so that 0 means that the row was never written, and 1 that no
# Handler has the partition.
_HOLDER: Final = 2
_QUIET: Final = 1 << 32  # Flag in the first word: the log's owner knows no producer.
SYNC_FAILED: Final = 1 << 33  # Flag in the first word: a sync of the log failed.
# Flag in the first word: the owner closed the log in order, and nobody has opened it since.
CLOSED: Final = 1 << 34
# Flag in the first word: the broker has crashed, and no sync has confirmed the recovered log yet. Clients may
# have seen a higher high watermark than the row's.
RECOVERING: Final = 1 << 35
_FLAGS: Final = _QUIET | SYNC_FAILED | CLOSED | RECOVERING


class PartitionRow(NamedTuple):
    """A consistent reading of one row. Offsets count records, `position` bytes in the segment `segment_base`.

    `holder` is the index of the Handler that has the log open, or has the log's state for the next owner. It is NOBODY
    after the Handler gave up both.
    """

    holder: int
    generation: int
    start_offset: int
    end_offset: int
    segment_base: int
    position: int
    recovery_point: int
    high_watermark: int
    has_producers: bool  # True if the log's owner knew any idempotent producer.
    has_failed: bool = False  # True if a sync of the log failed in this run of the broker.
    is_closed: bool = False
    is_recovering: bool = False  # True if clients may have seen a higher high watermark than this one.

    @property
    def behind_holder(self) -> tuple[int, ...]:
        """Return all words of the row but the first, which has the owner's index and flags."""
        return self.generation, *self[2:8]


class PartitionTable:
    """The rows of all partitions (offsets, owner, flags) over one shared region, or plain memory for threads."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def writer(self, slot: int) -> RowWriter:
        """Return a writer of one row, for the owner of the row's partition.

        A Handler that was killed inside a store left an odd sequence word. The next publication repairs it.
        """
        return RowWriter(self._words, slot * ROW_WORDS, _VALUES)

    def read(self, partition: PartitionImage) -> PartitionRow | None:
        """Return the row of this partition. None if its owner never wrote it, or died while writing it."""
        values = self._values(partition)
        if values is None:
            return None
        word, generation, start, end, base, position, synced, high_watermark = values
        return PartitionRow(
            (word & ~_FLAGS) - _HOLDER,
            generation,
            start,
            end,
            base,
            position,
            synced,
            high_watermark,
            not word & _QUIET,
            bool(word & SYNC_FAILED),
            bool(word & CLOSED),
            bool(word & RECOVERING),
        )

    def stores(self, partition: PartitionImage) -> int:
        """Return a number that changes with every publication of this row, even of equal values."""
        return self._words[partition.slot * ROW_WORDS]

    def is_untouched(self, partition: PartitionImage) -> bool:
        """Return True if nobody has ever published this partition.

        `read` is not enough, because it also returns None if the owner died while writing.
        """
        # The row was touched if the sequence word is odd: an owner died inside a store.
        return not self._words[partition.slot * ROW_WORDS] & 1 and self.read(partition) is None

    def unclosed(self, image: ClusterImage) -> str | None:
        """Return the name of a partition whose log was opened in this run and not closed in order, or None.

        Call it when all Handlers have closed. Only the table knows: a Handler's image of the metadata may be old, so it
        cannot say which logs it should have closed.
        """
        for topic in image.topics_by_name.values():
            for partition in topic.partitions:
                row = self.read(partition)
                if not (self.is_untouched(partition) if row is None else row.is_closed):
                    return f"{topic.name}-{partition.index}"
        return None

    def ends(self, partition: PartitionImage) -> tuple[int, int] | None:
        """Return (start offset, end offset) of the log, or None if `read` returns None.

        This is cheaper than `read`, for callers with thousands of partitions.
        """
        values = self._values(partition)
        return None if values is None else (values[2], values[3])

    def _values(self, partition: PartitionImage) -> list[int] | None:
        values = read_row(self._words, partition.slot * ROW_WORDS, _VALUES)
        if values is None or not values[0] or values[1] != partition.slot_generation:
            return None
        return values


def holder_word(handler_index: int, *, has_producers: bool = True) -> int:
    """Return the first word of a partition's row: the Handler that has the log open.

    has_producers: False sets the flag that the log knows no idempotent producer. No other flag is set.
    """
    return handler_index + _HOLDER | (0 if has_producers else _QUIET)


def released_word(row: PartitionRow) -> int:
    """Return the first word for a row that no Handler has any more. The flags about the log stay, except CLOSED."""
    word = holder_word(NOBODY, has_producers=row.has_producers)
    return word | (SYNC_FAILED if row.has_failed else 0) | (RECOVERING if row.is_recovering else 0)
