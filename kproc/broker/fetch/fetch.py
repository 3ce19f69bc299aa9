"""Fetch (key 1), versions 4-18.

Answers are header bytes plus file ranges that the Processor sends with sendfile. A request that finds less
than min.bytes parks in the purgatory and is woken by the append. Partitions of other Handlers are read by
their owners: the home Handler asks, joins, and is told once when there is more (fetch_owners.py).
Differs from Kafka: one replica and no followers, so preferred read replicas, diverging epochs and the fetch
from a follower never occur; the high watermark is the log end at append. A read_committed Fetch ends, and waits, at
the last stable offset, and is told which transactions in its records were aborted.
Versions: v5 log start; v7 sessions (KIP-227); v9 leader epoch; v11 rack; v12 flexible; v13 topic ids
(KIP-516); v15 replica state; v17 directory id; v18 high watermark tag.
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

# A log that is not open yet: how much longer than max.wait.ms a Fetch waits, and how often it looks.
_LOG_PATIENCE_NS: Final = NS_PER_S
_LOOK_AGAIN_NS: Final = 20 * NS_PER_MS
_NOT_READ: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


@api(ApiKey.FETCH, versions=(4, 18))
def handle_fetch(context: RequestContext, request: FetchRequest) -> None:
    """Answer at once if there is enough, else park."""
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
    """The places of what the client may not read, in each request of a session anew."""
    names = [target.known_name(context.services.image) for target in targets]
    topics = denied_topics(context, Operation.READ, (name for name in names if name is not None))
    return {at for at, name in enumerate(names) if name in topics}


class DelayedFetch(DelayedOperation):
    """One Fetch in work.

    Case A: no partitions, no wait allowed, or an error in some partition that may be read: answer now.
    Case B: min.bytes are there: answer now.
    Case C: wait for an append (of ours, or told by another Handler), the deadline, or the client's end.
    Case D: nothing is there and a log is still being opened, or on its way from another Handler: wait for it, beyond
    max.wait.ms, too. Kafka's logs are open before their topic can be asked for.
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
        self._reads: dict[int, PartitionRead] = {}  # by position in targets
        self._refused: Collection[int] = ()  # Positions that nobody looks at.
        # Places in targets, with what was found: a topic that is made anew under its name is another one.
        self._local: list[tuple[int, TopicImage, PartitionImage]] = []
        self._others: RemoteReads | None = None  # Until owners change.
        self._has_moved = False

    # -- the life of the operation -----------------------------------------------------------------------------

    def refuse(self, refused: Collection[int]) -> None:
        """The client may not read these. As in Kafka nobody asks again while the request is parked."""
        self._refused = refused
        for at in refused:
            self._reads[at] = failed_read(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def start(self) -> None:
        """Find the owners and read for the first time."""
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
        """Instead of `start`: go on from where somebody else waited for a request's one partition, which was ours."""
        self._local.append((0, topic, partition))
        self._read_local()
        self.decide()

    def try_complete(self) -> bool:
        """An append happened to a partition of ours that this Fetch watches. Other owners tell of theirs."""
        self._read_local()
        if self._has_moved:
            self.restart()
            return self.is_completed
        return self._complete_if_enough()

    def restart(self) -> None:
        """Owners have changed: find the new ones and read again."""
        if self.is_completed:
            return
        self._end_others()
        self._context.services.purgatory.finished(self)
        self._has_moved = False
        self._local = []  # What was read stays: files do not change with their owner, and the deadline may come first.
        self.start()

    def on_expire(self) -> None:
        """max.wait.ms is over: answer with what the last reads found."""
        self._read_local()
        now_ns = self._context.services.clock.now_ns()
        if self._waits_for_a_log(now_ns):
            self.deadline_ns = now_ns + _LOOK_AGAIN_NS
            self.restart()
        else:
            self.complete()

    def decide(self) -> None:
        """Every owner has answered: answer or wait."""
        if self.is_completed:
            return
        if self._others is not None and not self.is_parked:
            self._read_local()  # What was appended while the others were asked woke nobody: we watch from here on.
        if self._has_moved:
            self.restart()
            return
        if self._complete_if_enough() or self.is_parked:
            return
        services = self._context.services
        services.purgatory.watch(self, [(topic.name, each.index) for _, topic, each in self._local])
        self._context.when_gone(self.cancel)

    def cancel(self) -> None:
        """The client left."""
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
        # Others are waited for beside what was refused, as in Kafka.
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
        """What is asked of one partition, by its place in the request."""
        return self._targets[at].request

    def put(self, at: int, read: PartitionRead) -> None:
        """What its owner found."""
        self._reads[at] = read

    def budget(self) -> int:
        """How many bytes the answer may have, more or less."""
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
            if partition is None:  # Deleted meanwhile.
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
                # Owners that read side by side overshot.
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
            # Null for read_uncommitted, or clients would leave records out. Kafka has an empty list for what it does
            # not look into, too.
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
        """A client above its quota is told so, without records, and reads on when it may."""
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
