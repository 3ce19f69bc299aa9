"""A consumer group without a coordinator, and honest members of it, for tests of the rules (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.group.consumer.environment import ConsumerEnvironment
from kproc.broker.group.consumer.group import ConsumerGroup
from kproc.broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatResult
from kproc.broker.group.consumer.records import CONSUMER_RECORDS, ConsumerRecord
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.broker.group.consumer.topics import ConsumerCluster, TopicView
from kproc.broker.security.principal import Identity
from kproc.common.errors import ErrorCode, KafkaError

# A cluster without topics, for coordinators of groups that do not subscribe to any.
NO_TOPICS = ConsumerCluster(
    TopicView(ClusterImage), lambda _group_id: {}, lambda _expression, _client: frozenset()
)


def cluster_of(topics: Mapping[str, tuple[bytes, int]]) -> ConsumerCluster:
    """Return a cluster with these topics: name -> (id, number of partitions)."""
    image = ClusterImage()
    for name, (identity, count) in topics.items():
        partitions = [PartitionImage(index, index, 0, 0, 0) for index in range(count)]
        image.topics_by_name[name] = image.topics_by_id[identity] = TopicImage(
            name, identity, partitions, {}, [0]
        )
    configs = {"consumer.assignment.interval.ms": "0"}
    return ConsumerCluster(
        TopicView(lambda: image), lambda _group_id: configs, lambda _expression, _client: frozenset()
    )


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


@dataclass
class GroupRig:
    """A group, its log, its clock in ms and the topics of its cluster."""

    settings: dict[str, str] = field(default_factory=lambda: {"consumer.assignment.interval.ms": "0"})
    config: Config = field(default_factory=Config)
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.image = ClusterImage()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.broken_after: int | None = None  # The number of records after which appends fail.
        cluster = ConsumerCluster(TopicView(lambda: self.image), lambda _group_id: self.settings, self._match)
        self.environment = ConsumerEnvironment(cluster, self.config, lambda: self.now_ms, self._append)
        self.group = ConsumerGroup(self._make_state(), self.environment)

    def _make_state(self) -> ConsumerGroupState:
        return ConsumerGroupState("g", self.environment.cluster.member_memory)

    def _match(self, expression: str, _client: Identity) -> frozenset[str]:
        return frozenset(
            name for name in self.image.topics_by_name if name.startswith(expression.removesuffix(".*"))
        )

    def _append(self, group: ConsumerGroup, records: Sequence[ConsumerRecord]) -> None:
        # All records of one append are in one batch of the log, so they are in it together or not at all.
        if self.broken_after is not None and len(self.log) + len(records) > self.broken_after:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for record in records:
            self.log.append(CONSUMER_RECORDS.encode(*record))
            group.state.apply(*record)

    def set_topics(self, partition_counts: Mapping[str, int]) -> None:
        """Replace the topics of the cluster."""
        self.image.version += 1
        self.image.topics_by_name = {
            name: TopicImage(
                name,
                topic_id(name),
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
        state = self._make_state()
        for number, (key, value) in enumerate(self.log):
            if value is not None and last[key] == number:
                state.apply(*CONSUMER_RECORDS.decode(key, value))
        self.group = ConsumerGroup(state, self.environment)
        self.group.start_sessions(self.now_ms)

    def advance(self, ms: int) -> None:
        """Let time pass, and tick at each deadline."""
        end = self.now_ms + ms
        while (due := self.group.next_deadline_ms()) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.group.tick(self.now_ms)
        self.now_ms = end


@dataclass
class HonestMember:
    """A client that obeys: it owns what it was last told, and gives up at once what it must."""

    rig: GroupRig
    member_id: str
    topics: tuple[str, ...] = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: dict[bytes, frozenset[int]] = field(default_factory=dict)
    told: dict[bytes, frozenset[int]] | None = None  # The assignment of the last response, not yet obeyed.

    def heartbeat(self) -> ConsumerHeartbeatResult:
        """Obey the last response, send a heartbeat, and read the response."""
        if self.told is not None:
            self.owned, self.told = self.told, None
        result = self.rig.group.heartbeat(self.request(), self.rig.now_ms)
        self.epoch = result.member_epoch
        if result.assignment is not None:
            # Partitions that the response lacks are given up now, before the next request says so.
            self.told = dict(result.assignment)
        return result

    def request(self) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000,
            topic_names=self.topics,
            topic_regex=self.regex,
            assignor=self.assignor,
            owned=dict(self.owned) if self.epoch else {},
            client_id="client",
            client_host="/127.0.0.1",
        )

    def rejoin(self) -> ConsumerHeartbeatResult:
        """Abandon all partitions and join anew, as a fenced client does."""
        self.epoch, self.owned, self.told = 0, {}, None
        return self.heartbeat()

    def leave(self, epoch: int = -1) -> ConsumerHeartbeatResult:
        self.owned, self.told = {}, None
        request = ConsumerHeartbeat(
            member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        return self.rig.group.heartbeat(request, self.rig.now_ms)

    @property
    def partitions(self) -> set[tuple[bytes, int]]:
        """The partitions from which the client may read now."""
        told = self.owned if self.told is None else self.told
        return {
            (topic, partition) for topic, numbers in {**self.owned, **told}.items() for partition in numbers
        }


def settle(members: Sequence[HonestMember], rounds: int = 10) -> None:
    """Let all members send heartbeats until nothing changes any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.partitions) for member in members]
        for member in members:
            member.heartbeat()
        if before == [(member.epoch, member.partitions) for member in members]:
            return
    raise AssertionError(f"still moving after {rounds} rounds of heartbeats")
