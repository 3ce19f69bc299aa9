"""BatchProducer: an idempotent producer (KIP-98) of encoded batches, with several requests in flight and retries.

    send(topic, draft)   enqueue a batch; blocks only while more than `buffer_bytes` wait
    poll()               send and receive without waiting
    flush()              wait until every batch is acknowledged; raises ProduceFailed if one cannot be written

It has one thread, one selector, and one connection for each leading broker. A batch gets its sequence when it is first
sent and keeps it in every retry. A broker that stored the batch and died before it responded therefore stores it once.

Each partition has a Lane with its queued batches, in order, and those in flight. A lane has one batch in flight until
its first acknowledgement, and again after a failure. The reason: a broker without state for this producer accepts any
sequence as the first, so a second batch must not overtake the retry of the first one. Afterwards it has up to five,
because brokers remember five batches of a producer. A batch that was not written is queued again in its old position.

Retriable errors (a missing broker, a moved leader) are retried with growing pauses until `delivery.timeout.ms`. Other
errors (too large, not authorized, damaged) fail the task at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kproc.client import ApiError, AuthenticationFailed, ClientError, error_text
from kproc.common.clock import NS_PER_MS, Clock, SystemClock
from kproc.common.errors import RETRIABLE, ErrorCode
from kproc.spark.brokers import Cluster, Unreachable
from kproc.spark.encode import Draft
from kproc.spark.lane import NOBODY, Lane, ProduceFailed, ProducerIdentity, QueuedBatch
from kproc.spark.offsets import TopicPartition
from kproc.spark.produce_link import PartitionBatch, ProduceFields
from kproc.spark.produce_nodes import ProduceNode, ProduceNodes, SentProduce
from kproc.spark.sink_options import ProducerSettings
from kproc.spark.topic_leaders import TopicLeaders
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.spark.transactions import OpenTransaction

# Errors after which a batch can be sent under a new producer id without a duplicate, because the broker has not stored
# the batch under the old id.
_NEW_PRODUCER: Final = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH})
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_ADVICE: Final = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "records that were acknowledged before are missing on the broker",
    ErrorCode.MESSAGE_TOO_LARGE: "one record is larger than the topic's max.message.bytes",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another attempt of the task has begun, or its transaction has timed out",
    ErrorCode.INVALID_RECORD: "a compacted topic takes no record without a key",
}


@dataclass(slots=True)
class PartitionTotals:
    """Totals of the acknowledged batches of one partition since the last `drain_totals`."""

    first_offset: int = -1
    """Offset of the first record. -1 if the broker did not return it: with acks=0, or for a retry of a stored batch."""
    last_offset: int = -1
    records: int = 0
    batches: int = 0
    bytes: int = 0


class BatchProducer:
    """Writer of batches to the partitions' leaders. One task owns it. Close it after ProduceFailed."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, *, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock or SystemClock()
        self._nodes = ProduceNodes(settings)
        self._leaders = TopicLeaders(cluster, settings, self._clock, self._on_node)
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._busy: dict[Lane, None] = {}
        self._identity: ProducerIdentity | None = None if settings.is_idempotent else NOBODY
        self._waiting_bytes = 0
        self._written: dict[tuple[str, int], PartitionTotals] = {}
        self._transaction: OpenTransaction | None = None
        self.batch_bytes: dict[str, int] = {}
        """Size limit of the next batches, by topic, for topics that rejected a batch as too large."""

    def close(self) -> None:
        """Close the connections. It is unknown if the brokers have written the batches without an acknowledgement."""
        self._nodes.close()

    # -- topics

    def partition_count(self, topic: str) -> int:
        """Return a topic's number of partitions. The request can create the topic, if options and broker allow that."""
        return self._leaders.partition_count(topic)

    def _on_node(self, number: int, address: tuple[str, int]) -> None:
        node = self._nodes.by_number.setdefault(number, ProduceNode(address))
        if node.address != address:
            self._disconnect(node, f"node {number} has moved to {address[0]}:{address[1]}")
            node.address = address

    # -- batches

    def start_transaction(self, transaction: OpenTransaction) -> None:
        """Write the following batches in a transaction. All earlier batches must be acknowledged."""
        self._transaction = transaction
        self._identity = transaction.identity

    def send(self, topic: str, draft: Draft) -> None:
        """Enqueue a batch after the others of its partition. Wait while more than `buffer_bytes` are unacknowledged."""
        key = (topic, draft.partition)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(topic, draft.partition)
        deadline_ns = self._clock.now_ns() + self._settings.delivery_timeout_ms * NS_PER_MS
        lane.append(draft, deadline_ns)
        self._busy[lane] = None
        self._waiting_bytes += draft.total_bytes
        while self._waiting_bytes > self._settings.buffer_bytes:
            self._turn(wait_ms=1_000)

    def poll(self) -> None:
        """Send queued batches and handle responses, as far as the sockets allow without waiting."""
        if self._busy:
            self._turn(wait_ms=0)

    def flush(self) -> None:
        """Wait until every batch is acknowledged; with acks=0, until it is sent."""
        while self._has_work():
            self._turn(wait_ms=1_000)

    def _has_work(self) -> bool:
        return bool(self._busy) or self._nodes.has_unsent_bytes()

    def drain_totals(self) -> dict[tuple[str, int], PartitionTotals]:
        """Return the totals since the last call by topic and partition, and reset them."""
        written, self._written = self._written, {}
        return written

    # -- one duty cycle

    def _turn(self, *, wait_ms: int) -> None:
        now_ns = self._clock.now_ns()
        self._check_deadlines(now_ns)
        if self._leaders.is_stale:
            self._refresh_leaders()
        self._fill(now_ns)
        self._move(self._wait_ms(now_ns, wait_ms))

    def _wait_ms(self, now_ns: int, wait_ms: int) -> int:
        """Return how long to wait for sockets: `wait_ms`, or less if a retry's pause ends earlier."""
        if not wait_ms:
            return 0
        moments = [lane.not_before_ns for lane in self._busy if lane.queued and not lane.under_way]
        moments += [node.not_before_ns for node in self._nodes.by_number.values() if node.link is None]
        later = [moment for moment in moments if moment > now_ns]
        if later:
            wait_ms = min(wait_ms, (min(later) - now_ns) // NS_PER_MS + 1)
        return wait_ms

    def _check_deadlines(self, now_ns: int) -> None:
        for lane in self._busy:
            oldest = lane.under_way[0] if lane.under_way else lane.queued[0]
            if now_ns > oldest.deadline_ns:
                spent_s = self._settings.delivery_timeout_ms / 1000
                raise ProduceFailed(
                    f"{lane.name}: not acknowledged within kafka.delivery.timeout.ms ({spent_s:g} s); "
                    f"last: {oldest.problem or 'no answer'}"
                )
        for node in self._nodes.by_number.values():
            if node.requests:
                # Check the oldest request only, because a broker responds in the order of the requests.
                waited_ms = (now_ns - node.requests[0].sent_ns) // NS_PER_MS
                if waited_ms > self._settings.request_timeout_ms:
                    self._disconnect(node, f"{node} gave no answer in {waited_ms} ms")

    def _refresh_leaders(self) -> None:
        topics = dict.fromkeys(lane.topic for lane in self._busy)
        try:
            codes = self._leaders.request_metadata(topics)
        except ClientError as error:
            # Keep the error for the message of a batch whose delivery timeout passes before a leader is known.
            for lane in self._busy:
                for batch in lane.queued:
                    batch.problem = str(error)
            return
        self._leaders.mark_fresh()
        for lane in self._busy:
            code = codes.get(lane.topic)
            if code is not None and lane.queued:
                self._leaders.mark_stale()
                lane.queued[0].problem = f"topic {lane.topic}: {error_text(code)}"
                self._put_off(lane, lane.queued[0])

    def _fill(self, now_ns: int) -> None:
        """Send the queued batches that may be sent. A request has at most one of each lane, as in Kafka's clients."""
        by_node: dict[int, list[Lane]] = {}
        for lane in self._busy:
            if not lane.queued or len(lane.under_way) >= lane.window or lane.not_before_ns > now_ns:
                continue
            leader = self._leaders.of(lane)
            if leader in self._nodes.by_number:
                by_node.setdefault(leader, []).append(lane)
            else:
                self._leaders.mark_stale()
                lane.queued[0].problem = "the partition has no leader"
                self._put_off(lane, lane.queued[0])
        # Get a producer id before the first batch is sent, because the sequences of batches belong to it (KIP-98).
        if by_node and self._identity is None and not self._identify(by_node):
            return
        # Add partitions to the transaction before their first batches are sent, which a broker would otherwise reject
        # (KIP-98).
        if by_node and self._transaction is not None:
            lanes_to_send = (lane for lanes in by_node.values() for lane in lanes)
            self._transaction.add([TopicPartition(lane.topic, lane.partition) for lane in lanes_to_send])
        for number, lanes in by_node.items():
            node = self._nodes.by_number[number]
            if node.not_before_ns > now_ns or not self._connect(node):
                continue
            while lanes and len(node.requests) < self._settings.requests_max:
                lanes = self._send_request(node, lanes, now_ns)

    def _connect(self, node: ProduceNode) -> bool:
        try:
            return self._nodes.connect(node)
        # A rejected login is permanent, so fail now instead of retrying until kafka.delivery.timeout.ms.
        except AuthenticationFailed as error:
            raise ProduceFailed(str(error)) from None
        except ClientError as error:
            self._disconnect(node, str(error))
            return False

    def _identify(self, by_node: Mapping[int, Iterable[Lane]]) -> bool:
        """Request a producer id (InitProducerId).

        Return False if no broker responds; the next duty cycle repeats the request.
        """
        try:
            self._identity = self._new_identity()
        except Unreachable as error:
            # Keep the error for the message of a batch whose delivery timeout passes before a broker responds.
            for lane in (lane for lanes in by_node.values() for lane in lanes):
                lane.queued[0].problem = str(error)
            return False
        except ApiError as error:
            raise ProduceFailed(str(error)) from None
        return True

    def _new_identity(self) -> ProducerIdentity:
        fields = {"transactional_id": None, "transaction_timeout": 60_000}

        def attempt() -> ProducerIdentity:
            # Without a transactional id, any broker can create a producer id. Version 4 is the last one before KIP-890.
            answer = self._cluster.call(ApiKey.INIT_PRODUCER_ID, fields, newest=4)
            if answer["error_code"]:
                code = answer["error_code"]
                raise ApiError(code, f"no producer id from {self._cluster.bootstrap}: {error_text(code)}")
            return ProducerIdentity(answer["producer_id"], answer["producer_epoch"])

        return self._cluster.retrying("InitProducerId", attempt)

    def _send_request(self, node: ProduceNode, lanes: list[Lane], now_ns: int) -> list[Lane]:
        """Send one request with the first batch of each lane, up to `request_bytes`.

        Returns the lanes that can send another batch. Lanes whose batch did not fit into the request come first.
        """
        assert self._identity is not None
        chosen: list[tuple[Lane, QueuedBatch]] = []
        size = 0
        for lane in lanes:
            batch = lane.queued[0]
            # Send at least one batch, even one above `request_bytes`. The broker rejects it if it exceeds the topic's
            # max.message.bytes.
            if chosen and size + batch.draft.total_bytes > self._settings.request_bytes:
                break
            chosen.append((lane, lane.dequeue(self._identity)))
            size += batch.draft.total_bytes
        topics: dict[str, list[PartitionBatch]] = {}
        for lane, batch in chosen:
            assert batch.parts is not None
            topics.setdefault(lane.topic, []).append((lane.partition, batch.parts))
        assert node.link is not None
        request = ProduceFields(
            self._settings.acks,
            self._settings.request_timeout_ms,
            topics,
            self._identity.transactional_id,
        )
        correlation_id = node.link.send(request)
        batches = {(lane.topic, lane.partition): (lane, batch) for lane, batch in chosen}
        if self._settings.acks:
            node.requests.append(SentProduce(correlation_id, now_ns, batches))
        else:
            for lane, batch in chosen:
                self._acknowledge(lane, batch, -1)
        # Put the lanes whose batch did not fit into this request first, so that a partition with much data cannot
        # starve others.
        rest = lanes[len(chosen) :] + [lane for lane, _ in chosen]
        return [lane for lane in rest if lane.queued and len(lane.under_way) < lane.window]

    def _move(self, wait_ms: int) -> None:
        for node in self._nodes.connected():
            self._guarded(node, is_readable=False)
        # With acks=0 no response comes, so a flush that has sent everything must not wait for one.
        for node, is_readable in self._nodes.select(wait_ms if self._has_work() else 0):
            self._guarded(node, is_readable=is_readable)

    def _guarded(self, node: ProduceNode, *, is_readable: bool) -> None:
        """Send waiting bytes and, with `is_readable`, handle responses. Close the connection if it fails."""
        if node.link is None:
            return
        try:
            node.link.write()
            for correlation_id, fields in node.link.read() if is_readable else ():
                self._handle_response(node, correlation_id, fields)
        except ProduceFailed:
            raise
        except ClientError as error:
            self._disconnect(node, str(error))

    # -- answers

    def _handle_response(self, node: ProduceNode, correlation_id: int, fields: dict[str, Any]) -> None:
        if not node.requests or node.requests[0].correlation_id != correlation_id:
            raise ClientError(f"{node} answered request {correlation_id} before an earlier one")
        # Keep the request in `node.requests` until all its batches are handled. If an error closes the connection
        # before, `_disconnect` queues the remaining batches again.
        request = node.requests[0]
        node.backoff_ms = 0
        for topic in fields["responses"]:
            for row in topic["partition_responses"]:
                found = request.batches.pop((topic["name"], row["index"]), None)
                if found is None:
                    raise ClientError(
                        f"{node} answered for {topic['name']}-{row['index']}, which was not in the request"
                    )
                self._handle_result(*found, row)
        node.requests.popleft()
        for lane, batch in request.batches.values():
            self._retry(lane, batch, f"{node} left the batch out of its response")

    def _handle_result(self, lane: Lane, batch: QueuedBatch, row: dict[str, Any]) -> None:
        code = row["error_code"]
        # KIP-98: DUPLICATE_SEQUENCE_NUMBER means that an earlier attempt was stored and its response was lost.
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledge(lane, batch, row["base_offset"] if not code else -1)
            return
        text = f"{error_text(code)}{': ' + row['error_message'] if row.get('error_message') else ''}"
        is_gap = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if (
            self._transaction is None
            and self._settings.is_idempotent
            and (code in _NEW_PRODUCER or (is_gap and batch.identity != self._identity))
        ):
            # Send the batch under a new producer id. Batches with an unknown outcome in other lanes keep the old id and
            # sequence: a broker that has stored them would store them again under a new id.
            if batch.identity == self._identity:
                self._identity = None
            batch.stamp_anew()
            self._retry(lane, batch, text)
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.draft.count > 1:
            self._split(lane, batch)
        elif code in RETRIABLE:
            if code in _MOVED:
                self._leaders.mark_stale()
            self._retry(lane, batch, text)
        elif is_gap and lane.follows_another(batch):
            # The sequence is out of order because the broker did not write an earlier batch of the lane. Send both
            # again, in order.
            self._retry(lane, batch, text)
        else:
            advice = _ADVICE.get(code)
            raise ProduceFailed(f"{lane.name}: {text}{f'; {advice}' if advice else ''}")

    def _acknowledge(self, lane: Lane, batch: QueuedBatch, base_offset: int) -> None:
        lane.under_way.remove(batch)
        # End the restriction to one batch in flight that a retry has set (Lane.requeue), because an acknowledged batch
        # shows that the broker has the lane's batches in order.
        lane.window = self._settings.window_max
        self._waiting_bytes -= batch.draft.total_bytes
        if not lane.queued and not lane.under_way:
            del self._busy[lane]
        written = self._written.setdefault((lane.topic, lane.partition), PartitionTotals())
        written.records += batch.draft.count
        written.batches += 1
        written.bytes += batch.draft.total_bytes
        if base_offset >= 0:
            written.first_offset = base_offset if written.first_offset < 0 else written.first_offset
            written.last_offset = base_offset + batch.draft.count - 1

    def _retry(self, lane: Lane, batch: QueuedBatch, problem: str) -> None:
        """Queue a batch again that was in flight, or raise ProduceFailed if its `kafka.retries` are exhausted."""
        batch.problem = problem
        if batch.attempts > self._settings.retries:
            raise ProduceFailed(
                f"{lane.name}: {problem}; gave up after kafka.retries={self._settings.retries} retries"
            )
        lane.requeue(batch)
        self._put_off(lane, batch)

    def _split(self, lane: Lane, batch: QueuedBatch) -> None:
        """Replace a batch that the topic rejects as too large by its halves, and make later batches smaller."""
        size = batch.draft.total_bytes
        self.batch_bytes[lane.topic] = min(self.batch_bytes.get(lane.topic, size), max(size // 2, 1))
        halves = lane.split(batch)
        self._waiting_bytes += sum(half.draft.total_bytes for half in halves) - size
        for half in reversed(halves):
            self._retry(lane, half, "the batch was too large")
        # Send the halves without a retry's pause, because only the size of the batch was wrong.
        lane.not_before_ns = 0

    def _put_off(self, lane: Lane, batch: QueuedBatch) -> None:
        # Double the pause with every attempt, as Kafka's clients do (KIP-580), so that retries do not flood a starting
        # broker.
        pause_ms = self._settings.backoff_ms << min(max(batch.attempts - 1, 0), 10)
        pause_ms = min(pause_ms, self._settings.backoff_ms_max)
        lane.not_before_ns = self._clock.now_ns() + pause_ms * NS_PER_MS

    # -- connections

    def _disconnect(self, node: ProduceNode, problem: str) -> None:
        """Close a failed connection. Queue its batches in flight again.

        They are sent to the leaders at the time of the retry.
        """
        self._nodes.unlink(node)
        requests, node.requests = node.requests, deque()
        node.backoff_ms = min(
            max(2 * node.backoff_ms, self._settings.backoff_ms), self._settings.backoff_ms_max
        )
        node.not_before_ns = self._clock.now_ns() + node.backoff_ms * NS_PER_MS
        self._leaders.mark_stale()
        for lane in self._busy:
            if (
                lane.queued
                and not lane.under_way
                and self._nodes.by_number.get(self._leaders.of(lane)) is node
            ):
                lane.queued[0].problem = problem
        for request in requests:
            for lane, batch in request.batches.values():
                self._retry(lane, batch, problem)
