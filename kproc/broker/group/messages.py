"""Requests and responses of groups: the fields of the APIs that the rules of groups use, for all versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.records import CommittedOffset, OffsetKey

D = TypeVar("D")

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A JoinGroup request, in one form for all versions of the API."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int  # v0 has none; it is the session timeout then.
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # Name and metadata, in the member's order of preference.
    requires_known_member_id: bool = False  # v4 and later (KIP-394). Static members need no id.
    supports_skip_assignment: bool = False  # v9 and later (KIP-814).


class JoinedMember(msgspec.Struct, frozen=True):
    """A member in the list that a JoinGroup response gives to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True):
    """A JoinGroup response. Without a chosen protocol, its name and type are None."""

    error_code: int
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # Only for the leader.


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A SyncGroup request. Protocol type and name are None before v5."""

    member_id: str
    group_instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()  # Member id and assignment, only of the leader.


class SyncResult(msgspec.Struct, frozen=True):
    """A SyncGroup response."""

    error_code: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(NamedTuple):
    """A Heartbeat request as its coordinator receives it."""

    member_id: str
    group_instance_id: str | None
    generation: int


class CommitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetCommit or TxnOffsetCommit request, reduced to the topics that exist."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int
    knows_unknown_group: bool  # v9 and later: the client knows GROUP_ID_NOT_FOUND.
    offsets: list[tuple[OffsetKey, CommittedOffset]]
    producer: Producer | None = None  # Set if the offsets are committed in this producer's transaction.


class LeavingMember(msgspec.Struct, frozen=True):
    """One member of a LeaveGroup request, named by its id, or by its instance id and an empty member id."""

    member_id: str
    group_instance_id: str | None = None


class LeftMember(msgspec.Struct, frozen=True):
    """One member of a LeaveGroup response, in the order of the request.

    The client id and the address with which the member had joined are only for the log. They are "" for a member that
    had not joined yet.
    """

    member_id: str
    group_instance_id: str | None
    error_code: int
    client_id: str = ""
    client_host: str = ""


class LeaveResult(msgspec.Struct, frozen=True):
    """A LeaveGroup response."""

    error_code: int
    members: tuple[LeftMember, ...] = ()


class DescribedMember(msgspec.Struct, frozen=True):
    """One member of a group in a DescribeGroups response."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(msgspec.Struct, frozen=True):
    """One group in a DescribeGroups response, with its members."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


class GroupDescription(msgspec.Struct, Generic[D], frozen=True):
    """The description of a group of one type, or the reason why no group of this type has the id."""

    group: D | None
    reason: str = ""


class GroupOverview(msgspec.Struct, frozen=True):
    """One group in a ListGroups response."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


JoinReply = Callable[[JoinResult], None]
SyncReply = Callable[[SyncResult], None]
LeaveReply = Callable[[LeaveResult], None]
