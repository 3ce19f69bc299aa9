"""Offsets of a query: their JSON, limits, and what becomes a task. Pure functions: no broker and no Spark.

    {"clicks": {"0": 23, "1": 7}, "orders": {"0": 5}}     topics by name, partitions by number, ends exclusive

is what Spark's own connector writes into checkpoints and takes as `startingOffsets`. Spark compares it as
text: the same offsets in another order would be an endless sequence of empty batches. So it is always sorted.

The end of a query's first batch has the batch's start in it as well, under a key that is no topic's name:

    {"@start": {"clicks": {"0": 20, "1": 7}}, "clicks": {"0": 23, "1": 7}}

because Spark keeps no start: asked again after a crash for the "initial" offset of a first batch that was
planned but not finished, `latest` would answer with a later one, and what lies between would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

START_KEY: Final = "@start"


class TopicPartition(NamedTuple):
    """A partition of a topic, written `topic-0` as Kafka does."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]


class Range(NamedTuple):
    """Offsets of one partition, the end exclusive."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets; records may be fewer."""
        return self.end - self.start


def to_json(
    offsets: Mapping[TopicPartition, int], *, start: Mapping[TopicPartition, int] | None = None
) -> Any:
    """The offsets as Spark wants them, in the one order."""
    document: dict[str, Any] = {} if start is None else {START_KEY: to_json(start)}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return document


def from_json(document: Mapping[str, Any]) -> Offsets:
    """The offsets of a document; ValueError with what is wrong in it. `@start` is not looked at."""
    if not isinstance(document, Mapping):
        raise ValueError(f'it is not of the form {{"topic": {{"0": 23}}}}: {document!r}')
    found: Offsets = {}
    for topic, rows in document.items():
        if topic == START_KEY:
            continue
        if not isinstance(rows, Mapping):
            raise ValueError(f'"{topic}" is not of the form {{"0": 23, "1": -1}}: {rows!r}')
        for key, value in rows.items():
            if not str(key).isdecimal():
                raise ValueError(f'"{key}" of "{topic}" is no partition\'s number')
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f'"{topic}", partition {key}: {value!r} is no whole number')
            found[TopicPartition(topic, int(key))] = value
    return found


def start_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Where the batch with this end begins: what the end says itself, if it is a query's first one."""
    recorded = end.get(START_KEY)
    # A later batch starts where the first one ended; its own end has no such key.
    return from_json(start if recorded is None else recorded)


# ---- how far the next batch goes -------------------------------------------------------------------------


def limited(limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """The end brought down to `limit` offsets in all, in proportion to what each partition has waiting.

    As in Spark's connector a partition with anything waiting gets at least one, so that none starves: the sum
    may be above the limit by as many as there are partitions.
    """
    sizes = {partition: last - start.get(partition, 0) for partition, last in end.items()}
    total = sum(size for size in sizes.values() if size > 0)
    result: Offsets = {}
    for partition, last in end.items():
        size = sizes[partition]
        if size > 0:
            share = limit * size / total
            count = math.ceil(share) if share < 1 else math.floor(share)
            last = min(last, start.get(partition, 0) + count)
        result[partition] = last
    return result


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between start and end."""
    return sum(max(0, last - start.get(partition, 0)) for partition, last in end.items())


# ---- what becomes a task ---------------------------------------------------------------------------------


def ranges_of(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
    """What lies between start and end, partition by partition; one that start does not know begins at 0."""
    return [
        Range(partition, start.get(partition, 0), end[partition])
        for partition in sorted(end)
        if end[partition] > start.get(partition, 0)
    ]


def losses(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
) -> list[str]:
    """In what ways records between start and end are gone; one sentence for each partition.

    Gaps inside a log are none: compaction and transactions leave them. The log's start is what counts.
    """
    found = [
        f"{partition} is gone, it was read up to offset {start[partition]}"
        for partition in sorted(start.keys() - end.keys())
    ]
    for partition in sorted(end):
        begin, log_start = start.get(partition), log_starts.get(partition, 0)
        if begin is None:
            if log_start > 0:
                found.append(f"{partition} is new and its log starts at {log_start} instead of 0")
        elif end[partition] < begin:
            found.append(
                f"{partition} was read up to offset {begin} and ends at {end[partition]} now: "
                "the topic was made anew, or its log was cut"
            )
        elif begin < log_start and begin < end[partition]:
            found.append(f"{partition} is to be read from offset {begin}, its log starts at {log_start}")
    return found


def split(
    ranges: Iterable[Range], *, records_max: int | None = None, partitions_min: int | None = None
) -> list[Range]:
    """Ranges cut into more, by the rules of Spark's connector: first none above `records_max`, then at least
    about `partitions_min` in all, cutting the large ones.

    Depends on nothing else, so that a batch that is run again has the same tasks.
    """
    result = [each for each in ranges if each.size > 0]
    if records_max is not None:
        result = [piece for each in result for piece in _cut(each, -(-each.size // records_max))]
    if partitions_min is None or len(result) >= partitions_min:
        return result
    total = sum(each.size for each in result)
    small = {each for each in result if _part_count(each.size, total, partitions_min) == 1}
    # What stays whole is left out of the proportions of what is cut.
    total -= sum(each.size for each in small)
    wanted = max(partitions_min - len(small), 1)
    pieces: list[Range] = []
    for each in result:
        count = 1 if each in small else _part_count(each.size, total, wanted)
        pieces += _cut(each, count)
    return pieces


def _part_count(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _cut(whole: Range, count: int) -> list[Range]:
    pieces, begin, left = [], whole.start, whole.size
    for index in range(count):
        size = left // (count - index)
        left -= size
        if size > 0:
            pieces.append(Range(whole.partition, begin, begin + size))
        begin += size
    return pieces
