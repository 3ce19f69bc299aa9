"""The channel that the broker uses, as oneway.py wants it: the yardstick of bench/alternatives."""

from __future__ import annotations

import os
import select
from typing import Final

from bench.oneway import Buffer
from kproc.broker.ipc.layout import ring_bytes
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, RingProducer, format_ring
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd

RING_BYTES: Final = 1 << 20
_SLEEP_S: Final = 1.0


class RingChannel:
    """A ring in a memfd, an eventfd for a receiver that sleeps; a sender that finds it full sleeps, too."""

    def __init__(self) -> None:
        self._region = Region.create(RegionKind.LINK, ring_bytes(RING_BYTES), 1)
        format_ring(self._region, 0, RING_BYTES)
        self._words_region = Region.create(RegionKind.SLAB, 4096, 1)
        words = self._words_region.words
        self._producer, self._consumer = RingProducer(self._region), RingConsumer(self._region)
        self._dozes = [Sleeper(words, word, make_eventfd()) for word in (0, 8)]
        self._wakers = [Waker(words, word, doze.fd) for word, doze in zip((0, 8), self._dozes, strict=True)]
        self._polls: dict[int, select.epoll] = {}

    def _sleep(self, who: int, has_work: object) -> None:
        epoll = self._polls.get(who)
        if epoll is None:  # Made in the process that uses it.
            epoll = self._polls[who] = select.epoll()
            epoll.register(self._dozes[who].fd, select.EPOLLIN | select.EPOLLET)
        self._dozes[who].wait(epoll.poll, _SLEEP_S, has_work)  # type: ignore[arg-type]

    def send(self, records: list[bytes]) -> None:
        producer = self._producer
        for record in records:
            while not producer.try_push(1, record):
                producer.publish()
                self._wakers[0].wake()
                self._sleep(1, lambda: producer.free_bytes() > RING_BYTES // 2)
        producer.publish()
        self._wakers[0].wake()

    def receive(self) -> list[Buffer]:
        batch = self._consumer.poll(256)
        while not batch:
            self._sleep(0, lambda: not self._consumer.is_empty())
            batch = self._consumer.poll(256)
        return [view for _, view in batch]

    def done(self) -> None:
        self._consumer.release()
        self._wakers[1].wake()

    def close(self) -> None:
        for epoll in self._polls.values():
            epoll.close()
        for doze in self._dozes:
            os.close(doze.fd)
        self._region.close()
        self._words_region.close()
