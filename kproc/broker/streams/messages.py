"""Requests and responses of streams groups, independent of the version of the API (KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kproc.broker.streams.records import Endpoint, StreamsMember
from kproc.broker.streams.tasks import MemberTasks, Task
from kproc.broker.streams.topology import KeyValue, StreamsStatus, StreamsTopic, Topology

TaskOffsets = tuple[tuple[Task, int], ...]


class StreamsHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A StreamsGroupHeartbeat request. None in a field means that the value of the member's last request still holds.

    In a request that joins, None as the endpoint means that the member has none.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None  # Sent when the member joins.
    owned: MemberTasks | None = None  # The tasks that the member owns now.
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] | None = None
    task_offsets: TaskOffsets | None = None
    task_end_offsets: TaskOffsets | None = None
    is_shutdown: bool = False  # The member requests a shutdown of all members.
    endpoint_epoch: int = 0  # The version of the endpoints' partitions that the member knows.
    missing_hash: int = 0  # Hash of the group's missing internal topics that the client's Handler knows.
    knows_missing_tags: bool = True  # v1 and later: the client knows MISSING_CLIENT_TAGS.
    client_id: str = ""
    client_host: str = ""


class EndpointPartitions(msgspec.Struct, frozen=True):
    """The source partitions of the tasks of one member, by topic, for interactive queries."""

    endpoint: Endpoint
    active: tuple[tuple[str, tuple[int, ...]], ...]
    standby: tuple[tuple[str, tuple[int, ...]], ...]


class StreamsHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """A StreamsGroupHeartbeat response. `tasks` and `endpoints` are None if the member knows their values already."""

    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    statuses: tuple[StreamsStatus, ...] = ()
    tasks: MemberTasks | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    # The Handler of the client creates these internal topics. There can be 1,000, so they are not sent again to a
    # Handler whose request has their hash.
    missing_topics: tuple[StreamsTopic, ...] = ()
    missing_hash: int = 0  # Hash of the missing internal topics; 0 if none is missing.


class DescribedStreamsMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group in a StreamsGroupDescribe response."""

    member_id: str
    member_epoch: int
    metadata: StreamsMember
    assignment: MemberTasks
    target: MemberTasks
    task_offsets: TaskOffsets
    task_end_offsets: TaskOffsets


class DescribedStreamsGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group in a StreamsGroupDescribe response."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    topology: Topology
    members: tuple[DescribedStreamsMember, ...]


StreamsHeartbeatReply = Callable[[StreamsHeartbeatResult], None]
