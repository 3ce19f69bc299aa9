"""Sleeping and waking without losing a wake-up and without a system call when nobody sleeps.

    consumer (Sleeper)                       producer (Waker)
    1  sleeping = 1                          1  publish: tail = new
    2  fence                                 2  fence
    3  look at every ring again              3  look at sleeping
    4  epoll_wait(eventfd, bounded)          4  if 1: write the eventfd

Each side stores its own word, fences, then reads the other's word, so that at least one of them sees the other. A
record that is published while the consumer falls asleep is therefore found in its step 3 or announced in the producer's
step 4. The timeout is bounded all the same. An agent that finds work after a timeout counts it in `rescued_count`,
which must stay 0.

The sleeping word belongs to the consuming agent and not to a ring, so that one store covers all of its rings.

The signal is an edge-triggered eventfd, because it is the fastest: a round trip through two epolls takes 4.8 us, with
a pipe 5.8 us, with a socket pair 7.2 us.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from kproc.broker.ipc.words import fence
from kproc.common.clock import SystemClock

__all__ = ["Sleeper", "Waker", "fence", "make_eventfd", "wake_all"]

# Time from a producer's store to its eventfd write after which the wake-up counts as lost. It takes microseconds unless
# the producer is preempted in between, so this covers a badly loaded host.
WAKE_GRACE_S: Final = 0.25
_now_ns: Final = SystemClock.now_ns


def make_eventfd() -> int:
    """Return a new eventfd for one agent's Sleeper and all of its Wakers."""
    # EFD_NONBLOCK: a write to a full counter would otherwise block the producer until somebody reads
    # (eventfd(2)).
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Waker:
    """Wakes one agent if it sleeps. Each agent that sends to it has its own Waker."""

    __slots__ = ("_eventfd", "_index", "_words")

    def __init__(self, words: memoryview, index: int, eventfd: int) -> None:
        self._words = words
        self._index = index
        self._eventfd = eventfd

    def wake(self) -> None:
        """Signal the agent if it sleeps. Call this after publish()."""
        fence()
        if self._words[self._index]:
            self.signal()

    def wake_fenced(self) -> None:
        """Signal the agent if it sleeps, without a fence: the caller has fenced since its last publish."""
        if self._words[self._index]:
            self.signal()

    def signal(self) -> None:
        """Write the eventfd whether the agent sleeps or not."""
        try:
            os.eventfd_write(self._eventfd, 1)
        except BlockingIOError:
            # Nothing is lost, because the counter is full with 2**64 - 2 signals and the eventfd is readable anyway.
            return


def wake_all(wakers: Iterable[Waker]) -> None:
    """Wake several agents after publishing to each of them. One fence covers all the stores before it."""
    fence()
    for waker in wakers:
        waker.wake_fenced()


class Sleeper:
    """The means by which an agent sleeps until it is woken. One per agent, which alone writes its sleeping word.

    Register `fd` with EPOLLIN | EPOLLET. Then epoll reports every signal once, and `cancel()` is one store. A
    level-triggered poll would need a read of the eventfd after each sleep: 1.3 us.
    """

    __slots__ = ("_index", "_words", "fd", "rescued_count", "slept_ns")

    def __init__(self, words: memoryview, index: int, eventfd: int) -> None:
        self._words = words
        self._index = index
        self.fd = eventfd
        self.rescued_count = 0
        self.slept_ns = 0  # Time slept since the agent stored its metrics and set this to 0.
        # Clear the word, because a predecessor that was killed in its sleep left a 1, and every producer would signal
        # us for nothing.
        words[index] = 0

    def prepare(self) -> None:
        """Announce that we are about to sleep. The caller must check all its inputs after this, then sleep."""
        self._words[self._index] = 1
        fence()

    def cancel(self) -> None:
        """Announce that this process is awake.

        Call this after sleeping, or if the second check before it has found work.
        """
        self._words[self._index] = 0

    def wait(
        self,
        poll: Callable[[float], list[Any]],
        timeout_s: float,
        has_work: Callable[[], bool],
        since_ns: int = 0,
    ) -> list[Any]:
        """Do the whole handshake around `poll`, usually an epoll's bound method, and return its events.

        `has_work` checks everything that a Waker announces. If it finds something, nothing is polled. If the timeout
        ends the sleep although there is work, the work's producer gets WAKE_GRACE_S to finish its wake-up. If it does
        not come, it was lost, and `rescued_count` rises. `since_ns` is the present time, if the caller has just read
        the clock.
        """
        words, index = self._words, self._index
        # prepare() and cancel() are written out here, because every sleep runs this code.
        words[index] = 1
        fence()
        if has_work():
            self.cancel()
            return []
        before_ns = since_ns or _now_ns()
        events = poll(timeout_s)
        self.slept_ns += _now_ns() - before_ns
        # The timeout ended the sleep although there is work. Its producer may only be slow to write the eventfd.
        if not events and has_work():
            events = poll(WAKE_GRACE_S)
            if not events:
                self.rescued_count += 1
        # No fence is needed, because a producer that still reads 1 only signals in vain. That costs one duty cycle and
        # loses nothing.
        words[index] = 0
        return events
