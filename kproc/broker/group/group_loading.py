"""GroupLoading: replays the records of one partition of `__consumer_offsets`, and builds its groups at the end.

A log has records of all group protocols. The type in a record's key says whose it is: types of the consumer protocol
(KIP-848), of share groups (KIP-932), of streams groups (KIP-1071), or offsets and classic groups.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from kproc.broker.coordinator.recorded_states import RecordedGroups
from kproc.broker.coordinator.rules import KnownTopics, Producer
from kproc.broker.coordinator.steps import Work
from kproc.broker.group.classic_groups import ClassicGroups
from kproc.broker.group.offsets import GroupOffsets
from kproc.broker.group.records import (
    CommittedOffset,
    GroupSnapshot,
    OffsetKey,
    UnknownGroupRecord,
    decode_record,
)

logger = logging.getLogger(__name__)

# Cost in units of about 1 us of the step that builds a group for offsets.
_BUILD_COST: Final = 25


class GroupLoading:
    """The load of one coordinator's log: it creates the groups of all protocols, and the committed offsets."""

    def __init__(
        self,
        classic: ClassicGroups,
        recorded: Sequence[RecordedGroups[Any, Any]],
        offsets: GroupOffsets,
    ) -> None:
        self._classic = classic
        self._recorded = recorded  # The groups of the other protocols.
        self._offsets = offsets
        self._unknown_types: set[int] = set()

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay the last record of a key. Skip a record of an unknown type. Raises Corrupt if it is damaged."""
        for groups in self._recorded:
            if key is not None and groups.codec.has(key):
                groups.replay(key, value)
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
        name, content = decoded
        if isinstance(name, OffsetKey):
            assert isinstance(content, CommittedOffset)
            self._offsets.put(name, content, offset, producer)
        else:
            assert isinstance(content, GroupSnapshot)
            self._classic.replay(name, content)

    def build_groups(self, topics: KnownTopics) -> Work:
        """Build the groups from the replayed records, in steps.

        Called after the replay of the whole log, because the records of a group are replayed in any order.
        """
        yield from self._classic.restore_replayed()
        for groups in self._recorded:
            yield from groups.restore_replayed()
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
