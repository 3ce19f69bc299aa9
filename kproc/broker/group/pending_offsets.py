"""The offsets that groups have committed in open transactions, by producer id (KIP-98).

No response shows them. A marker commits or drops them. Like the committed offsets, their records are in the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from kproc.broker.group.offset_memory import OffsetMemory
from kproc.broker.group.records import CommittedOffset, OffsetKey

TopicPartition = tuple[str, int]


class PendingOffsets:
    """The pending offsets of one coordinator. Part of GroupOffsets."""

    __slots__ = ("_by_producer", "_memory", "_producers")

    def __init__(self, memory: OffsetMemory) -> None:
        self._memory = memory
        self._by_producer: dict[int, dict[OffsetKey, CommittedOffset]] = {}
        # By group and partition, the producers with a pending offset.
        self._producers: dict[str, dict[TopicPartition, set[int]]] = {}

    def put(self, producer_id: int, key: OffsetKey, value: CommittedOffset) -> None:
        """Store an offset that was appended in a producer's open transaction."""
        offsets = self._by_producer.setdefault(producer_id, {})
        self._memory.replace(offsets.get(key), value)
        offsets[key] = value
        partitions = self._producers.get(key.group_id)
        if partitions is None:
            partitions = self._producers[key.group_id] = {}
            self._memory.add_group(key.group_id)
        partitions.setdefault((key.topic, key.partition), set()).add(producer_id)

    def find(self, producer_id: int, key: OffsetKey) -> CommittedOffset | None:
        """Return the offset of a partition in a producer's open transaction, or None."""
        return self._by_producer.get(producer_id, {}).get(key)

    def count_with(self, producer_id: int, keys: Iterable[OffsetKey]) -> int:
        """Return the number of offsets that a producer's open transaction has after these are added."""
        known = self._by_producer.get(producer_id, {})
        return len(known) + sum(key not in known for key in keys)

    def remove(self, key: OffsetKey) -> None:
        """Remove an offset from all open transactions, because a tombstone was appended."""
        # Copy the set, because the loop removes producers from it.
        for producer_id in tuple(self._producers.get(key.group_id, {}).get((key.topic, key.partition), ())):
            offsets = self._by_producer[producer_id]
            self._memory.replace(offsets.pop(key), None)
            if not offsets:
                del self._by_producer[producer_id]
            self._remove_producer(producer_id, key)

    def pop(self, producer_id: int) -> dict[OffsetKey, CommittedOffset]:
        """Remove and return the offsets of a producer, whose transaction has ended."""
        offsets = self._by_producer.pop(producer_id, {})
        for key, value in offsets.items():
            self._memory.replace(value, None)
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
            self._memory.remove_group(key.group_id)

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Return True if an open transaction may change a group's offset of a partition."""
        return (topic, partition) in self._producers.get(group_id, ())

    def has_group(self, group_id: str) -> bool:
        """Return True if an open transaction has an offset of the group."""
        return group_id in self._producers

    def group_ids(self) -> list[str]:
        """Return the groups that have pending offsets."""
        return list(self._producers)

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Return the keys of a group's pending offsets."""
        return [OffsetKey(group_id, *partition) for partition in self._producers.get(group_id, ())]

    def values_of(self, key: OffsetKey) -> list[CommittedOffset]:
        """Return the pending offsets of a partition, one for each producer with an open transaction."""
        producers = self._producers.get(key.group_id, {}).get((key.topic, key.partition), ())
        return [self._by_producer[producer_id][key] for producer_id in producers]
