"""Fetch (key 1), versions 4-18.

A response consists of encoded fields and of ranges of log files, which the Processor sends with sendfile. A request
that finds less than min.bytes is parked in the purgatory, and an append wakes it (delayed_fetch.py). Each Handler reads
the partitions that it owns, and the Handler of the client's connection joins the results (fetch_owners.py).

A read_committed Fetch reads up to the last stable offset, and its response lists the aborted transactions among its
records.

Differs from Kafka: there is one replica and no follower. So preferred read replicas, diverging epochs and fetches from
followers never occur.

Versions: v5 log start (KIP-107); v7 sessions (KIP-227); v9 leader epoch (KIP-320); v11 rack (KIP-392); v12 flexible;
v13 topic ids (KIP-516); v15 replica state (KIP-903); v17 directory id (KIP-853); v18 high watermark (KIP-1166).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from kproc.broker.cluster.client_quotas import CONSUMER_BYTE_RATE
from kproc.broker.fetch import delayed_fetch
from kproc.broker.fetch.delayed_fetch import DelayedFetch, FetchPart
from kproc.broker.fetch.fetch_owners import RemoteReads
from kproc.broker.fetch.fetch_read import PartitionRead, failed_read, find_partition
from kproc.broker.request.context import RequestContext
from kproc.broker.request.fetch_session import FetchSession, FetchTarget
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics
from kproc.broker.role.purgatory import DelayedCall
from kproc.broker.security.acl import Operation
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.reading import READ_COMMITTED
from kproc.wire.header import ApiKey
from kproc.wire.hot import (
    FetchPartitionResult,
    FetchRequest,
    encode_fetch_response,
)

# While a log is not open yet, a Fetch waits for it up to 1 s longer than max.wait.ms, and reads again every 20 ms.
_LOG_PATIENCE_NS: Final = NS_PER_S
_LOOK_AGAIN_NS: Final = 20 * NS_PER_MS
_NOT_READ: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


@api(ApiKey.FETCH, versions=(4, 18))
def handle_fetch(context: RequestContext, request: FetchRequest) -> None:
    """Respond if min.bytes are available, a partition has an error, or max.wait.ms is 0. Else park the request."""
    services = context.services
    cache = services.owner.session_cache
    now_ns = services.clock.now_ns()
    try:
        targets, session, is_incremental = cache.resolve(request, context.api_version, now_ns)
    # KIP-227: the session is unknown, for example after a restart, or its epoch is not the next one. The
    # client then sends a full Fetch.
    except KafkaError as error:
        context.count_error(error.code)
        context.settle()
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, context.throttle_ms, error.code, 0, []
            )
        )
        return
    due_ns = now_ns + max(0, request.max_wait_ms) * NS_PER_MS
    fetch = ClientFetch(context, request, targets, session, is_incremental=is_incremental, due_ns=due_ns)
    if services.authorizer is not None:
        # As in Kafka, a parked request is not authorized again.
        fetch.denied = _denied(context, targets)
    fetch.start()


def _denied(context: RequestContext, targets: Sequence[FetchTarget]) -> set[int]:
    """Return the positions in `targets` of the partitions that the client may not read.

    Called for every request, also for each request of a fetch session.
    """
    names = [target.find_name(context.services.image) for target in targets]
    topics = denied_topics(context, Operation.READ, (name for name in names if name is not None))
    return {at for at, name in enumerate(names) if name in topics}


class ClientFetch:
    """One Fetch request of a client, from its first read to its response.

    Case A: it has no partitions, it may not wait, or a partition that the client may read has an error: respond now.
    Case B: min.bytes are available: respond now.
    Case C: otherwise wait for an append to this Handler's partitions, for more records at another owner, for the
    deadline, or for the client's disconnect.
    Case D: there are no records, and a log is still being opened or transferred from another Handler: wait for the log,
    even beyond max.wait.ms. Kafka opens logs before clients can see their topic, so its clients never meet this.

    `reads` maps a partition's position in `targets` to its result: the reads by other owners, and the errors of
    partitions that are not read. The reads of this Handler's partitions are in a DelayedFetch, which also waits for the
    deadline. When a partition gets another owner, all reads are discarded and repeated.
    """

    __slots__ = (
        "_context",
        "_due_ns",
        "_is_incremental",
        "_local",
        "_others",
        "_positions",
        "_request",
        "_session",
        "_starting",
        "_targets",
        "bytes_max",
        "deadline_ns",
        "denied",
        "is_committed",
        "reads",
    )

    def __init__(
        self,
        context: RequestContext,
        request: FetchRequest,
        targets: list[FetchTarget],
        session: FetchSession | None,
        *,
        is_incremental: bool,
        due_ns: int,
    ) -> None:
        self._context = context
        self._request = request
        self._targets = targets
        self._session = session
        self._is_incremental = is_incremental
        self._due_ns = self.deadline_ns = due_ns
        self.is_committed = request.isolation_level == READ_COMMITTED
        self.denied: Collection[int] = ()  # Positions that the client may not read.
        self.reads: dict[int, PartitionRead] = {}
        self._starting: DelayedCall | None = None
        self._others: RemoteReads | None = None

    # -- reading and waiting -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the partitions now, or in a later duty cycle if there are many."""
        if len(self._targets) <= delayed_fetch.SLOW_PARTS:
            self.read_all()
            return
        services = self._context.services
        # The reads take up to 40 ms. A duty cycle runs at most one slow operation, so that other clients do not wait
        # for several.
        self._starting = DelayedCall(services.clock.now_ns(), self.read_all, is_slow=True)
        services.owner.purgatory.watch(self._starting, ())
        self._context.when_gone(self.cancel)

    def read_all(self) -> None:
        """Find the owner of each partition, read those of this Handler, and call the other owners."""
        services = self._context.services
        self._starting = None
        self.bytes_max = self._find_bytes_max()
        self.reads = {at: failed_read(ErrorCode.TOPIC_AUTHORIZATION_FAILED) for at in self.denied}
        self._positions: list[int] = []
        parts: list[FetchPart] = []
        others: RemoteReads | None = None
        for at, target in enumerate(self._targets):
            if at in self.denied:
                continue
            found = find_partition(services.image, target)
            if isinstance(found, int):
                self.reads[at] = failed_read(found)
                continue
            topic, partition = found
            part = FetchPart(topic.name, topic.topic_id, target.request)
            if partition.owner == services.handler_index:
                self._positions.append(at)
                parts.append(part)
            else:
                if others is None:
                    others = RemoteReads(self, services)
                others.add(partition.owner, at, part)
        self._local: DelayedFetch | None = self._delay(parts)
        self._others = others
        if others is None:
            self.decide()
        else:
            others.read_all()

    def resume(self, local: DelayedFetch) -> None:
        """Continue a one-partition request that the fast path has parked and whose response it cannot encode.

        Called instead of `start`.
        """
        self.bytes_max = self._find_bytes_max()
        self._positions = [0]
        self._local = local
        self._context.when_gone(self.cancel)
        self._on_local(local)

    def _delay(self, parts: Sequence[FetchPart]) -> DelayedFetch:
        return DelayedFetch(
            self._context.services,
            parts,
            self._on_local,
            self.deadline_ns,
            self.bytes_max,
            self.is_committed,
        )

    def restart(self) -> None:
        """Route and read all partitions again, because an owner has changed or a log was not open at the deadline."""
        self.cancel()
        self.start()

    def decide(self) -> None:
        """Respond to the request or park it. Called when every other Handler that owns partitions of it has replied."""
        request, local = self._request, self._local
        if local is None:
            return
        count, has_error, has_logs = 0, len(self.denied) == len(self._targets), True
        for at, read in self.reads.items():
            if read.error:
                # As in Kafka, a partition that the client may not read does not end the wait for the other partitions.
                has_error = has_error or at not in self.denied
            else:
                count += read.bytes
                has_logs = has_logs and read.end >= 0
        is_enough = has_error or (count > 0 and count >= request.min_bytes)
        # The bytes that other owners have read count for min.bytes, so this Handler's partitions need only the rest.
        local.bytes_min = 0 if is_enough else max(1, request.min_bytes - count)
        local.may_wait = not has_logs or (
            request.max_wait_ms > 0
            and count < request.min_bytes
            and self._context.services.clock.now_ns() < self._due_ns
        )
        was_parked = local.is_parked
        local.wait()
        if local.is_parked:
            if not was_parked:
                self._context.when_gone(self.cancel)
            # Let the other owners call back when they have more, because only they notice an append to their
            # partitions.
            if self._others is not None and request.max_wait_ms > 0:
                self._others.watch_all()

    def cancel(self) -> None:
        """Cancel and release all reads, because the client has disconnected or they start again."""
        operation, others = self._starting or self._local, self._others
        self._starting = self._local = self._others = None
        if operation is not None:
            self._context.services.owner.purgatory.cancel(operation)
        if others is not None:
            others.cancel()

    def _on_local(self, local: DelayedFetch) -> None:
        """Respond, because this Handler's reads (`local`) are complete.

        Instead of that, read all partitions again if one of them has another owner now. Also read again if the deadline
        has passed, but a log is not open yet and _LOG_PATIENCE_NS is not over.
        """
        if not local.is_expired:
            # Another Handler owns a partition now. Read again there, because only the present owner knows
            # where the log ends.
            if local.has_moved:
                self.restart()
                return
        else:
            now_ns = self._context.services.clock.now_ns()
            if now_ns < self._due_ns + _LOG_PATIENCE_NS and any(
                read.end < 0 and not read.error for read in (*local.reads, *self.reads.values())
            ):
                self.deadline_ns = now_ns + _LOOK_AGAIN_NS
                self.restart()
                return
        # The DelayedFetch and the RemoteReads refer to this Fetch. Release them, because a reference cycle would keep
        # the reads of thousands of partitions until a full garbage collection.
        self._local = None
        if self._others is not None:
            self._others.cancel()
            self._others = None
        self._respond(local)

    def _find_bytes_max(self) -> int:
        """Return how many bytes of records the response may have. The first batch may exceed it."""
        services = self._context.services
        bytes_max = min(self._request.max_bytes, services.config.fetch_max_bytes)
        if services.client_rates.is_on:
            limit = services.client_rates.fetch_bytes_max(
                self._context.principal.name, self._context.client_id_bytes
            )
            bytes_max = bytes_max if limit is None else min(bytes_max, limit)
        return bytes_max

    # -- the response ------------------------------------------------------------------------------------------

    def _count_fetched(self, target: FetchTarget, count: int) -> None:
        """Add `count` bytes of records to the traffic metrics of a topic, which are kept by topic name, not by id."""
        services = self._context.services
        topic = target.topic(services.image)
        if topic is not None:
            traffic = services.owner.partitions.traffic_of(topic.name)
            traffic.bytes_out += count
            traffic.fetches += 1

    def _respond(self, local: DelayedFetch) -> None:
        """Encode the response from `local` and the reads of the other owners, and send it."""
        # The loop calls no function for a partition without new records, because a large consumer's Fetch has a
        # thousand of them.
        context = self._context
        for at, read in zip(self._positions, local.reads, strict=True):
            self.reads[at] = read
        if context.services.client_rates.is_on and self._is_throttled():
            return
        session = self._session
        budget = self.bytes_max
        has_data = False
        topics: dict[str | bytes | None, tuple[str | None, bytes | None, list[FetchPartitionResult]]] = {}
        served: list[tuple[str | bytes | None, int]] = []
        for at, target in enumerate(self._targets):
            read = self.reads[at]
            # The log is still in transfer, or opens later. Clients retry this code after a refresh of their metadata.
            if read.end < 0 and not read.error:
                read = failed_read(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if read.bytes and has_data and read.bytes > budget:
                # Each owner could read up to the whole byte limit of the Fetch, so the sum can exceed it. The client
                # gets these records by its next Fetch.
                read = PartitionRead(0, read.start, read.end, read.stable, (), 0)
            budget -= read.bytes
            has_data = has_data or read.bytes > 0
            if read.bytes:
                self._count_fetched(target, read.bytes)
            offsets = (-1, -1, -1) if read.error else (read.start, read.end, read.stable)
            is_news = read.error or read.bytes or offsets != target.last_offsets
            # KIP-227: an incremental response leaves out partitions without records, errors or changed offsets, so that
            # the response for 1,000 idle partitions is a few bytes long.
            if self._is_incremental and not is_news:
                continue
            if session is not None:
                target.last_offsets = offsets
                if read.bytes:
                    served.append(target.key)
            entry = topics.setdefault(target.key[0], (target.name, target.topic_id, []))
            entry[2].append(self._make_result(target.index, read))
        if session is not None and self._is_incremental:
            session.served(served)
        session_id = 0 if session is None else session.id
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, 0, 0, session_id, list(topics.values())
            )
        )

    def _make_result(self, index: int, read: PartitionRead) -> FetchPartitionResult:
        """Return the response's row of a partition, and count its error in the metrics."""
        if read.error:
            self._context.count_error(read.error)
        # The list of aborted transactions is null for read_uncommitted, because clients skip records of listed
        # ones. Kafka sends an empty list for errors that it finds before it reads the log (`_NOT_READ`).
        lists_aborted = read.error in _NOT_READ if read.error else self.is_committed
        aborted = read.aborted or ([] if lists_aborted else None)
        return FetchPartitionResult(
            index, read.error, read.end, read.stable, read.start, aborted, read.ranges
        )

    def _is_throttled(self) -> bool:
        """Return True after a response without records if the client is above its quota, and throttle its connection.

        Otherwise charge the client for the records and return False. `_respond` then sends the records.
        """
        context = self._context
        rates, user, client_id = (
            context.services.client_rates,
            context.principal.name,
            context.client_id_bytes,
        )
        count = sum(read.bytes for read in self.reads.values())
        context.settle()
        # A Fetch without records takes nothing from the quota of bytes, so it starts no throttle.
        if count:
            context.start_throttle(rates.fetch_wait_ms(user, client_id), CONSUMER_BYTE_RATE)
        if not context.throttle_ms:
            rates.on_fetch(user, client_id, count)
            return False
        # As in Kafka (FetchContext.getThrottledResponse), a throttled response has the session's id only for an
        # incremental Fetch.
        session_id = self._session.id if self._session is not None and self._is_incremental else 0
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, context.throttle_ms, 0, session_id, []
            )
        )
        return True
