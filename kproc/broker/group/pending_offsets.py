"""The offsets that groups have committed in transactions which are still open, by producer id.

Nobody is shown them: a marker moves them to the committed ones, or drops them. Only what is in the log is in here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproc.broker.group.records import CommittedOffset, OffsetKey

TopicPartition = tuple[str, int]


class PendingOffsets:
    """Part of GroupOffsets."""

    __slots__ = ("_by_producer", "_producers")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, CommittedOffset]] = {}
        # Of each partition that a group has pending offsets of: the producers.
        self._producers: dict[str, dict[TopicPartition, set[int]]] = {}

    def put(self, producer_id: int, key: OffsetKey, value: CommittedOffset) -> None:
        """A commit was appended in a producer's open transaction."""
        self._by_producer.setdefault(producer_id, {})[key] = value
        partitions = self._producers.setdefault(key.group_id, {})
        partitions.setdefault((key.topic, key.partition), set()).add(producer_id)

    def remove(self, key: OffsetKey) -> None:
        """A tombstone was appended: of whatever transaction, they are gone."""
        for producer_id in tuple(self._producers.get(key.group_id, {}).get((key.topic, key.partition), ())):
            offsets = self._by_producer[producer_id]
            del offsets[key]
            if not offsets:
                del self._by_producer[producer_id]
            self._remove_producer(producer_id, key)

    def pop(self, producer_id: int) -> dict[OffsetKey, CommittedOffset]:
        """The producer's transaction has ended: its offsets are no longer pending."""
        offsets = self._by_producer.pop(producer_id, {})
        for key in offsets:
            self._remove_producer(producer_id, key)
        return offsets

    def _remove_producer(self, producer_id: int, key: OffsetKey) -> None:
        partitions = self._producers[key.group_id]
        producers = partitions[key.topic, key.partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[key.topic, key.partition]
        if not partitions:
            del self._producers[key.group_id]

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Return True if an open transaction may change the offset of a partition."""
        return (topic, partition) in self._producers.get(group_id, ())

    def has_group(self, group_id: str) -> bool:
        """Return True if an open transaction has an offset of the group."""
        return group_id in self._producers

    def group_ids(self) -> list[str]:
        """The groups that have any."""
        return list(self._producers)

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Every partition that the group has a pending offset of."""
        return [OffsetKey(group_id, *partition) for partition in self._producers.get(group_id, ())]

    def items(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        """All of them; a key may come several times, for several producers."""
        for offsets in self._by_producer.values():
            yield from offsets.items()
