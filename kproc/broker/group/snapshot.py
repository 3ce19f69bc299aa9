"""GroupSnapshot: the durable state of a group, with the fields of Kafka's GroupMetadataValue v3 and v4."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class MemberSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A member as of the last completed rebalance."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes  # its metadata for the chosen protocol
    assignment: bytes


class GroupSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A group as of the last completed rebalance. Without a protocol type it only stores offsets."""

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    current_state_timestamp_ms: int  # wall clock; -1: not known (value versions 0 and 1)
    members: tuple[MemberSnapshot, ...]


# (code, now_ms): NONE once the record is as durable as acks=all promises, else the append's error.
OnWritten = Callable[[int, int], None]
# Appends a snapshot. Returns True if it is in the log; otherwise the error was reported already. Writes of one group
# report in the order of the calls.
Persist = Callable[[GroupSnapshot, OnWritten], bool]
