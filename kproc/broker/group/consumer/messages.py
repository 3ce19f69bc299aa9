"""Requests and responses of consumer groups, the same for all versions (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.security.principal import ANONYMOUS, Identity


class ConsumerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A ConsumerGroupHeartbeat request. None, or a timeout of -1: the value of the member's last request holds."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None  # The partitions that the member owns now.
    client_id: str = ""
    client_host: str = ""
    client: Identity = Identity("", ANONYMOUS)  # An expression matches only topics that it may describe.

    @property
    def is_full(self) -> bool:
        """True if the request has a rebalance timeout, a subscription and the owned partitions.

        A client sends all of them when it joins, and in its first request after an error.
        """
        has_subscription = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None


class ConsumerHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """A ConsumerGroupHeartbeat response. `assignment` is None unless the member must learn it."""

    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


class DescribedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group in a ConsumerGroupDescribe response."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assignment: Assignment
    target: Assignment
    is_classic: bool


class DescribedConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group in a ConsumerGroupDescribe response."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


ConsumerHeartbeatReply = Callable[[ConsumerHeartbeatResult], None]
