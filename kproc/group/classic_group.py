"""ClassicGroup: one group of Kafka's classic protocol. Public face; see the methods' docstrings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kproc.group.config import GroupConfig
from kproc.group.messages import (
    DescribedGroup,
    GroupOverview,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    SyncReply,
    SyncRequest,
)
from kproc.group.snapshot import GroupSnapshot, Persist


class GroupEnvironment(msgspec.Struct):
    """What a group needs of its coordinator; one for all groups. `config` may be replaced while they live."""

    config: GroupConfig
    random_id: Callable[[], str]  # a new UUID's text, for member ids
    wall_ms: Callable[[], int]  # dates what is persisted; timers use the `now_ms` of the calls (monotonic)
    persist: Persist


def join_refusal(group_id: str, request: JoinRequest, config: GroupConfig, *, group_exists: bool) -> int:
    """Why a join is refused before there is a group to ask (INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT,
    UNKNOWN_MEMBER_ID), or NONE. The coordinator asks first, so that a refused join makes no group."""
    raise NotImplementedError


class ClassicGroup:
    """One group. Every `reply` is called exactly once, now or later, from whatever call made it possible."""

    group_type = "classic"

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        raise NotImplementedError

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, environment: GroupEnvironment, now_ms: int) -> ClassicGroup:
        """The group that a predecessor persisted, each member with a fresh session timeout."""
        raise NotImplementedError

    # Requests. `now_ms` is the coordinator's monotonic clock in milliseconds.

    def join(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        """JoinGroup; answered when the rebalance's join phase ends (or at once)."""
        raise NotImplementedError

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """SyncGroup; answered when the leader's assignment is written (or at once)."""
        raise NotImplementedError

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int) -> int:
        """Heartbeat: NONE, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID..."""
        raise NotImplementedError

    def leave(self, members: Sequence[LeavingMember], now_ms: int, reply: LeaveReply) -> None:
        """LeaveGroup, one or many; answered at once, or after the write if the group became Empty by it."""
        raise NotImplementedError

    def can_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        is_transactional: bool = False,
    ) -> int:
        """May these offsets be committed? Counts as a heartbeat of the member if they may."""
        raise NotImplementedError

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When to call `tick` at the latest; O(1). May lie before the real deadline (a tick then only moves it) and
        never after it. Heartbeats never bring it forward: ask again after join, sync, leave, tick and on_written."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> None:
        """Do what is due: end delayed joins and syncs, remove members whose session ended."""
        raise NotImplementedError

    def resign(self) -> None:
        """The group has another owner: answer all that wait with NOT_COORDINATOR. The object is dead afterwards."""
        raise NotImplementedError

    def kill(self) -> None:
        """The group was deleted or its offsets expired: Dead. What waits is answered COORDINATOR_NOT_AVAILABLE."""
        raise NotImplementedError

    # Views.

    @property
    def state_name(self) -> str:
        """Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        """No members and none pending a join phase: the state is Empty."""
        raise NotImplementedError

    @property
    def has_no_history(self) -> bool:
        """Empty, generation 0, no pending member: made by a request that was refused or by a simple consumer.
        It needs no tombstone, and may be dropped if it has no offsets."""
        raise NotImplementedError

    def describe(self) -> DescribedGroup:
        raise NotImplementedError

    def overview(self) -> GroupOverview:
        raise NotImplementedError

    def snapshot(self) -> GroupSnapshot:
        """What a write of the group's present state persists."""
        raise NotImplementedError

    def delete_refusal(self) -> int:
        """DeleteGroups: NONE, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        raise NotImplementedError

    def offset_delete_refusal(self) -> int:
        """OffsetDelete of the group as a whole: NONE, NON_EMPTY_GROUP (not a consumer group), GROUP_ID_NOT_FOUND."""
        raise NotImplementedError

    def is_subscribed_to(self, topic: str) -> bool:
        """OffsetDelete's GROUP_SUBSCRIBED_TO_TOPIC; False if the members' subscriptions are not known."""
        raise NotImplementedError

    def offset_expires_from_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """The wall time from which offsets.retention counts for an offset of `topic`; None: it does not expire now."""
        raise NotImplementedError
