"""GroupLoading: replays the records of one partition of `__consumer_offsets`, and builds its groups at the end.

A log has records of all group protocols. The type in a record's key says whose it is: types of the consumer protocol
(KIP-848), of share groups (KIP-932), of streams groups (KIP-1071), or offsets and classic groups.
"""

from __future__ import annotations

import logging
from typing import Final

from kproc.broker.coordinator.rules import KnownTopics, Producer
from kproc.broker.coordinator.steps import Work
from kproc.broker.group.classic_groups import ClassicGroups
from kproc.broker.group.consumer.records import CONSUMER_RECORDS
from kproc.broker.group.consumer_groups import ConsumerGroups
from kproc.broker.group.offsets import GroupOffsets
from kproc.broker.group.records import (
    CommittedOffset,
    GroupSnapshot,
    OffsetKey,
    UnknownGroupRecord,
    decode_record,
)
from kproc.broker.share.membership.records import SHARE_RECORDS
from kproc.broker.share.membership.share_groups import ShareGroups
from kproc.broker.streams.records import STREAMS_RECORDS
from kproc.broker.streams.streams_groups import StreamsGroups

logger = logging.getLogger(__name__)

# Costs of steps in units of about 1 us: of building a group, and of a member of it.
_BUILD_COST: Final = 25
_MEMBER_COST: Final = 5


class GroupLoading:
    """The load of one coordinator's log: it creates the groups of all protocols, and the committed offsets."""

    def __init__(
        self,
        classic: ClassicGroups,
        consumers: ConsumerGroups,
        shares: ShareGroups,
        streams: StreamsGroups,
        offsets: GroupOffsets,
    ) -> None:
        self._classic = classic
        self._consumers = consumers
        self._shares = shares
        self._streams = streams
        self._offsets = offsets
        self._unknown_types: set[int] = set()

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay the last record of a key. Skip a record of an unknown type. Raises Corrupt if it is damaged."""
        if key is not None and CONSUMER_RECORDS.has(key):
            self._consumers.replay(key, value)
            return
        if key is not None and SHARE_RECORDS.has(key):
            self._shares.replay(key, value)
            return
        if key is not None and STREAMS_RECORDS.has(key):
            self._streams.replay(key, value)
            return
        decoded = decode_record(key, value)
        # A newer Kafka can write record types of group protocols that kproc does not have. Skip them, so that the
        # other groups can be loaded.
        if isinstance(decoded, UnknownGroupRecord):
            if decoded.key_type not in self._unknown_types:
                self._unknown_types.add(decoded.key_type)
                logger.warning(
                    "skipping records of __consumer_offsets with the unknown key type %d, as a newer Kafka writes them",
                    decoded.key_type,
                )
            return
        key_of, content = decoded
        if isinstance(key_of, OffsetKey):
            assert isinstance(content, CommittedOffset)
            self._offsets.put(key_of, content, offset, producer)
        else:
            assert isinstance(content, GroupSnapshot)
            self._classic.replay(key_of.group_id, content)

    def build_groups(self, topics: KnownTopics) -> Work:
        """Build the groups from the replayed records, in steps.

        Called after the replay of the whole log, because the records of a group are replayed in any order.
        """
        yield from self._classic.restore_replayed()
        for state in self._consumers.pop_replayed():
            self._consumers.add(state)
            yield _BUILD_COST + _MEMBER_COST * len(state.members)
        for share_state in self._shares.pop_replayed():
            self._shares.add(share_state)
            yield _BUILD_COST + _MEMBER_COST * len(share_state.members)
        for streams_state in self._streams.pop_replayed():
            self._streams.add(streams_state)
            yield _BUILD_COST + _MEMBER_COST * len(streams_state.members)
        count = 0
        # KIP-211: offsets without a group record belong to a tool or to a consumer that assigns its partitions by
        # itself. Create a group for them, by which the sweep finds them when they expire.
        for group_id in self._offsets.group_ids():
            self._classic.group_of_offsets(group_id)
            count += self._offsets.count_by_name(group_id, topics)
            yield _BUILD_COST + self._offsets.count(group_id)
        if count:
            logger.warning(
                "%d committed offsets have unknown topic ids, as after a copy of another cluster's files: using them "
                "for this cluster's topics of the same names",
                count,
            )
