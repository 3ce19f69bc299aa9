"""DelayedFetch: reads partitions of this Handler for a Fetch, and waits until there are enough records.

A client's Fetch has one DelayedFetch at its home, the Handler of its connection (fetch.py), and one at each Handler
that owns further partitions of the request (fetch_owners.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from kproc.broker.fetch.fetch_read import PartitionRead, read_partition
from kproc.broker.request.context import Services
from kproc.broker.role.purgatory import DelayedOperation
from kproc.wire.hot import FetchPartition

# A Fetch of more partitions is slow. One read of a partition without records takes 6 us.
SLOW_PARTS: Final = 500
# A slow Fetch is parked only if all parked requests of the Handler together wait for at most this number of
# partitions. A partition needs 0.6 KB.
_WATCHES_MAX: Final = 100_000


class FetchPart(msgspec.Struct, array_like=True):
    """One partition of a Fetch: its topic, and the offset and limits that the client requests."""

    topic: str
    # The id distinguishes the topic from one that is created later under the same name.
    topic_id: bytes
    wanted: FetchPartition


class DelayedFetch(DelayedOperation):
    """The reads of one Fetch at one Handler, and the wait until there are enough records.

    It completes when a read has an error, when the reads have `bytes_min` bytes in total, when a partition has another
    owner, or at the deadline. If `may_wait` is False, it also completes as soon as the logs of all its partitions are
    open. Until a log is open, its reads have no records and the end -1.

    When it completes, it calls `on_done` with itself, once. `reads` has one read for each element of `parts`, in order.
    """

    __slots__ = (
        "_bytes_max",
        "_is_committed",
        "_on_done",
        "_services",
        "bytes_min",
        "has_moved",
        "is_expired",
        "may_wait",
        "parts",
        "reads",
    )

    def __init__(
        self,
        services: Services,
        parts: Sequence[FetchPart],
        on_done: Callable[[DelayedFetch], None],
        deadline_ns: int,
        bytes_max: int,
        is_committed: bool,
    ) -> None:
        super().__init__(deadline_ns)
        self._services = services
        self._on_done = on_done
        self._bytes_max = bytes_max
        self._is_committed = is_committed
        self.parts = parts
        self.is_slow = len(parts) > SLOW_PARTS
        self.reads: list[PartitionRead] = []
        self.bytes_min = 0
        self.may_wait = True
        self.has_moved = False
        self.is_expired = False

    def wait(self, *keys: Hashable) -> None:
        """Complete now if the Fetch can complete. Otherwise park it in the purgatory.

        It waits for an event of one of its partitions, such as an append, or of one of `keys`, or for its deadline. A
        Fetch of many partitions completes at once if the purgatory watches too many partitions already.
        """
        purgatory = self._services.owner.purgatory
        if self.try_complete():
            purgatory.finished(self)
        elif not self.is_parked:
            if self.is_slow and self._is_beyond_limit():
                self.is_expired = True
                self.complete()
                return
            purgatory.watch(self, [*((part.topic, part.wanted.index) for part in self.parts), *keys])

    def _is_beyond_limit(self) -> bool:
        """Return True if the Fetch must not wait, because the purgatory would watch more than _WATCHES_MAX partitions.

        Return False in any case if a log is not open yet. ClientFetch repeats the reads of such a Fetch, and without
        the wait it would repeat them without a pause.
        """
        has_logs = all(read.end >= 0 or read.error for read in self.reads)
        return has_logs and self._services.owner.purgatory.watch_count + len(self.parts) > _WATCHES_MAX

    def try_complete(self) -> bool:
        """Read the partitions again, and complete if a condition in the class's docstring is met. Return True then."""
        return self._read() and self.complete()

    def on_complete(self) -> None:
        self._on_done(self)

    def on_expire(self) -> None:
        """Read once more and complete with these reads, at the deadline or because the Handler stops."""
        self._read()
        self.is_expired = True
        self.complete()

    def _read(self) -> bool:
        """Read the partitions in order into `reads`, and return True if the Fetch can complete.

        The first batch of the first partition with records is read even if it is larger than all limits. If a partition
        has another owner, keep the earlier `reads` and set `has_moved`.
        """
        services = self._services
        topics, me = services.image.topics_by_id, services.handler_index
        partitions = services.owner.partitions
        count, is_enough, has_logs = 0, False, True
        reads: list[PartitionRead] = []
        for part in self.parts:
            topic, wanted = topics.get(part.topic_id), part.wanted
            if topic is None or (partition := topic.partitions[wanted.index]).owner != me:
                # The partition has another owner now. Keep the results of the reads before, because their file ranges
                # stay valid under the new owner.
                self.has_moved = True
                return True
            read = read_partition(
                partitions,
                (topic, partition),
                wanted,
                self._bytes_max - count,
                minimum_one=not count,
                committed=self._is_committed,
            )
            reads.append(read)
            count += read.bytes
            # An error completes the Fetch at once, as in Kafka's DelayedFetch, because the client can do
            # something about it only when it learns of it.
            if read.error:
                is_enough = True
            # The log is not open yet: in transfer, or before its first sync after a crash. Its opening wakes
            # this Fetch.
            elif read.end < 0:
                has_logs = False
        self.reads = reads
        return is_enough or count >= self.bytes_min or (has_logs and not self.may_wait)
