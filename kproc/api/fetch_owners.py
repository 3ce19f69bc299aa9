"""Fetch and the owners of partitions: what is asked of other Handlers, and what they watch for.

An owner reads at once. If that was too little it watches for us until the first append, tells of it once, and is asked
again. `RemoteReads` is the side of the home, `serve_forwarded` that of the owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final, Protocol

from msgspec.structs import astuple

from kproc.api.context import OnReply, PartitionKey, Services
from kproc.api.fetch_read import PartitionRead, failed_read, partition_now, read_partition
from kproc.cluster.image import PartitionImage, TopicImage
from kproc.errors import ErrorCode
from kproc.purgatory.purgatory import DelayedOperation
from kproc.wire.file_range import FileRange
from kproc.wire.hot import FetchPartition, FetchRequest

CALL: Final = "fetch"
_watch_numbers: Final = itertools.count()  # With the home's index a name for each watch at another owner.


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
        self._watches: dict[int, list[int]] = {}  # Owner -> the watch that it keeps for us.
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

    def _end_watch(self, owner: int, watch: list[int]) -> None:
        self._services.peers.call(owner, CALL, {"end": watch}, lambda _reply: None)

    def _ask(self, owner: int) -> None:
        """Let an owner read; it answers at once, and tells us later, once, if there was too little."""
        fetch, request = self._fetch, self._fetch.request
        watch = [self._services.handler_index, next(_watch_numbers)]
        body = {
            "image": self._services.image.version,
            "watch": watch,
            "min_bytes": request.min_bytes,
            "max_bytes": fetch.budget(),
            "wait_ns": 0 if request.max_wait_ms <= 0 else fetch.deadline_ns,
            "parts": [
                [topic.name, topic.topic_id, *astuple(fetch.wanted(at))]
                for at, topic, _ in self._parts[owner]
            ],
        }
        self._services.peers.call(owner, CALL, body, _Asked(self, owner, watch))

    def on_reads(self, owner: int, reply: dict[str, Any], watch: list[int]) -> None:
        """An owner's first reply: what it read, that it is lost, or that it is the owner no more."""
        if self._is_over():
            if reply.get("is_open"):
                self._end_watch(owner, watch)
            return
        if "moved" in reply:
            self._services.hand_over.when_image(reply["moved"], self._restart)
            return
        if reply.get("lost") and self._is_moved(owner):
            self._fetch.restart()
            return
        self._replies_due -= 1
        if reply.get("is_open"):
            self._watches[owner] = watch
        parts = self._parts[owner]
        reads = reply.get("reads")
        for (at, _, _), read in zip(parts, reads or [None] * len(parts), strict=True):
            if read is None:
                self._fetch.put(at, failed_read(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            else:
                error, start, end, ranges, count = read
                found = PartitionRead(error, start, end, [FileRange(*each) for each in ranges], count)
                self._fetch.put(at, found)
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
    """Takes the one or two replies of an owner: the reads, and later `more` or `end`."""

    __slots__ = ("_has_read", "_owner", "_reads", "_watch")

    def __init__(self, reads: RemoteReads, owner: int, watch: list[int]) -> None:
        self._reads = reads
        self._owner = owner
        self._watch = watch
        self._has_read = False

    def __call__(self, reply: dict[str, Any]) -> None:
        if self._has_read:
            self._reads.on_more(self._owner, is_over=bool(reply.get("end")))
            return
        self._has_read = True
        self._reads.on_reads(self._owner, reply, self._watch)


class _RemoteWatch(DelayedOperation):
    """Another Handler's Fetch waits for our partitions: tell it once, at the first append."""

    __slots__ = ("_on_reply",)

    def __init__(self, deadline_ns: int, on_reply: OnReply) -> None:
        super().__init__(deadline_ns)
        self._on_reply = on_reply

    def try_complete(self) -> bool:
        return self.complete()

    def on_complete(self) -> None:
        self._on_reply({"more": True})

    def on_expire(self) -> None:
        self.is_completed = True  # The other side has the same deadline and answers by itself.
        self._on_reply({"end": True})


def serve_forwarded(services: Services, body: dict[str, Any], on_reply: OnReply) -> None:
    """Read for another Handler. Replies once with the reads, and once more if it should read again."""
    if "end" in body:
        services.purgatory.check(("watch", *body["end"]))
        on_reply({})
        return
    if _has_moved(services, [(topic_id, fields[0]) for _, topic_id, *fields in body["parts"]]):
        # The other side finds the new owner, or that the topic is deleted, when it knows as much.
        on_reply({"moved": services.image.version})
        return
    left = body["max_bytes"]
    has_data = False
    reads: list[list[Any]] = []
    watched: list[PartitionKey] = []
    for name, topic_id, *fields in body["parts"]:
        request = FetchPartition(*fields)
        partition = services.image.topics_by_id[topic_id].partitions[request.index]
        read = read_partition(services, name, partition, request, left, minimum_one=not has_data)
        watched.append((name, request.index))
        left -= read.bytes
        has_data = has_data or read.bytes > 0
        reads.append([read.error, read.start, read.end, [list(each) for each in read.ranges], read.bytes])
    # What is enough by itself, or an error, is answered at once by the other side, too.
    is_enough = any(read[0] for read in reads) or sum(read[4] for read in reads) >= body["min_bytes"]
    waits = bool(body["wait_ns"] and watched and not is_enough)
    on_reply({"reads": reads, "is_open": waits})
    if waits:
        keys = [*watched, ("watch", *body["watch"])]
        services.purgatory.watch(_RemoteWatch(body["wait_ns"], on_reply), keys)


def _has_moved(services: Services, parts: Iterable[tuple[bytes, int]]) -> bool:
    """Whether one of these, by topic id and index, is not ours, as far as we know: another's, or deleted."""
    for topic_id, index in parts:
        topic = services.image.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return True
        if topic.partitions[index].owner != services.handler_index:
            return True
    return False
