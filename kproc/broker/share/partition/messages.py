"""Calls between the home of a share session and the owners of its partitions, and the structs of both sides.

The home calls owners one after the other, until it has records. If no owner has records, the home sends a watch to each
owner, and acquires again when one watch has ended. An acquire is replied to at once, an acknowledgement when it is
persisted. The home handles its own partitions with the functions that are registered for these calls, without a call.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from kproc.broker.calls.calls import Call, ForOwner, Reply
from kproc.wire.file_range import FileRange

# Error of a partition whose log is being transferred or opened, or whose state is being loaded. Only for calls, never
# for clients. A watch ends when records of the partition can be acquired.
OPENS_LATER: Final = -2

# Identifies a partition: (topic id, partition index). A plain tuple, because waiting ShareFetches have up to 200,000 of
# them, and the garbage collector stops tracking such tuples.
ShareKey = tuple[bytes, int]


class AcknowledgeType(IntEnum):
    """The ways in which a member acknowledges a record, with Kafka's numbers."""

    GAP = 0  # The offset has no record.
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # The member holds the record for another lock duration (KIP-1222).


class ShareHolder(msgspec.Struct, array_like=True, frozen=True):
    """A member's share session, which holds the records that it has acquired.

    session: unique for one opening of a session, also among the homes and their successors. The end of an old session
    must never release records of a newer session of the member.
    home: the Handler of the session. When it dies, owners release the records of its sessions.
    """

    group_id: str
    member_id: str
    session: int
    home: int


class AcknowledgeBatch(msgspec.Struct, array_like=True):
    """Acknowledgements of the offsets `first` to `last`.

    `types` has one type for all offsets, or one for each offset.
    """

    first: int
    last: int
    types: list[int]


class AcknowledgePart(msgspec.Struct, array_like=True):
    """One partition of a call, with the acknowledgements of its records."""

    key: ShareKey
    acknowledgements: list[AcknowledgeBatch]


class AcquireParts(ForOwner):
    """A call to acquire records of partitions in this order, within limits for all of them together.

    records_max: with `is_exact` (record_limit mode, KIP-1206) a hard limit. Otherwise the last batch may exceed it.
    batch_size: a range that is delivered for the first time ends with the batch in which it reaches so many records.
    0: such ranges are not divided.
    bytes_max: the first batch of records may exceed it if `can_exceed`, which is True while the response has no
    records.
    """

    holder: ShareHolder
    parts: list[ShareKey]
    records_max: int
    batch_size: int
    bytes_max: int
    is_exact: bool = False
    can_exceed: bool = True


class AcquiredRange(msgspec.Struct, array_like=True, frozen=True):
    """Offsets that a member has acquired, with their delivery count."""

    first: int
    last: int
    delivery_count: int


class PartResult(msgspec.Struct, array_like=True):
    """The error of a call for one partition, or 0."""

    error: int = 0
    error_message: str | None = None


class AcknowledgedPart(PartResult, array_like=True):
    """The result of the acknowledgements of one partition."""


class AcquiredPart(PartResult, array_like=True):
    """The result for one partition: an error, or the acquired records, of which there can be none.

    The ranges of the files can have more records than the acquired ones, as in Kafka. The client skips the other
    records.
    """

    ranges: list[FileRange] = []
    bytes: int = 0
    acquired: list[AcquiredRange] = []

    @property
    def record_count(self) -> int:
        """The number of acquired offsets."""
        return sum(each.last - each.first + 1 for each in self.acquired)


class PartsAcquired(Reply):
    """An owner's results, in the order of the call's parts.

    lock_ms: how long the group's members hold records (ShareFetch's acquisition_lock_timeout_ms).
    known: the version of the owner's metadata, for parts with NOT_LEADER_OR_FOLLOWER, which another Handler owns.
    """

    parts: list[AcquiredPart]
    lock_ms: int
    known: int


class AcknowledgeParts(ForOwner):
    """A call to acknowledge records of partitions."""

    holder: ShareHolder
    parts: list[AcknowledgePart]


class PartsAcknowledged(Reply):
    """An owner's results, in the order of the call's parts. `lock_ms` and `known` are as in PartsAcquired."""

    parts: list[AcknowledgedPart]
    lock_ms: int
    known: int


class WatchParts(ForOwner):
    """A call that is replied to when records of the partitions can be acquired. It acquires nothing.

    It is also replied to when its deadline is reached or it is cancelled.

    watch: the calling Handler and a number, as in a Fetch's watch. `fetch_owners.CANCEL_WATCH` ends it.
    bytes_min: the watch ends when the partitions together have so many bytes of records that can be acquired.
    deadline_ns: the time of its end in any case, in the monotonic clock that all processes of a host share.
    """

    watch: tuple[int, int]
    group_id: str
    parts: list[ShareKey]
    deadline_ns: int
    bytes_min: int = 1


class ReleaseHolder(ForOwner):
    """A call to release all records that a session holds, because it has ended."""

    holder: ShareHolder


SHARE_ACQUIRE: Final = Call("share_acquire", AcquireParts, PartsAcquired)
SHARE_ACKNOWLEDGE: Final = Call("share_acknowledge", AcknowledgeParts, PartsAcknowledged)
SHARE_WATCH: Final = Call("share_watch", WatchParts, Reply)
SHARE_RELEASE: Final = Call("share_release", ReleaseHolder, Reply)
