"""The committed offsets of the groups of one `__consumer_offsets` partition, and when they expire.

Only what is in the log is in here: the coordinator puts and removes after it has appended. Offsets of transactions that
are still open stand beside, in pending_offsets.py. When one of them commits, other commits may have come after its own:
as in Kafka the one that is later in the log holds, so each is kept with its record's offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from kproc.broker.coordinator.rules import KnownTopics, Producer
from kproc.broker.group.pending_offsets import PendingOffsets
from kproc.broker.group.records import NO_EPOCH, NO_EXPIRY, CommittedOffset, OffsetKey
from kproc.wire.primitives import ZERO_UUID

# (topic, commit timestamp) -> the wall time from which the retention of its offset counts, None: not now.
ExpiresFrom = Callable[[str, int], int | None]
ByPartition = dict[int, CommittedOffset]
ByTopic = dict[str, ByPartition]

_NOTHING: Final[Mapping[str, ByPartition]] = {}


class GroupOffsets:
    """One instance in each coordinator."""

    __slots__ = ("_by_group", "pending")

    def __init__(self) -> None:
        self._by_group: dict[str, ByTopic] = {}
        self.pending = PendingOffsets()

    def __len__(self) -> int:
        return sum(len(partitions) for topics in self._by_group.values() for partitions in topics.values())

    def group_ids(self) -> list[str]:
        """The groups that have any, be they only pending."""
        return [*self._by_group, *(each for each in self.pending.group_ids() if each not in self._by_group)]

    def of_group(self, group_id: str) -> Mapping[str, ByPartition]:
        """Topic -> partition -> offset. Not to be kept: it is the table itself."""
        return self._by_group.get(group_id, _NOTHING)

    def has_more_than(self, group_id: str, count: int) -> bool:
        """Return True if a group has more offsets than `count`."""
        sums = accumulate(len(partitions) for partitions in self.of_group(group_id).values())
        return any(each > count for each in sums)

    def get(
        self, group_id: str, topic: str, partition: int, topic_id: bytes = ZERO_UUID
    ) -> CommittedOffset | None:
        """One offset. With a topic id, none that was committed for an earlier topic of that name (KIP-848)."""
        found = self.of_group(group_id).get(topic, {}).get(partition)
        if found is None or ZERO_UUID in (topic_id, found.topic_id) or topic_id == found.topic_id:
            return found
        return None

    def put(
        self, key: OffsetKey, value: CommittedOffset, record_offset: int, producer: Producer | None
    ) -> None:
        """A commit was appended at that offset, in that producer's transaction."""
        value.record_offset = record_offset
        if producer is None:
            self._store(key, value)
        else:
            self.pending.put(producer.producer_id, key, value)

    def _store(self, key: OffsetKey, value: CommittedOffset) -> None:
        self._by_group.setdefault(key.group_id, {}).setdefault(key.topic, {})[key.partition] = value

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker was appended: its producer's pending offsets are committed, or gone."""
        for key, value in self.pending.pop(producer_id).items():
            known = self.get(key.group_id, key.topic, key.partition)
            if is_commit and (known is None or value.record_offset > known.record_offset):
                self._store(key, value)

    def is_known(self, key: OffsetKey) -> bool:
        """Return True if the group has a committed or pending offset of the partition."""
        return self.get(key.group_id, key.topic, key.partition) is not None or self.pending.has(
            key.group_id, key.topic, key.partition
        )

    def remove(self, key: OffsetKey) -> None:
        """A tombstone was appended. It takes pending ones along: what comes later in the log counts."""
        self.pending.remove(key)
        topics = self._by_group.get(key.group_id)
        partitions = topics.get(key.topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        partitions.pop(key.partition, None)
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self._by_group[key.group_id]

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Everything of one group, pending or not, for its tombstones."""
        keys = [
            OffsetKey(group_id, topic, partition)
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        ]
        known = set(keys)
        return keys + [key for key in self.pending.keys_of(group_id) if key not in known]

    def keys_of_deleted(self, topics: KnownTopics) -> list[OffsetKey]:
        """Return the keys of all offsets of topics whose deletion is recorded, even if the name is in use again.

        An offset without a topic id is identified by name. It is returned if the name was deleted and is not in use.
        """
        keys: dict[OffsetKey, None] = {}
        for group_id, by_topic in self._by_group.items():
            for topic, partitions in by_topic.items():
                is_gone = topic in topics.deleted_names and topics.id_of(topic) is None
                for partition, value in partitions.items():
                    if value.topic_id in topics.deleted or (is_gone and value.topic_id == ZERO_UUID):
                        keys[OffsetKey(group_id, topic, partition)] = None
        for key, value in self.pending.items():
            is_gone = key.topic in topics.deleted_names and topics.id_of(key.topic) is None
            if value.topic_id in topics.deleted or (is_gone and value.topic_id == ZERO_UUID):
                keys[key] = None
        return list(keys)

    def count_by_name(self, topics: KnownTopics) -> int:
        """Drop the topic id of every offset whose topic id is unknown. Return how many there are.

        Such offsets come from files of another broker, or the metadata were restored. A leader epoch above the
        partition's is dropped, too: a consumer that got it would wait for metadata with that epoch and never touch the
        partition, and only its opening raises the epoch.
        """
        count = 0
        for key, value in self._items():
            if value.leader_epoch > topics.epoch_of(key.topic, key.partition):
                value.leader_epoch = NO_EPOCH
            if value.topic_id not in (ZERO_UUID, topics.id_of(key.topic)):
                value.topic_id = ZERO_UUID
                count += 1
        return count

    def _items(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        """Yield all offsets, including pending ones."""
        for group_id, topics in self._by_group.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield OffsetKey(group_id, topic, partition), value
        yield from self.pending.items()

    def expired_of(
        self, group_id: str, expires_from: ExpiresFrom, *, now_ms: int, retention_ms: int
    ) -> list[OffsetKey]:
        """Return the offsets whose retention has expired (KIP-211). The group's state decides when retention begins.

        If a client set an expiry itself (OffsetCommit v2-4), that replaces the retention. An offset that an open
        transaction may replace does not expire before the transaction has ended.
        """
        expired: list[OffsetKey] = []
        for topic, partitions in self.of_group(group_id).items():
            for partition, value in partitions.items():
                since_ms = expires_from(topic, value.commit_timestamp_ms)
                if since_ms is None:
                    continue
                ends_ms = since_ms + retention_ms
                if value.expire_timestamp_ms != NO_EXPIRY:
                    ends_ms = value.expire_timestamp_ms
                if now_ms >= ends_ms and not self.pending.has(group_id, topic, partition):
                    expired.append(OffsetKey(group_id, topic, partition))
        return expired
