"""TopicLeaders: the leaders of the partitions that a producer writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kproc.client import error_text
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.errors import RETRIABLE, ErrorCode
from kproc.spark.brokers import Cluster, Unreachable, pause
from kproc.spark.lane import Lane, ProduceFailed
from kproc.spark.sink_options import ProducerSettings
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID

# The first Metadata request can create the topic. Time, in ms, within which the topic and its leader must exist then.
UNKNOWN_TOPIC_MS: Final = 5_000


class TopicLeaders:
    """The known leaders by topic and partition. One BatchProducer owns it.

    on_node: called with the id and address of each broker in every Metadata response.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        clock: Clock,
        on_node: Callable[[int, tuple[str, int]], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._on_node = on_node
        self._leaders: dict[str, dict[int, int]] = {}
        self._asked_ns: dict[str, int] = {}
        self.is_stale = False
        """True if a leader has moved or was unreachable since all leaders in use were last requested."""

    def mark_stale(self) -> None:
        """Let the BatchProducer request the leaders of all partitions with unacknowledged batches again, soon."""
        self.is_stale = True

    def mark_fresh(self) -> None:
        """Mark the leaders of all partitions with unacknowledged batches as current."""
        self.is_stale = False

    def of(self, lane: Lane) -> int:
        """Return the node id of the lane's leader, or -1 if it has none."""
        return self._leaders.get(lane.topic, {}).get(lane.partition, -1)

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions, from Metadata of at most `metadata_age_ms`.

        The request can create the topic, if options and broker allow that. Raises ProduceFailed if the topic does not
        exist, or if it has no leader in time.
        """
        known = self._leaders.get(topic)
        age_ns = self._clock.now_ns() - self._asked_ns.get(topic, 0)
        if known is None or age_ns > self._settings.metadata_age_ms * NS_PER_MS:
            self._wait_topic(topic)
        return len(self._leaders[topic])

    def _wait_topic(self, topic: str) -> None:
        begin_ns = self._clock.now_ns()
        pause_ms = self._settings.backoff_ms
        while True:
            spent_ms = (self._clock.now_ns() - begin_ns) // NS_PER_MS
            try:
                code = self.request_metadata(
                    [topic], limit_ms=max(0, self._settings.max_block_ms - spent_ms)
                ).get(topic, 0)
            except Unreachable as error:
                raise ProduceFailed(
                    f"topic {topic}: {error} (kafka.max.block.ms={self._settings.max_block_ms})"
                ) from None
            if not code:
                return
            spent_ms = (self._clock.now_ns() - begin_ns) // NS_PER_MS
            # The Metadata request itself can create the topic. Until the topic exists, the broker answers
            # UNKNOWN_TOPIC_OR_PARTITION: retry.
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if not self._settings.creates_topics or spent_ms > UNKNOWN_TOPIC_MS:
                    raise ProduceFailed(
                        f"topic {topic} does not exist on {self._cluster.bootstrap}"
                        + (" and the broker does not create it" if self._settings.creates_topics else "")
                        + f": create it first (kproc topic create {topic})"
                    )
            elif code not in RETRIABLE or spent_ms > self._settings.max_block_ms:
                raise ProduceFailed(f"topic {topic}: {error_text(code)}")
            pause(pause_ms)
            pause_ms = min(2 * pause_ms, self._settings.backoff_ms_max)

    def request_metadata(self, topics: Iterable[str], *, limit_ms: int | None = None) -> dict[str, int]:
        """Request Metadata and store the leaders. Return the error codes of topics that have one.

        Raises Unreachable after `limit_ms`, by default `retry_ms` of the Cluster.
        """
        rows = [{"name": name, "topic_id": ZERO_UUID} for name in topics]
        fields = {"topics": rows, "allow_auto_topic_creation": self._settings.creates_topics}
        answer = self._cluster.call(ApiKey.METADATA, fields, limit_ms=limit_ms)
        for row in answer["brokers"]:
            self._on_node(row["node_id"], (row["host"], row["port"]))
        codes: dict[str, int] = {}
        for row in answer["topics"]:
            name, code = row["name"], row["error_code"]
            leaders = {each["partition_index"]: each["leader_id"] for each in row["partitions"]}
            if code or not leaders:
                codes[name] = code or ErrorCode.LEADER_NOT_AVAILABLE
                continue
            self._leaders[name] = leaders
            self._asked_ns[name] = self._clock.now_ns()
        return codes
