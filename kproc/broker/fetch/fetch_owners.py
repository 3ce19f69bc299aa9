"""Fetch calls between Handlers: reads of partitions that other Handlers own, and watches for their next append.

An owner reads at once and replies. If that is less than min.bytes, it also watches the partitions, sends a second reply
at the first append, and the caller reads again. `RemoteReads` is the side of the client's Handler ("home"),
`serve_forwarded` that of the owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from kproc.broker.calls.calls import Call, ForOwner, Lost, OnResult, Reply
from kproc.broker.cluster.image import PartitionImage, TopicImage
from kproc.broker.fetch.fetch_read import PartitionRead, failed_read, partition_now, read_partition
from kproc.broker.peers.served_calls import serves
from kproc.broker.request.context import PartitionKey, Services
from kproc.broker.role.purgatory import DelayedOperation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.hot import READ_COMMITTED, FetchPartition, FetchRequest

_watch_numbers: Final = itertools.count()
Watch = tuple[int, int]  # Identifies a watch at an owner: the index of the calling Handler and a number.


class FetchPart(msgspec.Struct, array_like=True):
    """One partition in a call, with the client's request for it."""

    topic: str
    topic_id: bytes
    wanted: FetchPartition


class PartsToRead(ForOwner):
    """A call to read partitions, and to watch them until `wait_ns` if the reads find less than `min_bytes`.

    `wait_ns` is a time of the monotonic clock, which all processes of a host share; 0: do not watch.
    """

    watch: Watch
    min_bytes: int
    max_bytes: int
    wait_ns: int
    committed: bool
    parts: list[FetchPart]


class PartsRead(Reply):
    """An owner's reply. The first one has the reads. If it is open, a second one says that a watch has ended.

    The second reply has `is_over` if the watch expired; otherwise records were appended.
    """

    reads: list[PartitionRead] = msgspec.field(default_factory=list)
    moved: int = 0  # Not 0: the partitions have moved, as of this version of the metadata.
    is_over: bool = False


class WatchEnd(msgspec.Struct, array_like=True):
    """A call to end a watch that its Fetch does not need any more."""

    watch: Watch


READ: Final = Call("fetch", PartsToRead, PartsRead)
END_WATCH: Final = Call("end_watch", WatchEnd, Reply)


class Fetching(Protocol):
    """The members of DelayedFetch that RemoteReads uses."""

    deadline_ns: int
    is_completed: bool
    request: FetchRequest

    def budget(self) -> int: ...
    def wanted(self, at: int) -> FetchPartition: ...
    def put(self, at: int, read: PartitionRead) -> None: ...
    def decide(self) -> None: ...
    def restart(self) -> None: ...


class RemoteReads:
    """Reads of one Fetch at other owners. When an owner changes, the Fetch replaces this object by a new one.

    This is not a Gather (owners.py) for two reasons. An owner is called again after each append and keeps a watch in
    between. And a change of one owner repeats all reads, because a partition may be ours from then on, and our own are
    read in the order of the request within one limit.
    """

    __slots__ = ("_fetch", "_is_ended", "_parts", "_replies_due", "_services", "_watches")

    def __init__(self, fetch: Fetching, services: Services) -> None:
        self._fetch = fetch
        self._services = services
        self._parts: dict[int, list[tuple[int, TopicImage, PartitionImage]]] = {}  # By owner.
        self._watches: dict[int, Watch] = {}  # Owner -> the watch that it keeps for us.
        self._replies_due = 0
        self._is_ended = False

    def add(self, owner: int, at: int, topic: TopicImage, partition: PartitionImage) -> None:
        """Add a partition of `owner`. `at` is its position in the request. Call before `ask_all`."""
        self._parts.setdefault(owner, []).append((at, topic, partition))

    def ask_all(self) -> None:
        """Call each owner. The last reply calls the Fetch's `decide`."""
        self._replies_due = len(self._parts)
        for owner in self._parts:
            self._ask(owner)

    def end(self) -> None:
        """End the watches at all owners. Otherwise each would last until its next append or max.wait.ms."""
        self._is_ended = True
        watches, self._watches = self._watches, {}
        for owner, watch in watches.items():
            self._end_watch(owner, watch)

    def _end_watch(self, owner: int, watch: Watch) -> None:
        self._services.peers.ask(owner, END_WATCH, WatchEnd(watch), lambda _reply: None)

    def _ask(self, owner: int) -> None:
        """Call one owner. It replies at once with its reads, and once more after a watch if they were too little."""
        fetch, request = self._fetch, self._fetch.request
        services = self._services
        watch = services.handler_index, next(_watch_numbers)
        body = PartsToRead(
            image=services.image.version,
            watch=watch,
            min_bytes=request.min_bytes,
            max_bytes=fetch.budget(),
            wait_ns=0 if request.max_wait_ms <= 0 else fetch.deadline_ns,
            committed=request.isolation_level == READ_COMMITTED,
            parts=[
                FetchPart(topic.name, topic.topic_id, fetch.wanted(at)) for at, topic, _ in self._parts[owner]
            ],
        )
        services.peers.ask(owner, READ, body, _Asked(self, owner, watch))

    def on_reads(self, owner: int, reply: PartsRead | Lost, watch: Watch) -> None:
        """Handle an owner's first reply: its reads, its death, or that the partitions have moved."""
        parts = self._parts[owner]
        if isinstance(reply, Lost):
            if self._is_over():
                return
            if self._is_moved(owner):
                self._fetch.restart()
                return
            reads = [failed_read(ErrorCode.NOT_LEADER_OR_FOLLOWER) for _ in parts]
        elif self._is_over():
            if reply.is_open:
                self._end_watch(owner, watch)
            return
        elif reply.moved:
            self._services.transfers.when_image(reply.moved, self._restart)
            return
        else:
            reads = reply.reads
            if reply.is_open:
                self._watches[owner] = watch
        self._replies_due -= 1
        for (at, _, _), read in zip(parts, reads, strict=True):
            self._fetch.put(at, read)
        if not self._replies_due:
            self._fetch.decide()

    def on_more(self, owner: int, *, is_over: bool) -> None:
        """Handle an owner's second reply. Call the owner again unless the watch expired (`is_over`).

        Records were appended there, or the owner died and its successor must read. The other owners still watch.
        """
        if self._is_over():
            return
        self._watches.pop(owner, None)
        if is_over:
            return
        if self._is_moved(owner):
            self._fetch.restart()
            return
        self._replies_due += 1
        self._ask(owner)

    def _restart(self) -> None:
        if not self._is_ended:
            self._fetch.restart()

    def _is_over(self) -> bool:
        return self._is_ended or self._fetch.is_completed

    def _is_moved(self, owner: int) -> bool:
        """Return True if one of the partitions that `owner` reads has another owner now, or is deleted."""
        for _, topic, before in self._parts[owner]:
            partition = partition_now(self._services, topic.topic_id, before.index)
            if partition is None or partition.owner != owner:
                return True
        return False


class _Asked:
    """Callback for the one or two replies of an owner."""

    __slots__ = ("_has_read", "_owner", "_reads", "_watch")

    def __init__(self, reads: RemoteReads, owner: int, watch: Watch) -> None:
        self._reads = reads
        self._owner = owner
        self._watch = watch
        self._has_read = False

    def __call__(self, reply: PartsRead | Lost) -> None:
        if self._has_read:
            self._reads.on_more(self._owner, is_over=isinstance(reply, PartsRead) and reply.is_over)
            return
        self._has_read = True
        self._reads.on_reads(self._owner, reply, self._watch)


class _RemoteWatch(DelayedOperation):
    """A watch for another Handler's Fetch. Replies once, at the first append or at the deadline."""

    __slots__ = ("_on_reply",)

    def __init__(self, deadline_ns: int, on_reply: OnResult[PartsRead]) -> None:
        super().__init__(deadline_ns)
        self._on_reply = on_reply

    def try_complete(self) -> bool:
        return self.complete()

    def on_complete(self) -> None:
        self._on_reply(PartsRead())

    def on_expire(self) -> None:
        # The calling Handler has the same deadline and responds to its client without us.
        self.is_completed = True
        self._on_reply(PartsRead(is_over=True))


class _CommittedWatch(_RemoteWatch):
    """A watch for a read_committed Fetch. It ignores appends that do not move the last stable offset."""

    __slots__ = ("_read", "_services")

    def __init__(
        self,
        deadline_ns: int,
        on_reply: OnResult[PartsRead],
        services: Services,
        reads: Sequence[tuple[FetchPart, PartitionRead]],
    ) -> None:
        super().__init__(deadline_ns, on_reply)
        self._services = services
        self._read = [(part, (read.start, read.stable)) for part, read in reads]

    def try_complete(self) -> bool:
        return any(self._is_news(part, known) for part, known in self._read) and self.complete()

    def _is_news(self, part: FetchPart, known: tuple[int, int]) -> bool:
        services = self._services
        if _has_moved(services, (part,)):
            return True
        partition = services.image.topics_by_id[part.topic_id].partitions[part.wanted.index]
        try:
            log = services.partitions.get(part.topic, partition).log
            return (log.state.start_offset, log.state.last_stable_offset) != known
        except (KafkaError, OSError):
            return True  # The read that follows returns the error to the client.


@serves(END_WATCH)
def end_watch(services: Services, body: WatchEnd, on_reply: OnResult[Reply]) -> None:
    """End a watch early for the Handler that asked for it."""
    services.purgatory.end(("watch", *body.watch))
    on_reply(Reply())


@serves(READ)
def serve_forwarded(services: Services, body: PartsToRead, on_reply: OnResult[PartsRead]) -> None:
    """Read partitions of ours for another Handler. Reply with the reads, and once more when it should read again."""
    if _has_moved(services, body.parts):
        # When the caller has this version too, it finds the new owner, or that the topic is deleted.
        on_reply(PartsRead(moved=services.image.version))
        return
    left = body.max_bytes
    has_data = False
    reads: list[PartitionRead] = []
    watched: list[PartitionKey] = []
    for part in body.parts:
        index = part.wanted.index
        partition = services.image.topics_by_id[part.topic_id].partitions[index]
        read = read_partition(
            services,
            part.topic,
            partition,
            part.wanted,
            left,
            minimum_one=not has_data,
            committed=body.committed,
        )
        watched.append((part.topic, index))
        left -= read.bytes
        has_data = has_data or read.bytes > 0
        reads.append(read)
    # The caller responds at once to an error or to enough bytes from one owner, so it needs no watch then.
    is_enough = any(read.error for read in reads) or sum(read.bytes for read in reads) >= body.min_bytes
    waits = bool(body.wait_ns and watched and not is_enough)
    on_reply(PartsRead(reads=reads, is_open=waits))
    if waits:
        keys = [*watched, ("watch", *body.watch)]
        watch = _RemoteWatch(body.wait_ns, on_reply)
        if body.committed:
            parts = list(zip(body.parts, reads, strict=True))
            watch = _CommittedWatch(body.wait_ns, on_reply, services, parts)
        services.purgatory.watch(watch, keys)


def _has_moved(services: Services, parts: Iterable[FetchPart]) -> bool:
    """Return True if, by our metadata, one of these partitions has another owner or is deleted."""
    for part in parts:
        topic, index = services.image.topics_by_id.get(part.topic_id), part.wanted.index
        if topic is None or index >= len(topic.partitions):
            return True
        if topic.partitions[index].owner != services.handler_index:
            return True
    return False
