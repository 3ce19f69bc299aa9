"""Fetch and the owners of partitions: what is asked of other Handlers, and what they watch for.

An owner reads at once. If that was too little it watches for us until the first append, tells of it once, and is asked
again. `RemoteReads` is the side of the home, `serve_forwarded` that of the owner.
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
Watch = tuple[int, int]  # The home's index and a number of its own: names a watch at another owner.


class FetchPart(msgspec.Struct, array_like=True):
    """One partition to be read."""

    topic: str
    topic_id: bytes
    wanted: FetchPartition


class PartsToRead(ForOwner):
    """What one owner is asked to read, and to watch until `wait_ns` (0: not at all) if it is less than wanted."""

    watch: Watch
    min_bytes: int
    max_bytes: int
    wait_ns: int
    committed: bool
    parts: list[FetchPart]


class PartsRead(Reply):
    """First what was read, then, if that was open, that there is more, or that nobody watches any longer."""

    reads: list[PartitionRead] = msgspec.field(default_factory=list)
    moved: int = 0  # Not the owner (any more): the version of the metadata that says so.
    is_over: bool = False


class WatchEnd(msgspec.Struct, array_like=True):
    """A watch that nobody needs any more."""

    watch: Watch


READ: Final = Call("fetch", PartsToRead, PartsRead)
END_WATCH: Final = Call("end_watch", WatchEnd, Reply)


class Fetching(Protocol):
    """The Fetch in work, as far as its other owners matter."""

    deadline_ns: int
    is_completed: bool
    request: FetchRequest

    def budget(self) -> int: ...
    def wanted(self, at: int) -> FetchPartition: ...
    def put(self, at: int, read: PartitionRead) -> None: ...
    def decide(self) -> None: ...
    def restart(self) -> None: ...


class RemoteReads:
    """What other owners read for one Fetch, until owners change; then the Fetch makes another one.

    Not a Gather (owners.py): an owner is asked each time that something was appended there and keeps a watch in
    between, and a change of one owner has everything read anew, as what was another's may be ours from then on, and
    ours are read in order within one limit.
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
        """One more to be asked for: the place in the request, and what was found for it."""
        self._parts.setdefault(owner, []).append((at, topic, partition))

    def ask_all(self) -> None:
        """Let each owner read; the last reply lets the Fetch decide."""
        self._replies_due = len(self._parts)
        for owner in self._parts:
            self._ask(owner)

    def end(self) -> None:
        """Nobody needs to be told any more; left alone, each watch would last until its append or max.wait.ms."""
        self._is_ended = True
        watches, self._watches = self._watches, {}
        for owner, watch in watches.items():
            self._end_watch(owner, watch)

    def _end_watch(self, owner: int, watch: Watch) -> None:
        self._services.peers.ask(owner, END_WATCH, WatchEnd(watch), lambda _reply: None)

    def _ask(self, owner: int) -> None:
        """Let an owner read; it answers at once, and tells us later, once, if there was too little."""
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
        """An owner's first reply: what it read, that it is lost, or that it is the owner no more."""
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
        """An owner's second reply: something was appended there (or it died, and its successor must be asked), or the
        watch is over.

        Only that owner is asked again: the others still watch for us.
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
        """Whether something that was asked of that owner belongs to another one now, or is deleted."""
        for _, topic, before in self._parts[owner]:
            partition = partition_now(self._services, topic.topic_id, before.index)
            if partition is None or partition.owner != owner:
                return True
        return False


class _Asked:
    """Takes the one or two replies of an owner: the reads, and later that there is more, or that the watch is over."""

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
    """Another Handler's Fetch waits for our partitions: tell it once, at the first append."""

    __slots__ = ("_on_reply",)

    def __init__(self, deadline_ns: int, on_reply: OnResult[PartsRead]) -> None:
        super().__init__(deadline_ns)
        self._on_reply = on_reply

    def try_complete(self) -> bool:
        return self.complete()

    def on_complete(self) -> None:
        self._on_reply(PartsRead())

    def on_expire(self) -> None:
        self.is_completed = True  # The other side has the same deadline and answers by itself.
        self._on_reply(PartsRead(is_over=True))


class _CommittedWatch(_RemoteWatch):
    """The same for a reader of committed records: appends to open transactions are no news."""

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
            return (log.start_offset, log.last_stable_offset) != known
        except (KafkaError, OSError):
            return True  # The read that follows says what it is.


@serves(END_WATCH)
def end_watch(services: Services, body: WatchEnd, on_reply: OnResult[Reply]) -> None:
    """Let a watch end before its time."""
    services.purgatory.end(("watch", *body.watch))
    on_reply(Reply())


@serves(READ)
def serve_forwarded(services: Services, body: PartsToRead, on_reply: OnResult[PartsRead]) -> None:
    """Read for another Handler. Replies once with the reads, and once more if it should read again."""
    if _has_moved(services, body.parts):
        # The other side finds the new owner, or that the topic is deleted, when it knows as much.
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
    # What is enough by itself, or an error, is answered at once by the other side, too.
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
    """Whether one of these is not ours, as far as we know: another's, or deleted."""
    for part in parts:
        topic, index = services.image.topics_by_id.get(part.topic_id), part.wanted.index
        if topic is None or index >= len(topic.partitions):
            return True
        if topic.partitions[index].owner != services.handler_index:
            return True
    return False
