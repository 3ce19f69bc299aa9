"""multiprocessing's queues instead of a ring.

    sender --pickle--> feeder thread --> pipe, under a lock --> receiver --unpickle-->     mp.Queue
    sender --pickle--> pipe, under a lock --> receiver --unpickle-->                       mp.SimpleQueue

The question: what does a record of 100 B cost from one process to another, beside the ring that kproc has?
A batch of 32 may go as one list: one call, one pickle, one write for all. A Processor has no such list; it passes on
what one socket brought, so the rows with a record for each item are what it would pay.
"""

from __future__ import annotations

import multiprocessing

from bench.channels import RingChannel
from bench.oneway import Buffer, one_way
from bench.timing import main


class QueueChannel:
    """Batches as lists through one of multiprocessing's queues."""

    def __init__(self, *, is_simple: bool, is_batched: bool = True) -> None:
        self._is_batched = is_batched
        context = multiprocessing.get_context("fork")
        self._queue = context.SimpleQueue() if is_simple else context.Queue()

    def send(self, records: list[bytes]) -> None:
        for item in [records] if self._is_batched else [[record] for record in records]:
            self._queue.put(item)

    def receive(self) -> list[Buffer]:
        return self._queue.get()

    def done(self) -> None:
        """Nothing is lent."""

    def close(self) -> None:
        self._queue.close()
        if hasattr(self._queue, "join_thread"):
            self._queue.join_thread()


BENCHMARKS = {
    "ring": one_way(RingChannel),
    "mp.Queue, 32 records an item": one_way(lambda: QueueChannel(is_simple=False)),
    "mp.SimpleQueue, 32 records an item": one_way(lambda: QueueChannel(is_simple=True)),
    "mp.Queue, a record an item": one_way(lambda: QueueChannel(is_simple=False, is_batched=False)),
    "mp.SimpleQueue, a record an item": one_way(lambda: QueueChannel(is_simple=True, is_batched=False)),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.alternatives.mp_queue", __doc__, BENCHMARKS))
