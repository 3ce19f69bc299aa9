"""LetterQueue: the dead letters of one share partition that are not written yet, and the records of each letter."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.share.partition.in_flight import DeadLetters
from kproc.broker.share.partition.letter_log import OFFSET_HEADER
from kproc.broker.share.partition.original_records import OriginalRecords
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.records import Record

if TYPE_CHECKING:
    from kproc.broker.share.partition.share_partition import SharePartition

logger = logging.getLogger(__name__)

# The values of the header __dlq.errors.message, as in Kafka.
REJECTED: Final = "Offset rejected by client."
DELIVERED_TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."
# Limits of the records and bytes in one batch of dead letters. A larger batch would make the duty cycle too long.
RECORDS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 256 << 10
# Upper limits of the bytes that a record and a header have besides their contents.
_RECORD_OVERHEAD_BYTES: Final = 40
_HEADER_OVERHEAD_BYTES: Final = 10


class LetterQueue:
    """The dead letters of one share partition that are not written yet: the next batch, and the letters behind it."""

    __slots__ = ("archiving", "attempts", "batch", "is_unsure", "is_waiting", "letters")

    def __init__(self) -> None:
        self.letters: deque[DeadLetters] = deque()
        self.batch: list[DeadLetters] = []
        self.attempts = 0  # Number of failed attempts to write the present batch.
        self.archiving = 0  # Number of ranges of written letters whose records are not archived yet.
        # True if the dead letter topic may have some of these letters already, after the death of a former owner or a
        # failed attempt.
        self.is_unsure = False
        self.is_waiting = False  # Waits for a write's result, the topic's creation or the end of a pause.

    def fill_batch(
        self, partition: SharePartition, originals: OriginalRecords | None, size_max: int, now_ms: int
    ) -> list[Record]:
        """Move dead letters to the next batch: at least one, and more if they fit. Return their records.

        The batch begins with the letters of a batch that was not written, if there is one.

        originals: reads the records to copy, None if no record is copied. size_max: the topic's max.message.bytes.
        """
        self.letters.extendleft(reversed(self.batch))
        self.batch = []
        find = originals.find if originals is not None else _no_original
        records: list[Record] = []
        left = min(size_max, _BATCH_BYTES_MAX) - HEADER_BYTES
        too_large_count = 0
        while self.letters and len(records) < RECORDS_MAX and (originals is None or originals.has_budget):
            letters = self.letters[0]
            original = find(letters.first)
            record = dead_letter(partition, letters, letters.first, original, now_ms)
            # A producer can have compressed the record, or its topic has a higher limit. Without a copy, the letter
            # still tells where the record is.
            is_too_large = original is not None and _size(record) > size_max - HEADER_BYTES
            if is_too_large:
                record = dead_letter(partition, letters, letters.first, None, now_ms)
            left -= _size(record)
            if left < 0 and records:
                break
            records.append(record)
            too_large_count += is_too_large
            self.letters.popleft()
            if letters.first < letters.last:
                self.letters.appendleft(letters._replace(first=letters.first + 1))
            if self.batch and self.batch[-1][1:] == (letters.first - 1, *letters[2:]):
                self.batch[-1] = self.batch[-1]._replace(last=letters.first)
            else:
                self.batch.append(letters._replace(last=letters.first))
        if too_large_count:
            logger.warning(
                "copies of %d records of topic %s exceed max.message.bytes (%d) of the dead letter topic %s: their "
                "dead letters have headers only; increase max.message.bytes",
                too_large_count,
                partition.topic,
                size_max,
                partition.settings.dead_letter_topic,
            )
        return records

    def separate_written(self, offsets: Sequence[int]) -> None:
        """Make the letters of `offsets`, which the topic has already, the batch. The others are not written yet.

        `offsets` is in ascending order.
        """
        written, unwritten = _divide([*self.batch, *self.letters], offsets)
        self.batch, self.letters = written, deque(unwritten)

    def drain(self) -> None:
        """Move all letters to the batch, because none of them can be written."""
        self.batch.extend(self.letters)
        self.letters.clear()


def dead_letter(
    partition: SharePartition, letters: DeadLetters, offset: int, original: Record | None, now_ms: int
) -> Record:
    """Return the dead letter for one offset. `original`: the record to copy, if it is to be copied and exists."""
    headers = [
        ("__dlq.errors.topic", partition.topic.encode()),
        ("__dlq.errors.partition", b"%d" % partition.key.partition),
        (OFFSET_HEADER, b"%d" % offset),
        ("__dlq.errors.group", partition.key.group_id.encode()),
        ("__dlq.errors.delivery.count", b"%d" % letters.delivery_count),
        ("__dlq.errors.message", (REJECTED if letters.is_rejected else DELIVERED_TOO_OFTEN).encode()),
    ]
    if original is None:
        return Record(None, None, now_ms, headers)
    return Record(original.key, original.value, now_ms, [*original.headers, *headers])


def _size(record: Record) -> int:
    """Return an upper limit of a record's bytes in a batch."""
    headers = sum(
        _HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"") for name, value in record.headers
    )
    return _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _divide(
    letters: Iterable[DeadLetters], written: Sequence[int]
) -> tuple[list[DeadLetters], list[DeadLetters]]:
    """Return the letters whose offsets are in `written`, which is in ascending order, and the other letters."""
    found: list[DeadLetters] = []
    others: list[DeadLetters] = []
    for each in letters:
        first = each.first
        for offset in written[bisect_left(written, each.first) : bisect_right(written, each.last)]:
            if first < offset:
                others.append(each._replace(first=first, last=offset - 1))
            found.append(each._replace(first=offset, last=offset))
            first = offset + 1
        if first <= each.last:
            others.append(each._replace(first=first))
    return found, others


def _no_original(_offset: int) -> Record | None:
    return None
