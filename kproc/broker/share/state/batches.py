"""Merge of state batches: pure functions, with the rule of Kafka 4.4's PersisterStateBatchCombiner.

Kafka can replay the records that kproc writes, and kproc those of Kafka, so both must merge in the same way. Where
batches overlap, the one with the higher delivery count wins, and among equal counts the one with the higher state. So
the order of updates does not matter: a stored delivery count never decreases, and a completed delivery follows its
release.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter
from typing import Final

from kproc.broker.share.state.messages import NO_OFFSET, StateBatch

Batches = tuple[StateBatch, ...]
_last_of: Final = attrgetter("last")

# Limit of the batches of one state. A batch takes 20 bytes of a snapshot, which must fit into one record batch of the
# default max.message.bytes. Otherwise no snapshot could be written, and no older record could be deleted.
BATCHES_MAX: Final = 45_000


def combine(current: Batches, update: Sequence[StateBatch], start_offset: int) -> Batches:
    """Return the present batches with an update merged in, without the offsets below the start offset.

    current: sorted by offset, without overlaps, as this function returns them. update: in any order, with overlaps. No
    batch may have a last offset below its first.
    """
    merged = list(_without_prefix(current, start_offset))
    for each in _sweep(prune(update, start_offset)):
        # Merge only the batches that overlap the new one or are adjacent to it, because adjacent ones may be joined. So
        # the cost of a write does not depend on the number of batches in the state.
        low = _count_before(merged, each.first - 1)
        high = low
        while high < len(merged) and merged[high].first <= each.last + 1:
            high += 1
        merged[low:high] = _sweep((*merged[low:high], each))
    return tuple(merged)


def has_too_many(current: Batches, update: Batches) -> bool:
    """Return True if `update`, or `current` combined with it, has more batches than one record can hold."""
    if len(update) > BATCHES_MAX:
        return True
    # Merging this many batches takes milliseconds, so do it only near the limit.
    may_be_too_many = len(current) + len(update) > BATCHES_MAX
    return may_be_too_many and len(combine(current, update, NO_OFFSET)) > BATCHES_MAX


def _without_prefix(batches: Batches, start_offset: int) -> Batches:
    """Return the result of `prune` for sorted batches.

    It visits only the batches that are removed, because there can be thousands of others.
    """
    count = _count_before(batches, start_offset)
    kept = batches[count:] if count else batches
    if kept and kept[0].first < start_offset:
        kept = (*prune(kept[:1], start_offset), *kept[1:])
    return kept


def prune(batches: Iterable[StateBatch], start_offset: int) -> Batches:
    """Return the parts of the batches from the start offset on.

    If the start offset is NO_OFFSET, return all batches.
    """
    if start_offset == NO_OFFSET:
        return tuple(batches)
    return tuple(
        each
        if each.first >= start_offset
        else StateBatch(start_offset, each.last, each.state, each.delivery_count)
        for each in batches
        if each.last >= start_offset
    )


def _count_before(batches: Sequence[StateBatch], offset: int) -> int:
    """Return how many of the sorted batches end before the offset."""
    return bisect_left(batches, offset, key=_last_of)


def _sweep(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Return the batches without overlaps, in the order of their offsets. Join adjacent equal ones.

    At each offset the batch with the highest delivery count wins, and of equal ones the batch with the highest state.
    """
    ordered = sorted(batches, key=lambda each: each.first)
    borders = sorted({each.first for each in batches} | {each.last + 1 for each in batches})
    merged: list[StateBatch] = []
    # A heap of the batches that begin at or below the present offset. The first one wins: it has the highest delivery
    # count, and of equal ones the highest state. A batch that has ended stays in the heap until it is the first one.
    begun: list[tuple[int, int, int]] = []
    count = 0
    for start, end in pairwise(borders):
        while count < len(ordered) and ordered[count].first <= start:
            each = ordered[count]
            heappush(begun, (-each.delivery_count, -each.state, each.last))
            count += 1
        while begun and begun[0][2] < start:
            heappop(begun)
        if begun:
            add_batch(merged, start, end - 1, -begun[0][1], -begun[0][0])
    return merged


def add_batch(batches: list[StateBatch], first: int, last: int, state: int, delivery_count: int) -> None:
    """Append a batch. If the last one ends directly before it, with equal state and delivery count, extend that one."""
    if batches:
        tail = batches[-1]
        if tail.last + 1 == first and tail.state == state and tail.delivery_count == delivery_count:
            first = batches.pop().first
    batches.append(StateBatch(first, last, state, delivery_count))
