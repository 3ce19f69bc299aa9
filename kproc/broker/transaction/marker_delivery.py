"""MarkerDelivery: sends the markers of decided transactions until every partition has its marker.

The counterpart in Kafka is TransactionMarkerChannelManager. A decision (Prepare*) is synced before its first marker is
sent, because markers of a decision that is lost would commit some partitions while the next coordinator aborts the
others. A marker that a partition could not append is sent again every 100 ms until it succeeds. A marker that the
partition rejects as fenced is sent again only after the next load of the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.rules import DueOf, Marker, Write
from kproc.common.bounded import short_name
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.transaction.coordinator import TransactionCoordinator
    from kproc.broker.transaction.entry import Entry, Environment
    from kproc.broker.transaction.state import PartitionKey

logger = logging.getLogger(__name__)

# The name of the coordinator's deadline at which `send_due` is called.
MARKERS: Final = "markers"
# Delay in ms before a marker that failed is sent again, or a Complete* record whose write failed is written again.
RETRY_MS: Final = 100
# Limit of markers that a coordinator sends in one duty cycle. A partition of this Handler appends its marker at once,
# in about 0.1 ms. Without the limit a transaction of thousands of partitions would delay the Handler's other clients.
MARKERS_PER_CYCLE: Final = 250
# With these errors a partition rejects our markers for ever: a newer coordinator, or an administrator, has ended the
# transaction there.
_FENCED: Final = frozenset(
    {int(ErrorCode.INVALID_PRODUCER_EPOCH), int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)}
)
# Results after which a partition needs no marker: the marker was written, or the partition was deleted.
_HAS_MARKER: Final = frozenset({int(ErrorCode.NONE), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)})


class MarkerDelivery:
    """The decided transactions of one coordinator that are not completed yet."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        environment: Environment,
        log: CoordinatorLog[Any],
        deadlines: Deadlines[DueOf],
        epoch: int,
    ) -> None:
        self._coordinator = coordinator
        self._send_markers = environment.send_markers
        self._now_ms = environment.timing.now_ms
        self._log = log
        self._deadlines = deadlines
        self._epoch = epoch
        self._due: dict[Entry, int] = {}  # The time in ms at which `send_due` handles an entry.
        # True after the coordinator has resigned. Later results of markers and syncs are discarded.
        self.is_over = False

    def start(self, entry: Entry) -> None:
        """Send the markers of a durable decision, together with those of other transactions in this duty cycle."""
        entry.awaits_sync = False
        self._schedule(entry, 0)

    def start_after_sync(self, entries: Sequence[Entry]) -> None:
        """Sync decisions that are in the log, and retry until they are durable. Then send their markers."""

        def on_synced(code: int) -> None:
            for entry in entries if not self.is_over else ():
                if code:
                    self.retry_sync(entry)
                else:
                    self.start(entry)

        self._log.write(Write([], on_synced))

    def retry_sync(self, entry: Entry) -> None:
        """Retry the failed sync of a decision in 100 ms. The decision is in the log, so it is final."""
        entry.awaits_sync = True
        self._schedule(entry, RETRY_MS)

    def retry(self, entry: Entry) -> None:
        """Retry in 100 ms: send the missing markers again, or write the Complete* record again if none is missing."""
        self._schedule(entry, RETRY_MS)

    def _schedule(self, entry: Entry, delay_ms: int) -> None:
        at_ms = self._now_ms() + delay_ms
        self._due[entry] = at_ms
        self._deadlines.bring_forward((self._coordinator, MARKERS), at_ms)

    def send_due(self) -> None:
        """Send the markers that are due, of all transactions together. Markers above MARKERS_PER_CYCLE stay due."""
        now_ms = self._now_ms()
        parts: list[tuple[PartitionKey, Marker]] = []
        entries: list[Entry] = []
        unsynced: list[Entry] = []
        due = (entry for entry, at_ms in self._due.items() if at_ms <= now_ms)
        # Limit the transactions, too: when a partition was loaded, 100,000 decided transactions can be due.
        for entry in list(islice(due, MARKERS_PER_CYCLE)):
            del self._due[entry]
            if entry.awaits_sync:
                unsynced.append(entry)
            # All markers are written, but the last Complete* could not be appended, for example on a full
            # disk.
            elif not entry.is_owing:
                self._coordinator.complete(entry)
            else:
                markers = entry.next_markers(self._epoch, MARKERS_PER_CYCLE - len(parts))
                parts += markers
                if entry.has_unsent_markers:
                    self._due[entry] = now_ms
                entries += [entry] * len(markers)
        if self._due:
            self._deadlines.bring_forward((self._coordinator, MARKERS), min(self._due.values()))
        if unsynced:
            self.start_after_sync(unsynced)
        if parts:
            keys = [key for key, _ in parts]
            self._send_markers(parts, self._log.guarded(partial(self._on_result, entries, keys)))

    def _on_result(self, entries: Sequence[Entry], keys: Sequence[PartitionKey], at: int, code: int) -> None:
        """Record that one partition has its marker, retry the marker later, or give up if the partition has fenced it.

        entries, keys: the transactional ids and the partitions of the call's markers. code: the result of the marker
        `at`.
        """
        entry, key = entries[at], keys[at]
        # The partition of this coordinator has another owner, which has loaded the decision and sends the
        # markers itself.
        if self.is_over:
            return
        if code in _FENCED:
            # As in Kafka, give up and leave the transaction in Prepare*, because a newer coordinator or an
            # administrator has ended it in the partition. If neither has, the next coordinator that loads this log
            # sends the markers again.
            logger.error(
                "%s-%d rejects the marker of the transactional id %s, so only the next load of the coordinator sends "
                "it again: %s",
                *key,
                short_name(entry.name),
                ErrorCode(code).name,
            )
        # The owner died, the partition is moving, or its disk has failed. The transaction stays decided, and
        # readers of read_committed wait at it until the marker is there.
        elif code not in _HAS_MARKER:
            entry.retry_marker(key)
            self.retry(entry)
        elif entry.mark(key):
            self._coordinator.complete(entry)

    def count_retries(self) -> tuple[int, int]:
        """Return (number of transactions that will send markers again, number that will write Complete* again)."""
        now_ms = self._now_ms()
        again = [entry for entry, at_ms in self._due.items() if at_ms > now_ms]
        unmarked = sum(entry.is_owing or entry.awaits_sync for entry in again)
        return unmarked, len(again) - unmarked
