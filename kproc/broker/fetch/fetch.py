"""Fetch (key 1), versions 4-18.

A response is header bytes plus file ranges, which the Processor sends with sendfile. A request that finds less than
min.bytes is parked in the purgatory, and an append wakes it. Partitions of other Handlers are read by their owners: the
client's Handler calls them, joins the results, and each owner tells it once when there is more (fetch_owners.py).

A read_committed Fetch reads up to the last stable offset, and its response lists the aborted transactions among its
records.

Differs from Kafka: there is one replica and no follower. So preferred read replicas, diverging epochs and fetches from
followers never occur.

Versions: v5 log start; v7 sessions (KIP-227); v9 leader epoch; v11 rack; v12 flexible; v13 topic ids (KIP-516); v15
replica state; v17 directory id; v18 high watermark tag.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from kproc.broker.cluster.image import PartitionImage, TopicImage
from kproc.broker.fetch.fetch_owners import RemoteReads
from kproc.broker.fetch.fetch_read import (
    PartitionRead,
    deleted_code,
    failed_read,
    find_partition,
    partition_now,
    read_partition,
)
from kproc.broker.request.context import RequestContext
from kproc.broker.request.fetch_session import FetchSession, FetchTarget
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics
from kproc.broker.role.purgatory import DelayedOperation
from kproc.broker.security.acl import Operation
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from kproc.wire.hot import (
    READ_COMMITTED,
    FetchPartition,
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
    """Respond at once if min.bytes are available or nothing can be waited for. Otherwise park the request."""
    services = context.services
    cache = services.session_cache
    now_ns = services.clock.now_ns()
    try:
        targets, session, is_incremental = cache.resolve(request, context.api_version, now_ns)
    except KafkaError as error:
        context.count_error(error.code)
        context.settle()
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, context.throttle_ms, error.code, 0, []
            )
        )
        return
    operation = DelayedFetch(context, request, targets, session, is_incremental=is_incremental, now_ns=now_ns)
    if services.authorizer is not None:
        operation.refuse(_denied(context, targets))
    operation.start()


def _denied(context: RequestContext, targets: Sequence[FetchTarget]) -> set[int]:
    """Return the positions of targets that the client may not read. Every request of a session is checked again."""
    names = [target.known_name(context.services.image) for target in targets]
    topics = denied_topics(context, Operation.READ, (name for name in names if name is not None))
    return {at for at, name in enumerate(names) if name in topics}


class DelayedFetch(DelayedOperation):
    """One Fetch request, from its first read to its response.

    Case A: it has no partitions, it may not wait, or a partition that the client may read has an error: respond now.
    Case B: min.bytes are available: respond now.
    Case C: otherwise wait for an append here, a message from another owner, the deadline, or the client's disconnect.
    Case D: there are no records, and a log is still being opened or transferred from another Handler: wait for the log,
    even beyond max.wait.ms. Kafka opens logs before clients can see their topic, so its clients never meet this.
    """

    __slots__ = (
        "_context",
        "_due_ns",
        "_has_moved",
        "_is_incremental",
        "_local",
        "_others",
        "_reads",
        "_refused",
        "_session",
        "_targets",
        "request",
    )

    def __init__(
        self,
        context: RequestContext,
        request: FetchRequest,
        targets: list[FetchTarget],
        session: FetchSession | None,
        *,
        is_incremental: bool,
        now_ns: int,
    ) -> None:
        super().__init__(now_ns + max(0, request.max_wait_ms) * 1_000_000)
        self._due_ns = self.deadline_ns
        self._context = context
        self.request = request
        self._targets = targets
        self._session = session
        self._is_incremental = is_incremental
        self._reads: dict[int, PartitionRead] = {}  # By position in targets.
        self._refused: Collection[int] = ()  # Positions that the client may not read.
        # (position in targets, topic, partition) of our partitions. The topic is kept, because a topic that is created
        # again under the same name is a different one.
        self._local: list[tuple[int, TopicImage, PartitionImage]] = []
        self._others: RemoteReads | None = None  # Replaced when owners change.
        self._has_moved = False

    # -- the life of the operation -----------------------------------------------------------------------------

    def refuse(self, refused: Collection[int]) -> None:
        """Fail the partitions that the client may not read. As in Kafka, a parked request is not authorized again."""
        self._refused = refused
        for at in refused:
            self._reads[at] = failed_read(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def start(self) -> None:
        """Find the owner of each partition, read our own, and call the other owners."""
        services = self._context.services
        for at, target in enumerate(self._targets):
            if at in self._refused:
                continue
            found = find_partition(services, target)
            if isinstance(found, int):
                self._reads[at] = failed_read(found)
                continue
            topic, partition = found
            if partition.owner == services.handler_index:
                self._local.append((at, topic, partition))
            else:
                if self._others is None:
                    self._others = RemoteReads(self, services)
                self._others.add(partition.owner, at, topic, partition)
        self._read_local()
        if self._others is None:
            self.decide()
        else:
            self._others.ask_all()

    def resume(self, topic: TopicImage, partition: PartitionImage) -> None:
        """Take over a request for one partition of ours that the fast path had parked. Replaces `start`."""
        self._local.append((0, topic, partition))
        self._read_local()
        self.decide()

    def try_complete(self) -> bool:
        """Read again after an append to a watched partition of ours. Other owners send a message for theirs."""
        self._read_local()
        if self._has_moved:
            self.restart()
            return self.is_completed
        return self._complete_if_enough()

    def restart(self) -> None:
        """Start again with the present owners, because an owner has changed. The deadline stays."""
        if self.is_completed:
            return
        self._end_others()
        self._context.services.purgatory.finished(self)
        self._has_moved = False
        # Keep `_reads`: the files do not change with their owner, and the deadline may come before the next reads.
        self._local = []
        self.start()

    def on_expire(self) -> None:
        """Respond with the last reads, because max.wait.ms is over. Wait on for a log that is not open yet."""
        self._read_local()
        now_ns = self._context.services.clock.now_ns()
        if self._waits_for_a_log(now_ns):
            self.deadline_ns = now_ns + _LOOK_AGAIN_NS
            self.restart()
        else:
            self.complete()

    def decide(self) -> None:
        """Respond or park, now that every owner has replied."""
        if self.is_completed:
            return
        if self._others is not None and not self.is_parked:
            # The purgatory watches our partitions only from here on. Appends during the calls have woken nobody.
            self._read_local()
        if self._has_moved:
            self.restart()
            return
        if self._complete_if_enough() or self.is_parked:
            return
        services = self._context.services
        services.purgatory.watch(self, [(topic.name, each.index) for _, topic, each in self._local])
        self._context.when_gone(self.cancel)

    def cancel(self) -> None:
        """Abandon the request, because its client has disconnected."""
        self._context.services.purgatory.cancel(self)
        self._end_others()

    def _end_others(self) -> None:
        others, self._others = self._others, None
        if others is not None:
            others.end()

    def _complete_if_enough(self) -> bool:
        is_due = self._is_due()
        if is_due and not self.is_completed:
            self.complete()
            self._context.services.purgatory.finished(self)
        return is_due

    def _is_due(self) -> bool:
        reads = self._reads.values()
        # As in Kafka, a partition that the client may not read does not end the wait for the others.
        if len(self._refused) == len(self._targets) or any(
            read.error for at, read in self._reads.items() if at not in self._refused
        ):
            return True
        count = sum(read.bytes for read in reads)
        if count and count >= self.request.min_bytes:
            return True
        now_ns = self._context.services.clock.now_ns()
        if self._waits_for_a_log(now_ns):
            return False
        return self.request.max_wait_ms <= 0 or count >= self.request.min_bytes or now_ns >= self._due_ns

    def _waits_for_a_log(self, now_ns: int) -> bool:
        return now_ns < self._due_ns + _LOG_PATIENCE_NS and any(
            read.end < 0 and not read.error for read in self._reads.values()
        )

    # -- reading -----------------------------------------------------------------------------------------------

    def wanted(self, at: int) -> FetchPartition:
        """Return the client's request for the partition at this position."""
        return self._targets[at].request

    def put(self, at: int, read: PartitionRead) -> None:
        """Store what the owner of the partition at this position has read."""
        self._reads[at] = read

    def budget(self) -> int:
        """Return how many bytes of records the response may have. The first batch may exceed it."""
        services = self._context.services
        budget = min(self.request.max_bytes, services.config.fetch_max_bytes)
        if services.client_rates.is_on:
            limit = services.client_rates.fetch_bytes_max(
                self._context.principal.name, self._context.client_id_bytes
            )
            budget = budget if limit is None else min(budget, limit)
        return budget

    def _read_local(self) -> None:
        """Read our partitions in order; the first with data may exceed every limit by its first batch."""
        services = self._context.services
        left = self.budget()
        has_data = False
        is_committed = self.request.isolation_level == READ_COMMITTED
        for at, topic, before in self._local:
            target = self._targets[at]
            partition = partition_now(services, topic.topic_id, before.index)
            if partition is None:  # The topic was deleted meanwhile.
                self._reads[at] = failed_read(deleted_code(services, topic.name, target))
                continue
            if partition.owner != services.handler_index:
                self._has_moved = True
                continue
            read = read_partition(
                services,
                topic.name,
                partition,
                target.request,
                left,
                minimum_one=not has_data,
                committed=is_committed,
            )
            self._reads[at] = read
            left -= read.bytes
            has_data = has_data or read.bytes > 0

    # -- the answer --------------------------------------------------------------------------------------------

    def on_complete(self) -> None:
        self._end_others()
        if self._context.services.client_rates.is_on and self._is_throttled():
            return
        context = self._context
        session = self._session
        budget = self.budget()
        has_data = False
        is_committed = self.request.isolation_level == READ_COMMITTED
        topics: dict[str | bytes | None, tuple[str | None, bytes | None, list[FetchPartitionResult]]] = {}
        served: list[tuple[str | bytes | None, int]] = []
        for at, target in enumerate(self._targets):
            read = self._reads.get(at)
            if read is None or (read.end < 0 and not read.error):
                read = failed_read(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if read.bytes and has_data and read.bytes > budget:
                # Each owner had the whole budget, so the sum can exceed it. Leave the rest to the next Fetch.
                read = PartitionRead(0, read.start, read.end, read.stable, [], 0)
            budget -= read.bytes
            has_data = has_data or read.bytes > 0
            if read.bytes:
                context.services.count_fetched(target.key[0], read.bytes)
            offsets = (-1, -1, -1) if read.error else (read.start, read.end, read.stable)
            is_news = read.error or read.bytes or offsets != target.last_offsets
            if self._is_incremental and not is_news:
                continue
            if session is not None:
                target.last_offsets = offsets
                if read.bytes:
                    served.append(target.key)
            if read.error:
                context.count_error(read.error)
            entry = topics.setdefault(target.key[0], (target.name, target.topic_id, []))
            # The list is null for read_uncommitted, because clients would skip records of listed transactions. Kafka
            # sends an empty list for errors that it finds before it reads the log (`_NOT_READ`).
            lists_aborted = read.error in _NOT_READ if read.error else is_committed
            aborted = read.aborted or ([] if lists_aborted else None)
            entry[2].append(
                FetchPartitionResult(
                    target.index, read.error, read.end, read.stable, read.start, aborted, read.ranges
                )
            )
        session_id = 0
        if session is not None:
            if self._is_incremental:
                session.served(served)
            session_id = session.id
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, 0, 0, session_id, list(topics.values())
            )
        )

    def _is_throttled(self) -> bool:
        """Respond without records and return True if the client is above its quota. It is throttled for that time.

        Otherwise charge the client for the records and return False.
        """
        context = self._context
        rates, user, client_id = (
            context.services.client_rates,
            context.principal.name,
            context.client_id_bytes,
        )
        count = sum(read.bytes for read in self._reads.values())
        context.settle()
        if count:
            context.begin_throttle(rates.fetch_wait_ms(user, client_id))
        if not context.throttle_ms:
            rates.on_fetch(user, client_id, count)
            return False
        session_id = self._session.id if self._session is not None and self._is_incremental else 0
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, context.throttle_ms, 0, session_id, []
            )
        )
        return True
