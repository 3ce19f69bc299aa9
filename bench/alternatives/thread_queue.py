"""Threads with queues instead of processes with rings.

    thread --put--> queue.SimpleQueue --get--> thread          one interpreter, one lock
    thread --append--> deque (transport/thread.py) --> thread
    process --push--> ring --> process                         two interpreters

The question: what does a record of 100 B cost from one thread to another? The queues move a reference and copy nothing,
and still both threads take turns at one interpreter. Whoever needs two cores has to look at the last column of
bench/transports.py and not at this.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from bench.channels import RING_BYTES, RingChannel
from bench.oneway import Buffer, Channel, make_records, one_way, receive_all
from bench.timing import Benchmark, main
from kproc.broker.transport.thread import Pipe, PipeReceiver, PipeSender


class SimpleQueueChannel:
    """A batch is one item."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def send(self, records: list[bytes]) -> None:
        self._queue.put(records)

    def receive(self) -> list[bytes]:
        return self._queue.get()

    def done(self) -> None:
        """Nothing is lent."""

    def close(self) -> None:
        """Nothing to close."""


class PipeChannel:
    """kproc's own link between threads; each side waits for the other by a semaphore."""

    def __init__(self) -> None:
        pipe = Pipe(RING_BYTES)
        self._sender, self._receiver = PipeSender(pipe), PipeReceiver(pipe)
        self._filled, self._emptied = threading.Semaphore(0), threading.Semaphore(0)

    def send(self, records: list[bytes]) -> None:
        for record in records:
            while not self._sender.try_push(1, record):
                self._sender.publish()
                self._filled.release()
                self._emptied.acquire()
        self._sender.publish()
        self._filled.release()

    def receive(self) -> list[Buffer]:
        while not (batch := self._receiver.poll(256)):
            self._filled.acquire()
        return [view for _, view in batch]

    def done(self) -> None:
        self._receiver.release()
        self._emptied.release()

    def close(self) -> None:
        """Nothing to close."""


def between_threads(make: Callable[[], Channel]) -> Benchmark:
    """A benchmark: one loop is one record."""

    def run(count: int) -> float:
        batches, channel = make_records(count), make()
        problems: list[BaseException] = []

        def receive() -> None:
            try:
                receive_all(channel, count)
            except BaseException as problem:  # noqa: BLE001 - told to whoever waits
                problems.append(problem)

        receiver = threading.Thread(target=receive)
        receiver.start()
        started = time.perf_counter()
        for batch in batches:
            channel.send(batch)
        receiver.join()
        took = time.perf_counter() - started
        assert not problems, problems
        return took

    return run


BENCHMARKS = {
    "ring between processes": one_way(RingChannel),
    "queue.SimpleQueue between threads": between_threads(SimpleQueueChannel),
    "kproc's pipe between threads": between_threads(PipeChannel),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.alternatives.thread_queue", __doc__, BENCHMARKS))
