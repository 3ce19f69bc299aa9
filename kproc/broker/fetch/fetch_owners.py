"""Fetch calls between Handlers: reads of partitions that other Handlers own.

`RemoteReads` is the side of the client's Handler ("home"), `read_for_home` that of the owner. The home first reads at
all owners. If these reads have too few bytes, each owner gets a call that it replies to when it has more records than
the home knows. Such a call is a watch. The home cancels it when the Fetch does not need it any more.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.calls.calls import Call, ForOwner, FromImage, Lost, OnResult, Reply
from kproc.broker.fetch.delayed_fetch import DelayedFetch, FetchPart
from kproc.broker.fetch.fetch_read import PartitionRead, failed_read, partition_now
from kproc.broker.peers.registered_calls import handles
from kproc.broker.request.context import Services
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.fetch.fetch import ClientFetch

_watch_numbers: Final = itertools.count()
WATCH: Final = "watch"
"""First element of a watch's key in the owner's purgatory: (WATCH, index of the calling Handler, number)."""
Watch = tuple[int, int]  # Identifies a call at an owner: the index of the calling Handler and a number.


class PartsToRead(ForOwner):
    """A call to read partitions. The owner replies at `bytes_min` bytes, an error, or the deadline.

    `deadline_ns` is a time of the monotonic clock, which all processes of a host share.
    """

    watch: Watch
    bytes_min: int
    bytes_max: int
    deadline_ns: int
    is_committed: bool
    parts: list[FetchPart]


class PartsRead(Reply):
    """An owner's reads, in the order of the call's parts."""

    reads: list[PartitionRead] = msgspec.field(default_factory=list)
    moved: int = 0  # Not 0: the partitions have moved, as of this version of the metadata.
    is_expired: bool = False  # The reads have less than `bytes_min`, because the deadline was reached.


class CancelWatch(FromImage):
    """A call to reply now to a watch, a read that waits for more records, because the Fetch does not need it any more.

    The call names the caller's version of the metadata: the owner may park the watch until it has this version,
    and the cancellation must not overtake the watch.
    """

    watch: Watch


READ: Final = Call("fetch", PartsToRead, PartsRead)
CANCEL_WATCH: Final = Call("cancel_watch", CancelWatch, Reply)


class RemoteReads:
    """Reads of one Fetch at other owners. When an owner changes, the Fetch replaces this object by a new one.

    This class does not use OwnersRequest (owners.py) for two reasons. It calls an owner again until the Fetch has
    enough records. And after a change of one owner all reads are repeated, because this Handler may own the partition
    now: it reads its own partitions in the order of the request, within one limit of bytes.
    """

    __slots__ = ("_expired", "_fetch", "_is_ended", "_parts", "_replies_due", "_services", "_watches")

    def __init__(self, fetch: ClientFetch, services: Services) -> None:
        self._fetch = fetch
        self._services = services
        # The partitions of each owner, with their positions in the request.
        self._parts: dict[int, list[tuple[int, FetchPart]]] = {}
        self._watches: dict[int, Watch] = {}  # Owner -> the call that it replies to when it has more.
        self._expired: set[int] = set()  # Owners that will not have more before the deadline.
        self._replies_due = 0
        self._is_ended = False

    def add(self, owner: int, at: int, part: FetchPart) -> None:
        """Add a partition of `owner`. `at` is its position in the request. Call before `read_all`."""
        self._parts.setdefault(owner, []).append((at, part))

    def read_all(self) -> None:
        """Call each owner. The last reply calls the Fetch's `decide`."""
        self._replies_due = len(self._parts)
        for owner in self._parts:
            # A call to a dead owner gets its reply (Lost) at once. This can restart the Fetch, which ends this object.
            if not self._is_ended:
                self._call(owner, bytes_min=0)

    def watch_all(self) -> None:
        """Let each owner reply once more when it has more records than now. Its reply calls the Fetch's `decide`."""
        for owner, parts in self._parts.items():
            if not (self._is_ended or owner in self._watches or owner in self._expired):
                self._call(owner, bytes_min=1 + sum(self._fetch.reads[at].bytes for at, _ in parts))

    def cancel(self) -> None:
        """Cancel the watches at all owners. Otherwise each would last until its next append or max.wait.ms."""
        self._is_ended = True
        watches, self._watches = self._watches, {}
        for owner, watch in watches.items():
            body = CancelWatch(self._services.image.version, watch)
            self._services.peers.ask(owner, CANCEL_WATCH, body, lambda _reply: None)

    def _call(self, owner: int, *, bytes_min: int) -> None:
        fetch, services = self._fetch, self._services
        watch = services.handler_index, next(_watch_numbers)
        if bytes_min:
            self._watches[owner] = watch
        body = PartsToRead(
            image=services.image.version,
            watch=watch,
            bytes_min=bytes_min,
            bytes_max=fetch.bytes_max,
            deadline_ns=fetch.deadline_ns,
            is_committed=fetch.is_committed,
            parts=[part for _, part in self._parts[owner]],
        )
        services.peers.ask(owner, READ, body, partial(self._on_reply, owner, watch))

    def _on_reply(self, owner: int, watch: Watch, reply: PartsRead | Lost) -> None:
        """Store the reads of an owner in the Fetch. Restart the Fetch if one of the owner's partitions has moved.

        If the owner died and no partition has moved: after a watch, read again at the owner's successor. After a first
        read, its partitions get NOT_LEADER_OR_FOLLOWER.
        """
        is_watch = self._watches.get(owner) == watch
        if is_watch:
            del self._watches[owner]
        # The Fetch was answered, cancelled or started again, so nobody wants this reply.
        if self._is_ended:
            return
        parts = self._parts[owner]
        if isinstance(reply, Lost):
            # The former owner ended after it had passed its partition on. The new owner has the records, so
            # read there.
            if self._is_moved(owner):
                self._fetch.restart()
                return
            if is_watch:
                # The owner died during the watch. Its successor may run already, so read again there.
                self._replies_due += 1
                self._call(owner, bytes_min=0)
                return
            reads = [failed_read(ErrorCode.NOT_LEADER_OR_FOLLOWER) for _ in parts]
        elif reply.moved:
            self._services.owner.transfers.when_image(reply.moved, self._restart)
            return
        else:
            reads = reply.reads
            if reply.is_expired:
                self._expired.add(owner)
        for (at, _), read in zip(parts, reads, strict=True):
            self._fetch.reads[at] = read
        if not is_watch:
            self._replies_due -= 1
        if not self._replies_due:
            self._fetch.decide()

    def _restart(self) -> None:
        if not self._is_ended:
            self._fetch.restart()

    def _is_moved(self, owner: int) -> bool:
        """Return True if one of the partitions that `owner` reads has another owner now, or is deleted."""
        for _, part in self._parts[owner]:
            partition = partition_now(self._services.image, part.topic_id, part.wanted.index)
            if partition is None or partition.owner != owner:
                return True
        return False


@handles(CANCEL_WATCH)
def cancel_watch(services: Services, body: CancelWatch, on_reply: OnResult[Reply]) -> None:
    """Reply now to a watch, a read that waits for more records, because the caller does not need it any more."""
    services.owner.purgatory.complete_all((WATCH, *body.watch))
    on_reply(Reply())


@handles(READ)
def read_for_home(services: Services, body: PartsToRead, on_reply: OnResult[PartsRead]) -> None:
    """Read partitions of this Handler for another one. Reply at `bytes_min` bytes, an error or the deadline."""

    def reply(fetch: DelayedFetch) -> None:
        # The caller waits for this version of the metadata, which names the new owner or lacks the deleted topic.
        moved = services.image.version if fetch.has_moved else 0
        on_reply(PartsRead(reads=fetch.reads, moved=moved, is_expired=fetch.is_expired))

    fetch = DelayedFetch(
        services,
        body.parts,
        reply,
        body.deadline_ns,
        body.bytes_max,
        body.is_committed,
    )
    fetch.bytes_min = body.bytes_min
    fetch.wait((WATCH, *body.watch))
