"""A streams group without a coordinator, and honest members of it, for tests of the rules (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.group.consumer.topics import ConsumerCluster, TopicView
from kproc.broker.streams.environment import StreamsEnvironment
from kproc.broker.streams.group import StreamsGroup
from kproc.broker.streams.messages import StreamsHeartbeat, StreamsHeartbeatResult
from kproc.broker.streams.records import STREAMS_RECORDS, Endpoint, StreamsRecord
from kproc.broker.streams.state import StreamsGroupState
from kproc.broker.streams.tasks import MemberTasks, Task
from kproc.broker.streams.topology import KeyValue, StreamsTopic, Subtopology, Topology
from kproc.common.errors import ErrorCode, KafkaError

# Reads `t`, and keeps its state in `g-store-changelog`.
COUNT = Topology(
    1,
    (
        Subtopology(
            subtopology_id="0",
            source_topics=("t",),
            state_changelog_topics=(StreamsTopic("g-store-changelog"),),
        ),
    ),
)
ALL_TOPICS = {"t": 4, "g-store-changelog": 4}


def rejected(code: ErrorCode, text: str | None = None) -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(KafkaError, match=text, check=lambda error: error.code == code)


def codes(result: StreamsHeartbeatResult) -> list[int]:
    return [status.code for status in result.statuses]


def tasks(*partitions: int, subtopology: str = "0") -> frozenset[Task]:
    return frozenset((subtopology, partition) for partition in partitions)


@dataclass
class StreamsRig:
    """A group, its log, its clock in ms and the topics of its cluster."""

    settings: dict[str, str] = field(default_factory=dict)
    config: Config = field(
        default_factory=lambda: Config.build(
            {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
        )
    )
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.image = ClusterImage()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.broken_after: int | None = None  # The number of records after which appends fail.
        cluster = ConsumerCluster(
            TopicView(lambda: self.image), lambda _group_id: self.settings, lambda _expr, _client: frozenset()
        )
        self.environment = StreamsEnvironment(cluster, self.config, lambda: self.now_ms, self._append)
        self.group = StreamsGroup(StreamsGroupState("g"), self.environment)

    def _append(self, group: StreamsGroup, records: Sequence[StreamsRecord]) -> None:
        for record in records:
            if self.broken_after is not None and len(self.log) >= self.broken_after:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.log.append(STREAMS_RECORDS.encode(*record))
            group.state.apply(*record)

    def set_topics(self, partition_counts: Mapping[str, int]) -> None:
        """Replace the topics of the cluster."""
        self.image.version += 1
        self.image.topics_by_name = {
            name: TopicImage(
                name,
                name.encode().rjust(16, b"\0")[-16:],
                [PartitionImage(index, index, 0, 0, 0) for index in range(count)],
                {},
                [0],
            )
            for name, count in partition_counts.items()
        }
        self.image.topics_by_id = {topic.topic_id: topic for topic in self.image.topics_by_name.values()}

    def restart(self) -> None:
        """Load the group from its log, as CoordinatorReplay does: the last record of each key, and no tombstones."""
        last = {key: number for number, (key, _value) in enumerate(self.log)}
        state = StreamsGroupState("g")
        for number, (key, value) in enumerate(self.log):
            if value is not None and last[key] == number:
                state.apply(*STREAMS_RECORDS.decode(key, value))
        state.drop_incomplete_members()
        self.group = StreamsGroup(state, self.environment)
        self.group.start_sessions(self.now_ms)

    def advance(self, ms: int) -> None:
        """Let time pass, and tick at each deadline."""
        end = self.now_ms + ms
        while (due := self.group.next_deadline_ms()) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.group.tick(self.now_ms)
        self.now_ms = end


@dataclass
class HonestStreamsMember:
    """A client that obeys: it owns the tasks that it was last told, and gives up at once what it must."""

    rig: StreamsRig
    member_id: str
    topology: Topology = COUNT
    process_id: str = ""
    instance_id: str | None = None
    endpoint: Endpoint | None = None
    tags: tuple[KeyValue, ...] = ()
    epoch: int = 0
    owned: MemberTasks = field(default_factory=MemberTasks)
    told: MemberTasks | None = None  # The tasks of the last response, not yet obeyed.
    endpoint_epoch: int = 0

    def heartbeat(self, **changes: Any) -> StreamsHeartbeatResult:
        """Obey the last response, send a heartbeat, and read the response."""
        if self.told is not None:
            self.owned, self.told = self.told, None
        result = self.rig.group.heartbeat(self.request(**changes), self.rig.now_ms)
        self.epoch = result.member_epoch
        self.endpoint_epoch = result.endpoint_epoch
        if result.tasks is not None:
            self.told = result.tasks
        return result

    def request(self, **changes: Any) -> StreamsHeartbeat:
        fields: dict[str, Any] = {
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": 60_000,
            "topology": self.topology if self.epoch == 0 else None,
            "owned": self.owned if self.epoch else MemberTasks(),
            "process_id": self.process_id or self.member_id,
            "endpoint": self.endpoint,
            "client_tags": self.tags,
            "endpoint_epoch": self.endpoint_epoch,
            "client_id": "client",
            "client_host": "/127.0.0.1",
        }
        return StreamsHeartbeat(**{**fields, **changes})

    def leave(self, epoch: int = -1) -> StreamsHeartbeatResult:
        self.owned, self.told = MemberTasks(), None
        request = StreamsHeartbeat(member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id)
        return self.rig.group.heartbeat(request, self.rig.now_ms)


def settle(members: Sequence[HonestStreamsMember], rounds: int = 12) -> None:
    """Let all members send heartbeats until nothing changes any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.owned, member.told) for member in members]
        for member in members:
            member.heartbeat()
        if before == [(member.epoch, member.owned, member.told) for member in members]:
            return
    raise AssertionError(f"still moving after {rounds} rounds of heartbeats")
