"""Acquire records for one ShareFetch from the owners of the session's partitions, and wait if there are none.

The home calls the owners one after the other, because each of them gets what the others have left of the limits. If
nobody has records, each owner gets a watch, which ends when records of its partitions can be acquired. A watch acquires
nothing, so nothing is lost if the client disconnects while watches end.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.calls.calls import Lost, Reply
from kproc.broker.fetch.fetch_owners import CANCEL_WATCH, CancelWatch, Watch
from kproc.broker.role.purgatory import DelayedOperation
from kproc.broker.share.partition.messages import (
    OPENS_LATER,
    SHARE_ACQUIRE,
    SHARE_WATCH,
    AcquiredPart,
    AcquireParts,
    PartsAcquired,
    ShareKey,
    WatchParts,
)
from kproc.broker.share.partition.share_partitions import SLOW_PARTS
from kproc.broker.share.session.acknowledge import find_partition
from kproc.broker.share.session.owner_call import call_owner, release_at
from kproc.broker.share.session.sessions import ShareSession
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.request.context import Services

# Numbers of the watches of ShareFetches. Watches of Fetches count from 0. An owner does not tell the two kinds apart,
# so their numbers must differ.
_watch_numbers: Final = itertools.count(1 << 62)
# Limit of the watches of one request that end although nothing can be acquired, because other members were faster. Then
# the client gets an empty response, so that one request cannot keep its Handler busy.
_VAIN_WAKES_MAX: Final = 16


class AcquireLimits(NamedTuple):
    """The limits of one ShareFetch, and the deadline until which it waits."""

    records_max: int
    bytes_max: int
    bytes_min: int
    batch_size: int
    is_exact: bool
    deadline_ns: int


class Acquisition(DelayedOperation):
    """The records that one ShareFetch acquires.

    `on_done` gets this object once, or never if the client disconnects first. `results` then has a result for each
    partition that was tried. `on_done` may be called before `start` returns. At the deadline the purgatory completes
    this operation, with the records that it has by then.
    """

    __slots__ = (
        "_bytes_left",
        "_is_calling",
        "_is_expired",
        "_is_gone",
        "_limits",
        "_on_done",
        "_order",
        "_parts",
        "_records_left",
        "_services",
        "_session",
        "_todo",
        "_vain_wakes",
        "_watches",
        "results",
    )

    def __init__(
        self,
        services: Services,
        session: ShareSession,
        keys: Iterable[ShareKey],
        limits: AcquireLimits,
        on_done: Callable[[Acquisition], None],
    ) -> None:
        super().__init__(limits.deadline_ns)
        self._services = services
        self._session = session
        self._order = list(keys)
        self.is_slow = len(self._order) > SLOW_PARTS
        self._limits = limits
        self._on_done = on_done
        self._records_left = limits.records_max
        self._bytes_left = limits.bytes_max
        self.results: dict[ShareKey, AcquiredPart] = {}
        self._parts: dict[int, list[ShareKey]] = {}
        self._todo: deque[int] = deque()  # Ids of the owners to call next.
        self._watches: dict[int, Watch] = {}
        self._is_calling = self._is_expired = self._is_gone = False
        self._vain_wakes = 0

    def start(self) -> None:
        """Start to acquire records, as `start_now` does. With more than SLOW_PARTS partitions, start in a later cycle.

        `on_done` may be called before this returns.
        """
        if self.is_slow:
            # The start takes up to 20 ms, and 100 clients can send such a ShareFetch in one duty cycle.
            self._services.owner.purgatory.defer(self.start_now)
        else:
            self.start_now()

    def start_now(self) -> None:
        """Call the owner of the first partition. It acquires records, and then the next owner is called.

        If the request may wait for more than 1 byte (bytes_min), send each owner a watch first, and wait until one
        ends. Do nothing if the client has disconnected: `on_done` is then never called.
        """
        if self._is_gone:
            return
        self._route(self._order)
        if self._limits.bytes_min > 1 and self._may_wait():
            self._watch_all()
        else:
            self._proceed()

    def cancel(self) -> None:
        """Abandon the request, because its client has disconnected. The end of its session releases its records.

        A newer session of the member on another connection continues. Call no more owners, because nobody would get
        their records.
        """
        self._is_gone = True
        self._todo.clear()
        self._services.owner.purgatory.cancel(self)
        self._cancel_watches()

    def on_expire(self) -> None:
        """End the wait at the deadline.

        If the request waited for bytes_min bytes, acquire the fewer records that exist.
        """
        self._is_expired = True
        self._proceed()

    def on_complete(self) -> None:
        self._services.owner.purgatory.finished(self)
        self._cancel_watches()
        self._on_done(self)

    # -- calls ---------------------------------------------------------------------------------------------------

    def _route(self, keys: Iterable[ShareKey]) -> None:
        """Add the partitions to the next calls to their owners."""
        for key in keys:
            partition = find_partition(self._services, key)
            if partition is None:
                self.results[key] = AcquiredPart(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            self._parts.setdefault(partition.owner, []).append(key)
            if partition.owner not in self._todo:
                self._todo.append(partition.owner)

    def _proceed(self) -> None:
        """Call the next owner. If all owners were called, complete the operation, or wait for records."""
        while self._todo and not self._is_calling:
            if self._records_left <= 0 or self._bytes_left <= 0 or self._session.is_closed:
                self._todo.clear()
                break
            self._acquire(self._todo.popleft())
        if self._is_calling or self.is_completed:
            return
        if self._has_records() or not self._may_wait():
            self.complete()
        else:
            self._watch_all()

    def _acquire(self, owner: int) -> None:
        services, limits, results = self._services, self._limits, self.results
        # If another owner dies during a call and its partitions go to this owner, `_parts` grows, and this owner is
        # called again. Another call for partitions with records would replace their results.
        keys = [key for key in self._parts[owner] if key not in results or not results[key].acquired]
        version = services.image.version
        body = AcquireParts(
            version,
            self._session.holder,
            keys,
            self._records_left,
            limits.batch_size,
            self._bytes_left,
            limits.is_exact,
            can_exceed=not self._has_records(),
        )
        self._session.owners.add(owner)
        self._is_calling = True
        call_owner(services, owner, SHARE_ACQUIRE, body, partial(self._on_acquired, owner, keys, version))

    def _on_acquired(
        self, owner: int, keys: list[ShareKey], version: int, reply: PartsAcquired | Lost
    ) -> None:
        self._is_calling = False
        if self._session.is_closed:
            # The session was closed while the owner acquired records for it. Release them again, because the release at
            # the close may have reached the owner before the acquire.
            release_at(self._services, self._session, owner)
            if not self._is_gone:
                self.complete()
            return
        # Partitions with another owner, in their order. A dict instead of a list, because a look-up among thousands
        # must be fast.
        moved: dict[ShareKey, None] = {}
        # The owner died. If it had acquired records, their locks died with it, so no record is lost.
        if isinstance(reply, Lost):
            for key in keys:
                self.results[key] = AcquiredPart(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._session.lock_ms = reply.lock_ms
            for key, part in zip(keys, reply.parts, strict=True):
                self.results[key] = part
                if part.acquired:
                    self._records_left -= part.record_count
                    self._bytes_left -= part.bytes
                elif part.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and reply.known > version:
                    moved[key] = None
        for key in moved:
            # Forget the error of a moved partition, because its new owner may have records. If the response already has
            # records, the next request asks the new owner.
            del self.results[key]
        if moved and not self._has_records():
            assert isinstance(reply, PartsAcquired)
            self._parts[owner] = [key for key in self._parts[owner] if key not in moved]
            self._is_calling = True
            self._services.owner.transfers.when_image(reply.known, partial(self._on_image, moved))
        else:
            self._proceed()

    def _on_image(self, moved: Iterable[ShareKey]) -> None:
        self._is_calling = False
        if not (self._is_gone or self.is_completed):
            self._route(moved)
            self._proceed()

    # -- waiting -------------------------------------------------------------------------------------------------

    def _has_records(self) -> bool:
        return self._records_left < self._limits.records_max

    def _may_wait(self) -> bool:
        """Return True if the request may wait for records: a partition without an error can still get some in time."""
        return (
            not (self._is_expired or self._session.is_closed)
            and self._services.clock.now_ns() < self.deadline_ns
            and self._vain_wakes < _VAIN_WAKES_MAX
            and any(map(self._waitable, self._parts))
        )

    def _waitable(self, owner: int) -> list[ShareKey]:
        """Return the partitions of an owner that have no error, or whose log opens later."""
        results = self.results
        return [
            key
            for key in self._parts[owner]
            if key not in results or results[key].error in (ErrorCode.NONE, OPENS_LATER)
        ]

    def _watch_all(self) -> None:
        """Send each owner a watch, and park until the deadline. An owner replies when records can be acquired."""
        if not self.is_parked:
            self._services.owner.purgatory.watch(self, ())
        bytes_min = max(1, self._limits.bytes_min // len(self._parts))
        for owner in list(self._parts):
            keys = self._waitable(owner)
            if self.is_completed or not keys or owner in self._watches:
                continue
            services = self._services
            watch = self._watches[owner] = services.handler_index, next(_watch_numbers)
            body = WatchParts(
                services.image.version,
                watch,
                self._session.holder.group_id,
                keys,
                self.deadline_ns,
                bytes_min,
            )
            call_owner(services, owner, SHARE_WATCH, body, partial(self._on_watch_ended, owner, watch))

    def _on_watch_ended(self, owner: int, watch: Watch, reply: Reply | Lost) -> None:
        """Acquire records again from the owner whose watch ended, or from its successor if the owner has died."""
        # A late reply to a watch that was cancelled or replaced. Another watch of this owner may be open.
        if self._watches.get(owner) != watch or self.is_completed:
            return
        del self._watches[owner]
        if self._services.clock.now_ns() >= self.deadline_ns:
            # Do nothing after the deadline, because the purgatory completes this operation then.
            return
        self._vain_wakes += 1
        if isinstance(reply, Lost):
            # The owner died. Look up the owners of its partitions again.
            self._route(self._parts.pop(owner))
        elif owner not in self._todo:
            self._todo.append(owner)
        self._proceed()

    def _cancel_watches(self) -> None:
        watches, self._watches = self._watches, {}
        for owner, watch in watches.items():
            body = CancelWatch(self._services.image.version, watch)
            call_owner(self._services, owner, CANCEL_WATCH, body, _ignore)


def _ignore(_reply: Reply | Lost) -> None:
    """Ignore the reply to a call that cancels a watch (CANCEL_WATCH)."""
