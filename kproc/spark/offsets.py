"""Offsets of a query: their JSON form, limits for a batch, and the ranges of its tasks. No I/O, no Spark.

    {"clicks": {"0": 23, "1": 7}, "orders": {"0": 5}}     topics by name, partitions by number, ends exclusive

Spark's own connector writes this form into checkpoints and accepts it as `startingOffsets`. Spark compares documents
as text. If the same offsets came in another order, Spark would run empty batches forever. So they are always sorted.

A document also has notes. A note is a key that cannot be a topic's name, with an empty object as its value. Spark's own
connector reads such a key as a topic without partitions, so it can read these checkpoints.

    "@id:orders:5k2P...": {}      The topic's id in base64url. It differs after the topic was deleted and created again.
    "@start:orders:0:20": {}      Partition 0 of the query's first batch begins at offset 20.
    "@start": {}                  All partitions of the query's first batch begin at 0: they are new.

The document with the first batch's end has its start, too, because Spark stores none. After a crash Spark asks for the
initial offset again. `startingOffsets=latest` would then return a later one, and the records in between would be lost.
"""

from __future__ import annotations

import base64
import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kproc.broker.config.values import INT_MAX, LONG_MAX

NOTE_MARK: Final = "@"
"""First character of every note. Topic names cannot contain it."""
_ID_NOTE: Final = "@id"
_START_NOTE: Final = "@start"

TopicIds = dict[str, bytes]
"""Topic ids by name. Brokers before Kafka 2.8 have no topic ids; their topics are left out."""


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
        """Number of offsets. The number of records can be smaller, because logs have gaps."""
        return self.end - self.start


def to_json(
    offsets: Mapping[TopicPartition, int],
    *,
    ids: Mapping[str, bytes] | None = None,
    start: Mapping[TopicPartition, int] | None = None,
) -> dict[str, dict[str, int]]:
    """Return the offsets as the document that Spark stores, with its keys always in the same order.

    The document is {topic: {partition: offset}}. Topic ids and start offsets are notes in it: keys such as
    "@id:orders:5k2P..." with {} as value (module docstring).

    ids: topic ids by name. A topic without an offset gets no note. start: start offsets of a query's first batch; None
    for any other batch.
    """
    document: dict[str, dict[str, int]] = {}
    named = {partition.topic for partition in offsets}
    for topic, topic_id in sorted((ids or {}).items()):
        if topic in named:
            document[f"{_ID_NOTE}:{topic}:{base64.urlsafe_b64encode(topic_id).decode().rstrip('=')}"] = {}
    if start is not None and not start:
        document[_START_NOTE] = {}
    for (topic, partition), offset in sorted((start or {}).items()):
        document[f"{_START_NOTE}:{topic}:{partition}:{offset}"] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return document


def from_json(document: Mapping[str, Any]) -> Offsets:
    """Return the offsets of a document that to_json() made, without its notes (topic ids, start).

    Raise ValueError with the topic, the partition and the wrong value.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f'it is not of the form {{"topic": {{"0": 23}}}}: {document!r}')
    found: Offsets = {}
    for topic, rows in document.items():
        if topic.startswith(NOTE_MARK):
            continue
        if not isinstance(rows, Mapping):
            raise ValueError(f'"{topic}" is not of the form {{"0": 23, "1": -1}}: {rows!r}')
        for key, value in rows.items():
            if not str(key).isdecimal() or int(key) > INT_MAX:
                raise ValueError(f'"{key}" of "{topic}" is not a partition\'s number')
            # Reject JSON's `true`, because in Python a bool is an int.
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LONG_MAX:
                raise ValueError(f'"{topic}", partition {key}: {value!r} is not a whole number of 64 bits')
            found[TopicPartition(topic, int(key))] = value
    return found


def ids_of(document: Mapping[str, Any]) -> TopicIds:
    """Return the topic ids that the notes of an offset document have.

    Documents of earlier versions and of Spark's connector have none.
    """
    found: TopicIds = {}
    for key in document:
        word, *parts = key.split(":")
        if word == _ID_NOTE and len(parts) == 2:
            padding = "=" * (-len(parts[1]) % 4)
            found[parts[0]] = base64.urlsafe_b64decode(parts[1] + padding)
    return found


def start_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Return the offsets at which the batch that ends at `end` begins.

    The document `end` of a query's first batch has the batch's start, too. Every later batch begins at `start`, the end
    of the batch before it.
    """
    # The object is empty if the query began without partitions. Checkpoints of earlier versions have the start in it.
    recorded = end.get(_START_NOTE)
    if recorded is not None:
        return from_json(recorded)
    notes: Offsets = {}
    for key in end:
        word, *parts = key.split(":")
        if word == _START_NOTE and len(parts) == 3:
            notes[TopicPartition(parts[0], int(parts[1]))] = int(parts[2])
    # Leave out a topic that has another id in `end`: it was deleted and created again, so the offsets in `start` are
    # not of this topic.
    return notes or without_topics(from_json(start), recreated(ids_of(start), ids_of(end)))


def without_topics(offsets: Mapping[TopicPartition, int], topics: Collection[str]) -> Offsets:
    """Return a copy of the offsets without the partitions of these topics."""
    return {partition: offset for partition, offset in offsets.items() if partition.topic not in topics}


def recreated(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> list[str]:
    """Return the topics that have another id now: they were deleted and created again."""
    return sorted(topic for topic in before.keys() & now.keys() if before[topic] != now[topic])


# ---- the end of the next batch -------------------------------------------------------------------------


def limited(limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Return the end of a batch of about `limit` offsets. Each partition gets a share in proportion to its backlog.

    As in Spark's connector, each partition with a backlog gets at least one offset, so that none starves. The sum can
    therefore exceed the limit, by at most one offset for each partition.
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
    """Return the number of offsets between start and end, over all partitions."""
    return sum(max(0, last - start.get(partition, 0)) for partition, last in end.items())


# ---- ranges of the tasks ---------------------------------------------------------------------------------


def ranges_of(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
    """Return the non-empty ranges from start to end. A partition that is not in `start` begins at 0."""
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
    """Return a sentence for each partition that has lost records between start and end.

    start: offset up to which each partition was read. end: the partition's present end. log_starts: its log start
    offset; a missing one counts as 0.

    Gaps inside a log are not losses, because compaction and transactions leave gaps.
    """
    found = [
        f"{partition} does not exist or is not subscribed any more; it was read up to offset {start[partition]}"
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
                "the topic was created again, or its log was cut"
            )
        # A partition with an empty range loses no record, even if retention has removed the offset at which the range
        # starts.
        elif begin < log_start and begin < end[partition]:
            found.append(f"{partition} is to be read from offset {begin}, its log starts at {log_start}")
    return found


def split(
    ranges: Iterable[Range], *, records_max: int | None = None, partitions_min: int | None = None
) -> list[Range]:
    """Cut the ranges by the rules of Spark's connector, and return the pieces.

    records_max: largest number of offsets in a piece. partitions_min: approximate least number of pieces; large ranges
    are cut to reach it.

    The result depends on the arguments only, so that a batch that is run again has the same tasks.
    """
    result = [each for each in ranges if each.size > 0]
    if records_max is not None:
        result = [piece for each in result for piece in _cut(each, -(-each.size // records_max))]
    if partitions_min is None or len(result) >= partitions_min:
        return result
    total = sum(each.size for each in result)
    small = {each for each in result if _part_count(each.size, total, partitions_min) == 1}
    # Small ranges are not cut. Leave them out of the total, so that large ranges get their share of the pieces.
    total -= sum(each.size for each in small)
    wanted = max(partitions_min - len(small), 1)
    pieces: list[Range] = []
    for each in result:
        count = 1 if each in small else _part_count(each.size, total, wanted)
        pieces += _cut(each, count)
    return pieces


def combined(pieces: Sequence[Range], tasks_max: int | None) -> list[list[Range]]:
    """Return the ranges of each task. If there are more than `tasks_max` pieces, pieces share a task.

    Each task gets about as many offsets: the largest pieces are placed first, each into the task with the fewest. The
    result depends on the arguments only, so that a batch that is run again has the same tasks.
    """
    if tasks_max is None or len(pieces) <= tasks_max:
        return [[each] for each in pieces]
    tasks: list[list[Range]] = [[] for _ in range(tasks_max)]
    sizes = [(0, number) for number in range(tasks_max)]
    for each in sorted(pieces, key=lambda piece: (-piece.size, piece)):
        size, number = sizes[0]
        tasks[number].append(each)
        heapq.heapreplace(sizes, (size + each.size, number))
    return [sorted(task) for task in tasks]


def _part_count(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _cut(whole: Range, count: int) -> list[Range]:
    pieces, begin, left = [], whole.start, whole.size
    count = min(count, whole.size)
    for index in range(count):
        size = left // (count - index)
        left -= size
        pieces.append(Range(whole.partition, begin, begin + size))
        begin += size
    return pieces
