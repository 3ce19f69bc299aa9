"""Cluster: a blocking client of a Kafka cluster for Spark's processes. It works with any broker, not only kproc's.

`kproc.client.Client` is one connection that never retries. A `Cluster` has one connection for each broker
(broker_clients.py) and knows which broker leads each partition. It retries failed connections, moved leaders and other
retriable errors, with growing pauses, until `retry_ms` is over. Thus it survives the restart of a broker. Other errors,
such as an offset out of range, are raised at once.

One thread owns a Cluster. `cluster_of` keeps one for each process, because Spark reuses its Python processes for later
tasks and batches.
"""

from __future__ import annotations

import atexit
import itertools
import os
import select
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kproc.client import ApiError, ClientError, error_text
from kproc.client.requests import (
    FetchLimits,
    fetch_fields,
    list_offsets_fields,
)
from kproc.common import errors
from kproc.common.clock import NS_PER_MS, SystemClock
from kproc.common.errors import ErrorCode
from kproc.common.reading import READ_UNCOMMITTED
from kproc.spark.broker_clients import CONNECTION_ERRORS, BrokerClients
from kproc.spark.broker_clients import Connecting as Connecting
from kproc.spark.broker_clients import parse_bootstrap as parse_bootstrap
from kproc.spark.offsets import TopicPartition
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID

NO_OFFSET: Final = -1

# The codes that Kafka's clients retry. A Cluster itself raises BROKER_NOT_AVAILABLE for a node that the newest Metadata
# does not contain.
RETRIABLE: Final = errors.RETRIABLE | {ErrorCode.BROKER_NOT_AVAILABLE}
# Time for which an unknown topic is retried. A broker that has just restarted may not know a topic yet, nor do all
# brokers know a topic that was just created.
UNKNOWN_TOPIC_MS: Final = 2_000
# The first version of Fetch that names topics by id (KIP-516).
_FETCH_BY_ID: Final = 13
_Answer = TypeVar("_Answer")


class Unreachable(ClientError):
    """A request still failed with a retriable error at its deadline, or at its last attempt."""


class UnknownTopic(ClientError):
    """The topic or the partition does not exist."""


class OffsetOutOfRange(ClientError):
    """The offset is below the log's start or above its end."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(f"offset {offset} of {partition} is not in its log")
        self.partition, self.offset = partition, offset


class TopicMetadata(NamedTuple):
    """A topic in a Metadata response. `leaders` maps partitions to nodes; -1 means that there is no leader."""

    name: str
    topic_id: bytes
    is_internal: bool
    leaders: dict[int, int]


class Fetched(NamedTuple):
    """The response to a Fetch of one partition. `records` are record batches, of which the last can be incomplete."""

    records: bytes | memoryview
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of aborted transactions; only with READ_COMMITTED."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@dataclass(slots=True)
class _Known:
    """Nodes and topics in the newest Metadata responses."""

    nodes: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)


class Cluster:
    """Connections to the brokers of one cluster. One thread owns it, and closes it unless it is from `cluster_of`."""

    def __init__(self, bootstrap: str, connecting: Connecting | None = None) -> None:
        self.bootstrap = bootstrap
        self.connecting = connecting or Connecting()
        self._seeds = parse_bootstrap(bootstrap)
        self._clients = BrokerClients(self.connecting)
        self._known = _Known()
        self._clock = SystemClock()

    def close(self) -> None:
        """Close every connection. The next request opens a new one."""
        self._clients.close()

    # -- topics

    def metadata(self, topics: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Return the given topics that exist, or all topics if `topics` is None. This never creates a topic."""
        rows = None if topics is None else [{"name": name, "topic_id": ZERO_UUID} for name in topics]
        if rows == []:
            return {}
        # Without this flag, a query of a misspelt topic would create that topic.
        fields = {"topics": rows, "allow_auto_topic_creation": False}

        def attempt() -> dict[str, TopicMetadata]:
            answer = self._request_any(ApiKey.METADATA, fields)
            return self._apply_metadata(answer, everything=rows is None)

        return self.retrying("Metadata", attempt)

    def _apply_metadata(self, answer: Mapping[str, Any], *, everything: bool) -> dict[str, TopicMetadata]:
        nodes = {row["node_id"]: (row["host"], row["port"]) for row in answer["brokers"]}
        if not nodes:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the response to Metadata names no broker")
        found: dict[str, TopicMetadata] = {}
        for row in answer["topics"]:
            name, code = row["name"], row["error_code"]
            # Leave the topic out of the result instead of raising: a topic that matches a pattern can be deleted
            # between two batches.
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._known.topics.pop(name, None)
                continue
            if code and code != ErrorCode.LEADER_NOT_AVAILABLE:
                raise ApiError(code, f"topic {name}: {error_text(code)}")
            # While a topic is being created it can have no partitions. Retry, because otherwise a query would treat it
            # as a topic without records.
            if not row["partitions"]:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} has no partition yet")
            leaders = {each["partition_index"]: each["leader_id"] for each in row["partitions"]}
            topic_id = row.get("topic_id", ZERO_UUID)
            found[name] = TopicMetadata(name, topic_id, row["is_internal"], dict(sorted(leaders.items())))
        self._known.nodes = nodes
        if everything:
            self._known.topics = dict(found)
        else:
            self._known.topics.update(found)
        return found

    def leader(self, partition: TopicPartition) -> int:
        """Return the node that leads the partition. Request Metadata if no leader is known."""
        topic = self._known.topics.get(partition.topic)
        if topic is None or topic.leaders.get(partition.partition, -1) < 0:
            topic = self.metadata([partition.topic]).get(partition.topic)
        if topic is None or partition.partition not in topic.leaders:
            # `retrying` repeats the look-up for UNKNOWN_TOPIC_MS and then raises UnknownTopic.
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} on {self.bootstrap}"
            )
        node = topic.leaders[partition.partition]
        if node < 0:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        return node

    def discard_leaders(self) -> None:
        """Discard the known leaders, so that the next request looks them up again."""
        self._known.topics.clear()

    # -- offsets

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition for EARLIEST, LATEST or a timestamp in ms.

        LATEST is the high watermark, or with READ_COMMITTED the last stable offset. The result is NO_OFFSET if no
        record has that timestamp or a later one.
        """
        found: dict[TopicPartition, int] = {}

        def attempt() -> dict[TopicPartition, int]:
            by_node: dict[int, dict[TopicPartition, int]] = {}
            for partition, timestamp in wanted.items():
                if partition not in found:
                    by_node.setdefault(self.leader(partition), {})[partition] = timestamp
            for node, part in by_node.items():
                self._list_offsets_of(node, part, isolation, found)
            return found

        return self.retrying("ListOffsets", attempt)

    def _list_offsets_of(
        self,
        node: int,
        part: Mapping[TopicPartition, int],
        isolation: int,
        found: dict[TopicPartition, int],
    ) -> None:
        fields = list_offsets_fields(part, isolation=isolation, timeout_ms=self.connecting.request_ms)
        answer = self._clients.request(self.address(node), ApiKey.LIST_OFFSETS, fields)
        problem: ClientError | None = None
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                partition = TopicPartition(topic["name"], row["partition_index"])
                if row["error_code"]:
                    problem = ApiError(
                        row["error_code"], f"ListOffsets of {partition}: {error_text(row['error_code'])}"
                    )
                else:
                    found[partition] = row["offset"]
        if problem is not None:
            raise problem
        # Reject a response that leaves out a requested partition, which would otherwise count as one without records.
        if lacking := part.keys() - found.keys():
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"the response to ListOffsets lacks {min(lacking)}"
            )

    # -- records

    def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        limits: FetchLimits,
        *,
        isolation: int = READ_UNCOMMITTED,
        topic_id: bytes | None = None,
    ) -> Fetched:
        """Return the records from the offset on: up to `max_bytes`, or one batch if that is larger, or none.

        The first batch may begin below the offset. Raises OffsetOutOfRange if the log does not have the offset. With
        `topic_id`, if the topic of that name has another id, this raises UnknownTopic instead of returning its records.
        Brokers before Kafka 3.1 cannot fetch by id and get the name.
        """
        fields = fetch_fields(partition, offset, limits, isolation=isolation, topic_id=topic_id)
        newest = None if topic_id is None else _FETCH_BY_ID

        def attempt() -> Fetched:
            answer = self._clients.request(
                self.address(self.leader(partition)), ApiKey.FETCH, fields, newest=newest
            )
            if answer.get("error_code"):
                code = answer["error_code"]
                raise ApiError(code, f"Fetch of {partition}: {error_text(code)}")
            return _fetched(answer["responses"][0]["partitions"][0], partition, offset)

        return self.retrying(f"Fetch of {partition}", attempt)

    # -- anything else

    def call(
        self,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        node: int | None = None,
        newest: int | None = None,
        limit_ms: int | None = None,
    ) -> dict[str, Any]:
        """Send a request to `node`, or to any broker, and return the response's fields. Retry if the connection fails.

        newest: the highest version to use. limit_ms: how long to retry; by default `retry_ms`.

        The caller handles the error codes in the response.
        """

        def attempt() -> dict[str, Any]:
            if node is None:
                return self._request_any(api_key, fields, newest=newest)
            return self._clients.request(self.address(node), api_key, fields, newest=newest)

        return self.retrying(api_key.name, attempt, limit_ms=limit_ms)

    def coordinator(self, key: str, *, of_transactions: bool = False, limit_ms: int | None = None) -> int:
        """Return the node that coordinates the group `key`, or with `of_transactions` the transactional id."""

        def attempt() -> int:
            kind = 1 if of_transactions else 0
            fields = {"key": key, "key_type": kind, "coordinator_keys": [key]}
            # Use version 3 at most: from version 4 on, the request has a list of keys instead of the field `key`
            # (KIP-699).
            answer = self._request_any(ApiKey.FIND_COORDINATOR, fields, newest=3)
            if answer["error_code"]:
                code = answer["error_code"]
                raise ApiError(code, f"look-up of the coordinator of {key}: {error_text(code)}")
            self._known.nodes[answer["node_id"]] = (answer["host"], answer["port"])
            return int(answer["node_id"])

        return self.retrying("FindCoordinator", attempt, limit_ms=limit_ms)

    def nodes(self) -> list[int]:
        """Return the node ids of all brokers, from a new Metadata response."""

        def attempt() -> list[int]:
            fields = {"topics": [], "allow_auto_topic_creation": False}
            self._apply_metadata(self._request_any(ApiKey.METADATA, fields), everything=False)
            return sorted(self._known.nodes)

        return self.retrying("Metadata", attempt)

    # -- how

    def retrying(self, what: str, attempt: Callable[[], _Answer], *, limit_ms: int | None = None) -> _Answer:
        """Call `attempt` and return its result.

        Repeat the call on retriable errors for `limit_ms`, by default `retry_ms`.

        what: the operation's name in error messages.

        Retriable are ConnectionFailed, ConnectionLost, AnswerTimeout and ApiErrors with a code of RETRIABLE. An unknown
        topic is retried for UNKNOWN_TOPIC_MS only. Each retry looks up the leaders again.

        Raises Unreachable, or UnknownTopic, when the time or the number of attempts is exhausted.
        """
        begin_ns = self._clock.now_ns()
        pause_ms = self.connecting.backoff_ms
        attempts_max = self.connecting.attempts_max
        for attempts in itertools.count(1):
            tried_ms = self.connecting.retry_ms if limit_ms is None else limit_ms
            try:
                return attempt()
            except CONNECTION_ERRORS as error:
                problem: ClientError = error
            except ApiError as error:
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    tried_ms = min(tried_ms, UNKNOWN_TOPIC_MS)
                elif error.code not in RETRIABLE:
                    raise
                problem = error
            # Every retriable error can mean that a leader has moved. So the next attempt requests Metadata again.
            self.discard_leaders()
            spent_ms = (self._clock.now_ns() - begin_ns) // NS_PER_MS
            is_over = spent_ms + pause_ms > tried_ms if attempts_max is None else attempts >= attempts_max
            if is_over:
                if isinstance(problem, ApiError) and problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(str(problem)) from problem
                raise Unreachable(f"{what} failed for {spent_ms / 1000:.0f} s: {problem}") from problem
            pause(pause_ms)
            pause_ms = min(2 * pause_ms, self.connecting.backoff_ms_max)
        raise AssertionError("bug in kproc: the loop of retries ended without a result")

    def address(self, node: int) -> tuple[str, int]:
        """Return host and port of a node. Raise ApiError (retriable) if the newest Metadata lacks the node."""
        address = self._known.nodes.get(node)
        if address is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node} is not in the newest Metadata")
        return address

    def _request_any(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, newest: int | None = None
    ) -> dict[str, Any]:
        addresses = (*self._known.nodes.values(), *self._seeds)
        return self._clients.request_any(addresses, api_key, fields, newest=newest)


def _fetched(row: Mapping[str, Any], partition: TopicPartition, offset: int) -> Fetched:
    code = row["error_code"]
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(partition, offset)
    if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
        # The topic had this id when the range was planned. Retry for UNKNOWN_TOPIC_MS, as for an unknown name, because
        # a broker that has just started may not know the id yet.
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the topic of {partition} was deleted, or deleted and created again",
        )
    if code:
        raise ApiError(code, f"Fetch of {partition}: {error_text(code)}")
    aborted = [(each["producer_id"], each["first_offset"]) for each in row.get("aborted_transactions") or ()]
    return Fetched(
        row["records"] or b"",
        aborted,
        row["high_watermark"],
        row.get("last_stable_offset", -1),
        row.get("log_start_offset", -1),
    )


def pause(duration_ms: int) -> None:
    """Sleep for this time. Nothing wakes the thread earlier."""
    select.select([], [], [], duration_ms / 1000)


_clusters: dict[tuple[int, str, Connecting], Cluster] = {}


def cluster_of(bootstrap: str, connecting: Connecting | None = None) -> Cluster:
    """Return this process's Cluster for these brokers. The first call creates it; later tasks reuse it.

    The key of the cached Cluster contains the pid, so that a forked process never uses its parent's sockets.
    """
    key = (os.getpid(), bootstrap, connecting or Connecting())
    cluster = _clusters.get(key)
    if cluster is None:
        if not _clusters:
            atexit.register(_close_all)
        cluster = _clusters[key] = Cluster(bootstrap, connecting)
    return cluster


def _close_all() -> None:
    for (pid, _, _), cluster in _clusters.items():
        if pid == os.getpid():
            cluster.close()
