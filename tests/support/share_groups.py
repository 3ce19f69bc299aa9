"""A group coordinator with share groups over a cluster of topics, and a share coordinator in memory (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.group.consumer.topics import ConsumerCluster, TopicView
from kproc.broker.share.membership.group import ShareGroup
from kproc.broker.share.membership.messages import (
    AlterShareOffsets,
    ChangedShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from kproc.broker.share.membership.records import (
    NamedPartitions,
    ShareEpoch,
    ShareMemberState,
    ShareRecordType,
    ShareRecordValue,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
    ShareTopics,
)
from kproc.broker.share.membership.share_states import OnCodes, ShareStates
from kproc.broker.share.state.messages import InitializeState, parse_state_key
from kproc.broker.streams.messages import StreamsHeartbeat, StreamsHeartbeatResult
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import topic_id
from tests.support.group_coordinator_rig import Rig

TOPIC = bytes(range(16))
# Each record with everything that it can hold: type, member, value.
SAMPLES: tuple[tuple[ShareRecordType, str, ShareRecordValue], ...] = (
    (ShareRecordType.MEMBER, "m", ShareSubscription(client_id="c", client_host="/h", topic_names=("t", "u"))),
    (ShareRecordType.GROUP, "", ShareEpoch(7, -5)),
    (ShareRecordType.TARGET, "", ShareTargetEpoch(7, 1234)),
    (ShareRecordType.MEMBER_TARGET, "m", ShareTarget({TOPIC: frozenset({0, 3})})),
    (ShareRecordType.MEMBER_STATE, "m", ShareMemberState(7, 6, {TOPIC: frozenset({3})})),
    (
        ShareRecordType.TOPICS,
        "",
        ShareTopics(
            {TOPIC: NamedPartitions("t", frozenset({1}))},
            {TOPIC: NamedPartitions("t", frozenset({0}))},
            {TOPIC: "t"},
        ),
    ),
)


class MemoryStates:
    """The states of share partitions, by their keys. Calls wait in `calls` until `run`.

    Like the share coordinators, it rejects calls for topics that do not exist. `has_topic` gets a topic id.
    """

    def __init__(self, has_topic: Callable[[bytes], bool]) -> None:
        self._has_topic = has_topic
        self.states: dict[str, InitializeState] = {}
        self.calls: list[Callable[[], None]] = []
        self.error = 0
        self.errors: dict[str, int] = {}  # Errors of single share partitions.

    def functions(self) -> ShareStates:
        def initialize(items: Sequence[tuple[str, InitializeState]], on_codes: OnCodes) -> None:
            self.calls.append(lambda: on_codes([self._initialize(*each) for each in items]))

        def delete(keys: Sequence[str], on_codes: OnCodes) -> None:
            self.calls.append(lambda: on_codes([self._delete(each) for each in keys]))

        return ShareStates(initialize, delete, self.calls.append)

    def _initialize(self, key: str, state: InitializeState) -> int:
        if code := self._refusal(key):
            return code
        known = self.states.get(key)
        if known is not None and state.keeps_existing:
            return 0
        if known is not None and known.state_epoch > state.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        self.states[key] = state
        return 0

    def _delete(self, key: str) -> int:
        if code := self._refusal(key):
            return code
        self.states.pop(key, None)
        return 0

    def _refusal(self, key: str) -> int:
        is_known = self._has_topic(parse_state_key(key).topic_id)
        return self.error or self.errors.get(key, 0) or (0 if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def run(self) -> None:
        """Answer all calls that wait."""
        while self.calls:
            self.calls.pop(0)()


class ShareRig(Rig):
    """A coordinator with share groups that may be lost and loaded again from its log."""

    def __init__(self, partition_counts: Mapping[str, int] | None = None) -> None:
        self.image = ClusterImage()
        self.configs: dict[str, str] = {"share.assignment.interval.ms": "0"}
        self.states = MemoryStates(lambda topic_id: topic_id in self.image.topics_by_id)
        self.set_topics({"t": 2} if partition_counts is None else partition_counts)
        super().__init__(
            ConsumerCluster(
                TopicView(lambda: self.image),
                lambda _group_id: self.configs,
                lambda _expression, _client: frozenset(),
                self.states.functions(),
            )
        )
        self.topics = {name: topic_id(name) for name in self.image.topics_by_name}

    def set_topics(self, partition_counts: Mapping[str, int]) -> None:
        """Replace the topics of the cluster."""
        self.image.version += 1
        self.image.topics_by_name = {
            name: TopicImage(
                name, topic_id(name), [PartitionImage(each, each, 0, 0, 0) for each in range(count)], {}, [0]
            )
            for name, count in partition_counts.items()
        }
        self.image.topics_by_id = {topic.topic_id: topic for topic in self.image.topics_by_name.values()}

    def heartbeat(self, member_id: str, epoch: int, **more: Any) -> ShareHeartbeatResult:
        """Send a heartbeat. Let the log be synced, and the share coordinator answer."""
        if epoch == 0:
            more.setdefault("topic_names", ("t",))
        results: list[ShareHeartbeatResult] = []
        request = ShareHeartbeat(member_id=member_id, member_epoch=epoch, client_id="c", **more)
        self.coordinator.share_requests.heartbeat("g", request, results.append)
        self.run_all()
        return results[0]

    def change_offsets(self, request: AlterShareOffsets | DeleteShareOffsets) -> ChangedShareOffsets:
        """Alter or delete start offsets of the group. Let the log be synced, and the share coordinator answer."""
        results: list[ChangedShareOffsets] = []
        self.coordinator.share_requests.change_offsets("g", request, results.append)
        self.run_all()
        return results[0]

    def delete_group(self) -> int:
        """Delete the group. Let the log be synced, and the share coordinator answer. Return the error code."""
        codes: list[int] = []
        self.coordinator.deletion.delete("g", codes.append)
        self.run_all()
        return codes[0]

    def streams_heartbeat(
        self, member_id: str, epoch: int, group_id: str = "g", **fields: Any
    ) -> StreamsHeartbeatResult:
        """Send a StreamsGroupHeartbeat, and let the log be synced."""
        request = StreamsHeartbeat(member_id=member_id, member_epoch=epoch, **fields)
        results: list[StreamsHeartbeatResult] = []
        self.coordinator.handle_heartbeat(
            group_id,
            lambda: self.coordinator.streams.heartbeat(group_id, request),
            results.append,
            lambda code: StreamsHeartbeatResult(error_code=code),
        )
        self.log.sync()
        return results[0]

    def run_all(self) -> None:
        """Sync the log and answer calls until nothing waits any more."""
        for _ in range(10):
            self.log.sync()
            self.states.run()
        self.log.sync()

    def add_member(self, member_id: str, **more: Any) -> ShareHeartbeatResult:
        """Join, and send heartbeats until the member has the target's epoch."""
        result = self.heartbeat(member_id, 0, **more)
        more.pop("topic_names", None)
        return self.heartbeat(member_id, result.member_epoch, **more)

    def group(self, group_id: str = "g") -> ShareGroup:
        return self.coordinator.shares.get(group_id)
