"""Requests to share groups and their responses, the same for all versions (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kproc.broker.share.membership.records import ShareAssignment, ShareSubscription


class ShareHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A ShareGroupHeartbeat request. None in a field means that the value of the member's last request still holds."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


class ShareHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """A ShareGroupHeartbeat response. `assignment` is None unless the member must learn it."""

    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: ShareAssignment | None = None


class DescribedShareMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group in a ShareGroupDescribe response."""

    member_id: str
    member_epoch: int
    subscription: ShareSubscription
    assignment: ShareAssignment


class DescribedShareGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group in a ShareGroupDescribe response."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedShareMember, ...]


class AlterShareOffsets(msgspec.Struct, frozen=True):
    """The new start offsets of an AlterShareGroupOffsets request: topic name -> partition -> offset."""

    offsets: dict[str, dict[int, int]]


class DeleteShareOffsets(msgspec.Struct, frozen=True):
    """The names of the topics of a DeleteShareGroupOffsets request."""

    topic_names: tuple[str, ...]


class ChangedShareOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change of start offsets: an error code for each partition.

    If the request as a whole is rejected, `error_code` is set and `codes` is empty.
    """

    error_code: int = 0
    error_message: str | None = None
    # Topic name -> partition -> error code. A deletion has one code for the whole topic, under partition -1, or an
    # empty dict if the group has no offsets of the topic.
    codes: dict[str, dict[int, int]] = {}


ShareHeartbeatReply = Callable[[ShareHeartbeatResult], None]
