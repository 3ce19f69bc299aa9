"""The committed offsets of the groups of one `__consumer_offsets` partition, and when they expire.

The tables have only offsets whose records are in the log: the coordinator changes them after an append. Offsets of open
transactions are in pending_offsets.py. When a transaction commits, another commit of the same partition may have come
after its own. As in Kafka, the later one in the log counts (KAFKA-14505), so each offset has the offset of its record.

The rules are those of Kafka's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from kproc.broker.coordinator.memory_limit import MemoryLimit
from kproc.broker.coordinator.rules import DeletedTopics, KnownTopics, Producer
from kproc.broker.group.offset_memory import OffsetMemory, bytes_of_offset
from kproc.broker.group.pending_offsets import PendingOffsets
from kproc.broker.group.records import NO_EPOCH, NO_EXPIRY, CommittedOffset, OffsetKey
from kproc.wire.primitives import ZERO_UUID

# (topic, commit timestamp) -> the wall time in ms from which its retention counts. None: it does not expire now.
ExpiresFrom = Callable[[str, int], int | None]
ByPartition = dict[int, CommittedOffset]
ByTopic = dict[str, ByPartition]

_NOTHING: Final[Mapping[str, ByPartition]] = {}


class GroupOffsets:
    """The committed and pending offsets of one coordinator."""

    __slots__ = ("_by_group", "_memory", "hidden", "pending")

    def __init__(self, limit: MemoryLimit) -> None:
        self._by_group: dict[str, ByTopic] = {}
        self._memory = memory = OffsetMemory(limit)
        self.pending = PendingOffsets(memory)
        # Deleted topics whose offsets are being removed in steps. No response shows these offsets any more.
        self.hidden: DeletedTopics | None = None

    def __len__(self) -> int:
        return sum(len(partitions) for topics in self._by_group.values() for partitions in topics.values())

    def group_ids(self) -> list[str]:
        """Return the groups that have committed or pending offsets."""
        return [*self._by_group, *(each for each in self.pending.group_ids() if each not in self._by_group)]

    def of_group(self, group_id: str) -> Mapping[str, ByPartition]:
        """Return a group's committed offsets by topic and partition: the table itself, which later commits change."""
        return self._by_group.get(group_id, _NOTHING)

    def count(self, group_id: str) -> int:
        """Return the number of a group's committed offsets, without pending ones."""
        return sum(map(len, self.of_group(group_id).values()))

    def has_more_than(self, group_id: str, count: int) -> bool:
        """Return True if a group has more than `count` committed offsets."""
        sums = accumulate(len(partitions) for partitions in self.of_group(group_id).values())
        return any(each > count for each in sums)

    def get(
        self, group_id: str, topic: str, partition: int, topic_id: bytes = ZERO_UUID
    ) -> CommittedOffset | None:
        """Return a committed offset of a partition, or None.

        If `topic_id` is given, an offset of an earlier topic with the same name does not count. An offset of a deleted
        topic that is being removed never counts.
        """
        found = self._find(group_id, topic, partition)
        if found is not None and self.is_hidden(topic, found):
            return None
        # KIP-848 named topics by id in OffsetFetch, so that a consumer does not get an offset of a deleted topic of the
        # same name. An offset of an older commit has no topic id and matches any.
        if found is None or ZERO_UUID in (topic_id, found.topic_id) or topic_id == found.topic_id:
            return found
        return None

    def _find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    def is_hidden(self, topic: str, value: CommittedOffset) -> bool:
        """Return True if an offset is of a deleted topic and will be removed."""
        return self.hidden is not None and self.hidden.has(topic, value.topic_id)

    def put(
        self, key: OffsetKey, value: CommittedOffset, record_offset: int, producer: Producer | None
    ) -> None:
        """Store an offset whose record was appended at `record_offset`, pending if it has a `producer`."""
        value.record_offset = record_offset
        if producer is None:
            self._store(key, value)
        else:
            self.pending.put(producer.producer_id, key, value)

    def _store(self, key: OffsetKey, value: CommittedOffset) -> None:
        topics = self._by_group.get(key.group_id)
        if topics is None:
            topics = self._by_group[key.group_id] = {}
            self._memory.add_group(key.group_id)
        partitions = topics.setdefault(key.topic, {})
        self._memory.replace(partitions.get(key.partition), value)
        partitions[key.partition] = value

    def has_room(
        self, offsets: Collection[tuple[OffsetKey, CommittedOffset]], producer: Producer | None
    ) -> bool:
        """Return True if the Handler has memory for the offsets of one group, pending ones if they have a `producer`.

        Offsets of partitions for which the group has one may use the limit's reserve, for longer metadata and for open
        transactions. Without longer metadata, a commit outside of a transaction replaces them, and always has room.
        """
        limit = self._memory.limit
        added = sum(bytes_of_offset(value) for _key, value in offsets)
        # Look for known offsets only if there is no room for all, because a request can have many.
        if limit.used_bytes + added <= limit.bytes_max:
            return True
        last = dict(offsets)  # If a request repeats a partition, its last offset counts.
        new = sum(bytes_of_offset(value) for key, value in last.items() if not self.is_known(key))
        replaced = (self._replaced_by(key, producer) for key in last)
        growth = sum(map(bytes_of_offset, last.values()))
        growth -= sum(bytes_of_offset(value) for value in replaced if value is not None)
        return limit.has_room(new) and limit.has_room(growth, with_reserve=True)

    def _replaced_by(self, key: OffsetKey, producer: Producer | None) -> CommittedOffset | None:
        """Return the offset that a commit replaces when its record is appended."""
        if producer is None:
            return self._find(key.group_id, key.topic, key.partition)
        return self.pending.find(producer.producer_id, key)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or discard the pending offsets of a producer, because the marker of its transaction was appended."""
        for key, value in self.pending.pop(producer_id).items():
            known = self._find(key.group_id, key.topic, key.partition)
            # A commit outside of the transaction that is later in the log is newer than the pending one, so it stays.
            if is_commit and (known is None or value.record_offset > known.record_offset):
                self._store(key, value)

    def is_known(self, key: OffsetKey) -> bool:
        """Return True if the group has a committed or pending offset of the partition."""
        return self.get(key.group_id, key.topic, key.partition) is not None or self.pending.has(
            key.group_id, key.topic, key.partition
        )

    def remove(self, key: OffsetKey) -> None:
        """Remove an offset, because a tombstone was appended. Pending ones are earlier in the log, so they go, too."""
        self.pending.remove(key)
        topics = self._by_group.get(key.group_id)
        partitions = topics.get(key.topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        self._memory.replace(partitions.pop(key.partition, None), None)
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self._by_group[key.group_id]
            self._memory.remove_group(key.group_id)

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Return the keys of all committed and pending offsets of a group, for their tombstones."""
        keys = [
            OffsetKey(group_id, topic, partition)
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        ]
        known = set(keys)
        return keys + [key for key in self.pending.keys_of(group_id) if key not in known]

    def keys_of_deleted(self, group_id: str, topics: DeletedTopics) -> list[OffsetKey]:
        """Return the keys of a group's offsets of deleted topics."""
        keys = [
            OffsetKey(group_id, topic, partition)
            for topic, partitions in self.of_group(group_id).items()
            for partition, value in partitions.items()
            if topics.has(topic, value.topic_id)
        ]
        known = set(keys)
        pending = self.pending.keys_of(group_id)
        return keys + [key for key in pending if key not in known and self.is_deleted(key, topics)]

    def is_deleted(self, key: OffsetKey, topics: DeletedTopics) -> bool:
        """Return True if an offset is of a deleted topic. A pending one counts if none is committed."""
        committed = self._find(key.group_id, key.topic, key.partition)
        if committed is not None:
            return topics.has(key.topic, committed.topic_id)
        return any(topics.has(key.topic, value.topic_id) for value in self.pending.values_of(key))

    def count_by_name(self, group_id: str, topics: KnownTopics) -> int:
        """Remove unknown topic ids from a group's offsets, which then belong to the topics' names. Return their number.

        Such offsets come from the files of another broker, or the metadata were restored. A leader epoch above the
        partition's is removed, too. A consumer that got it would wait for metadata with that epoch, and never read the
        partition. The partition's epoch rises only when its log is opened.
        """
        count = 0
        for topic, partitions in self.of_group(group_id).items():
            known_ids = ZERO_UUID, topics.id_of(topic)
            for partition, value in partitions.items():
                count += _count_by_name(topic, partition, value, topics, known_ids)
        for key in self.pending.keys_of(group_id):
            known_ids = ZERO_UUID, topics.id_of(key.topic)
            for value in self.pending.values_of(key):
                count += _count_by_name(key.topic, key.partition, value, topics, known_ids)
        return count

    def release_memory(self) -> None:
        """Remove these offsets from the memory count, because the coordinator resigns. They can be freed much later."""
        self._memory.release()

    def discard_group(self) -> bool:
        """Discard the offsets of any one group, so that their memory is freed in steps.

        Return False if no group is left.
        """
        if self._by_group:
            self._by_group.popitem()
        return bool(self._by_group)

    def expired_of(
        self,
        group_id: str,
        topics: Iterable[str],
        expires_from: ExpiresFrom,
        *,
        now_ms: int,
        retention_ms: int,
    ) -> Iterator[OffsetKey]:
        """Yield the offsets of a group in some topics whose retention has expired (KIP-211).

        The group's state decides when retention begins.

        If a client set an expiry itself (OffsetCommit v2-4), that replaces the retention. An offset that an open
        transaction may replace does not expire before the transaction has ended.
        """
        by_topic = self.of_group(group_id)
        for topic in topics:
            for partition, value in by_topic.get(topic, {}).items():
                since_ms = expires_from(topic, value.commit_timestamp_ms)
                # KIP-211: the retention of an offset begins when the group stops to consume its topic, and not with the
                # commit.
                if since_ms is None:
                    continue
                ends_ms = since_ms + retention_ms
                if value.expire_timestamp_ms != NO_EXPIRY:
                    ends_ms = value.expire_timestamp_ms
                if now_ms >= ends_ms and not self.pending.has(group_id, topic, partition):
                    yield OffsetKey(group_id, topic, partition)


def _count_by_name(
    topic: str,
    partition: int,
    value: CommittedOffset,
    topics: KnownTopics,
    known_ids: tuple[bytes | None, ...],
) -> int:
    if value.leader_epoch > topics.epoch_of(topic, partition):
        value.leader_epoch = NO_EPOCH
    # The offset of a topic that was deleted keeps its id, by which it is removed.
    if value.topic_id in known_ids or value.topic_id in topics.deleted:
        return 0
    value.topic_id = ZERO_UUID
    return 1
