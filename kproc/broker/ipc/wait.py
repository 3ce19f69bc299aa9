"""Sleeping and waking without losing a wake-up and without a system call when nobody sleeps.

    consumer (Sleeper)                       producer (Waker)
    1  sleeping = 1                          1  publish: tail = new
    2  fence                                 2  fence
    3  look at every ring again              3  look at sleeping
    4  epoll_wait(eventfd, bounded)          4  if 1: write the eventfd

Each side stores its own word, fences, then looks at the other's: at least one of them sees the other, so a
record published while the consumer lies down is either found in step 3 or announced in step 4. The timeout is
bounded all the same, and an agent that finds work after one counts it: `rescued_count` must stay 0.

The sleeping word belongs to the consuming agent, not to a ring: one store covers all of its rings.

An eventfd, edge-triggered: a round trip of 4.8 us through two epolls, a pipe's 5.8, a socket pair's 7.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from kproc.broker.ipc.words import fence
from kproc.common.clock import SystemClock

__all__ = ["Sleeper", "Waker", "fence", "make_eventfd", "wake_all"]

# How long a producer may take between its store and its eventfd write before we call the wake-up lost. It is
# microseconds unless the producer was preempted there, so this covers a badly loaded host.
WAKE_GRACE_S: Final = 0.25
_now_ns: Final = SystemClock.now_ns


def make_eventfd() -> int:
    """An eventfd for one agent's Sleeper and all of its Wakers."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Waker:
    """Wakes one agent. Every producer for that agent has its own."""

    __slots__ = ("_eventfd", "_index", "_words")

    def __init__(self, words: memoryview, index: int, eventfd: int) -> None:
        self._words = words
        self._index = index
        self._eventfd = eventfd

    def wake(self) -> None:
        """Call after publish(): announces what was published if the agent sleeps."""
        fence()
        if self._words[self._index]:
            self.signal()

    def wake_fenced(self) -> None:
        """`wake` without its fence: the caller has fenced since its last publish."""
        if self._words[self._index]:
            self.signal()

    def signal(self) -> None:
        """Write the eventfd whether the agent sleeps or not."""
        try:
            os.eventfd_write(self._eventfd, 1)
        except BlockingIOError:
            # The counter is full: 2**64 - 2 signals wait already, so the agent is as woken as can be.
            return


def wake_all(wakers: Iterable[Waker]) -> None:
    """Wake several agents after publishing to each of them: one fence covers all the stores before it."""
    fence()
    for waker in wakers:
        waker.wake_fenced()


class Sleeper:
    """The sleeping side. One per agent, which alone stores its sleeping word.

    Register `fd` with EPOLLIN | EPOLLET and say so: then every signal is reported once by itself and
    `cancel()` is one store. For a level-triggered poll it must drain the eventfd, which costs a system call,
    and an exception besides when nobody had signalled: 1.3 us.
    """

    __slots__ = ("_index", "_is_edge_triggered", "_words", "fd", "rescued_count", "slept_ns")

    def __init__(
        self, words: memoryview, index: int, eventfd: int, *, is_edge_triggered: bool = False
    ) -> None:
        self._words = words
        self._index = index
        self._is_edge_triggered = is_edge_triggered
        self.fd = eventfd
        self.rescued_count = 0
        self.slept_ns = 0  # Since whoever counts it set it to 0.
        # A predecessor killed in its sleep left a 1, and every producer would signal us all day long.
        words[index] = 0

    def prepare(self) -> None:
        """Say that we are about to sleep. The caller must look at all its inputs after this, then sleep."""
        self._words[self._index] = 1
        fence()

    def cancel(self) -> None:
        """Say that we are awake; call after sleeping, or instead of it when the second look found work."""
        self._words[self._index] = 0
        if not self._is_edge_triggered:
            self.drain()

    def drain(self) -> None:
        """Make the eventfd unreadable again."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return  # Nobody signalled us: the usual case when the second look found work.

    def wait(
        self,
        poll: Callable[[float], list[Any]],
        timeout_s: float,
        has_work: Callable[[], bool],
        since_ns: int = 0,
    ) -> list[Any]:
        """Do the whole handshake around `poll`, usually an epoll's bound method, and return its events.

        `has_work` looks at everything that a Waker announces; if it finds something, nothing is polled. If the
        timeout ends the sleep and there is work nevertheless, its producer gets WAKE_GRACE_S to finish its wake-up;
        then it counts as rescued.
        `since_ns` is the time now, from a caller that has just asked for it.
        """
        words, index = self._words, self._index
        words[index] = 1  # prepare() and cancel() written out: every sleep passes here.
        fence()
        if has_work():
            self.cancel()
            return []
        before_ns = since_ns or _now_ns()
        events = poll(timeout_s)
        self.slept_ns += _now_ns() - before_ns
        if not events and has_work():
            events = poll(WAKE_GRACE_S)
            if not events:
                self.rescued_count += 1
        # Without a fence: a producer that still reads 1 signals in vain, which costs one turn and loses nothing.
        words[index] = 0
        if not self._is_edge_triggered:
            self.drain()
        return events
