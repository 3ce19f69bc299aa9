"""AppendQueue: the batches of one duty cycle, appended together. One per Handler.

`enqueue` is the only way into it: for the requests of clients and of other Handlers, parsed or repeated, verified or
not. `flush` makes one Log.append (one write) per partition and responds to the requests that need no sync.

Batches whose records have to be read, or that need a new segment, are paused when the duty cycle has done enough of
that (storage/inspection.py). They and all later batches of their partition are copied to `paused`, and `resume`
continues one partition in each duty cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.produce.reply import failed, respond
from kproc.broker.storage.inspection import InspectionPaused
from kproc.broker.storage.validate import CLIENT, CONFIRMED
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.produce.reply import ProduceTarget
    from kproc.broker.request.context import Services


# Limit of the copied batches of all partitions. It is above the largest Produce (socket.request.max.bytes).
_PAUSED_BYTES_MAX: Final = 128 << 20


class QueuedBatches(msgspec.Struct, gc=False):
    """The batches that the next flush appends to one partition, and their targets in the same order.

    A msgspec struct, because there is one per append and its creation runs no Python code.
    """

    origin: str
    views: list[memoryview] = msgspec.field(default_factory=list)
    targets: list[ProduceTarget] = msgspec.field(default_factory=list)
    # Index of the first batch with acks=all. It and all later batches become visible only when they are synced.
    hidden_from: int | None = None


class AppendQueue:
    """Batches that wait for `flush`, by partition.

    The batches are views into rings or arenas, so the Handler must call `flush` before it releases those. `flush` has
    work while `queued` is not empty.
    """

    __slots__ = (
        "_inspection", "_paused_bytes", "_resumed", "_services", "_waits_for_sync", "append_calls", "batches",
        "bytes", "on_confirmed", "paused", "queued",
    )  # fmt: skip

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waits_for_sync = services.config.waits_for_sync
        self.queued: dict[OwnedPartition, QueuedBatches] = {}
        self._inspection = services.owner.partitions.inspection
        # Paused batches by partition, in order, copied out of the rings. The batches of one flush stay together,
        # because their responses can go to one Processor in one record. `resume` takes the partitions in turn.
        self.paused: dict[OwnedPartition, deque[QueuedBatches]] = {}
        self._paused_bytes = 0
        # The partition whose paused batches `resume` appends now.
        self._resumed: OwnedPartition | None = None
        # Called after an append of batches whose transaction was confirmed (verification.py).
        self.on_confirmed: Callable[[OwnedPartition], None] = lambda _: None
        self.append_calls = 0
        self.batches = 0
        self.bytes = 0

    def enqueue(
        self, owned: OwnedPartition, records: memoryview, target: ProduceTarget, origin: str = CLIENT
    ) -> None:
        """Queue a batch for the next flush. Queued batches of a different `origin` are flushed first."""
        queued = self.queued.get(owned)
        if queued is None or queued.origin is not origin:
            if queued is not None:
                self.flush()
            queued = self.queued[owned] = QueuedBatches(origin)
        # A target with a template waits for no sync. Checking it first saves a call for a repeated request.
        if (
            target.template is None
            and target.acks == -1
            and queued.hidden_from is None
            and self._waits_for_sync
        ):
            queued.hidden_from = len(queued.views)
        queued.views.append(records)
        queued.targets.append(target)

    def flush(self) -> None:
        """Append the queued batches, one call per partition, and respond to requests that need no sync.

        Batches above what a duty cycle may read are paused. An unexpected exception fails the requests of its partition
        only.
        """
        if not self.queued:
            return
        appends = self.queued
        self.queued = {}
        for owned, queued in appends.items():
            try:
                views = queued.views
                results = owned.log.append(views, queued.origin, hidden_from=queued.hidden_from)
                self.append_calls += 1
                self.batches += len(views)
                self.bytes += sum(map(len, views))
                owned.after_append()
                if queued.origin is CONFIRMED:
                    self._finish_confirmed(owned)
                respond(owned, queued.targets, results, self._waits_for_sync)
            except InspectionPaused as paused:
                self._pause(owned, queued, paused)
            # A FatalError says that the log's state is half changed. `caught` raises it again, so that the role ends.
            except Exception as error:  # noqa: BLE001 - contained
                self._fail(owned, queued, error)

    def _pause(self, owned: OwnedPartition, queued: QueuedBatches, paused: InspectionPaused) -> None:
        """Respond to the batches that were appended. Copy the others: their views are valid only in this duty cycle.

        The append paused because reading all records of the next batch would take too long in this duty cycle. If too
        many bytes are paused already, fail the others instead.
        """
        done = len(paused.results)
        if done:
            owned.after_append()
            respond(owned, queued.targets[:done], paused.results, self._waits_for_sync)
        views, targets = queued.views[done:], queued.targets[done:]
        if self._paused_bytes > _PAUSED_BYTES_MAX:
            for target in targets:
                target.fail()
            if queued.origin is CONFIRMED:
                self._finish_confirmed(owned)
            return
        hidden_from = None if queued.hidden_from is None else max(0, queued.hidden_from - done)
        copies = [view if isinstance(view.obj, bytearray) else memoryview(bytearray(view)) for view in views]
        rest = QueuedBatches(queued.origin, copies, targets, hidden_from)
        waiting = self.paused.setdefault(owned, deque())
        if owned is self._resumed:
            waiting.appendleft(rest)
        else:
            waiting.append(rest)
        self._paused_bytes += sum(map(len, copies))
        self._inspection.pause(owned.log.state)

    def resume(self) -> None:
        """Append paused batches of one partition, as many as a duty cycle may read.

        Fail them if the partition was transferred or deleted.
        """
        self.flush()  # Batches that are queued for a paused partition are paused, too, behind the others.
        owned, waiting = next(iter(self.paused.items()))
        first = waiting.popleft()
        self._paused_bytes -= sum(map(len, first.views))
        self._inspection.renew()
        self._inspection.unpause(owned.log.state)
        if self._services.owner.partitions.find(owned.key) is not owned:
            # The partition was transferred or deleted, or its log was opened again.
            for target in first.targets:
                target.decide(failed(owned.key[1], ErrorCode.NOT_LEADER_OR_FOLLOWER))
            if first.origin is CONFIRMED:
                self._finish_confirmed(owned)
        else:
            self.queued, self._resumed = {owned: first}, owned
            self.flush()
            self._resumed = None
        del self.paused[owned]
        if waiting:
            self.paused[owned] = waiting  # Behind the other partitions.
            self._inspection.pause(owned.log.state)

    def _finish_confirmed(self, owned: OwnedPartition) -> None:
        """Report that the confirmed batches of a partition are appended, unless some of them are paused."""
        if not any(each.origin is CONFIRMED for each in self.paused.get(owned, ())):
            self.on_confirmed(owned)

    def _fail(self, owned: OwnedPartition, queued: QueuedBatches, error: Exception) -> None:
        """Fail the requests of one partition after an unexpected exception. The records may be in the log.

        The clients retry. Idempotent producers then get the offsets of the records that were appended.
        """
        self._services.containment.caught("the answers of an append", error)
        self._finish_confirmed(owned)
        for target in queued.targets:
            target.fail()
