"""Waking a role that sleeps, and not waking one that does not.

    this process --store, fence, word says asleep? --eventfd--> forked child (epoll) --the same--> this process
    this process --store, fence, word says awake--> nothing                                   what a busy broker does

The question: what does a round trip between two sleeping roles cost, and what the question whether to wake? A pipe and
a socket pair beside it. CPython has no futex; the word and the fence are what spares the system call instead.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.timing import Benchmark, main
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd

CHILD_SECONDS_MAX = 120
Ends = tuple[Callable[[], None], Callable[[], None]]  # Wake the other one; wait to be woken.


def _bounce(loops: int, wake: Callable[[], None], wait: Callable[[], None]) -> None:
    for _ in range(loops):
        wait()
        wake()


def round_trip(make: Callable[[ExitStack], tuple[Callable[[], Ends], Callable[[], Ends]]]) -> Benchmark:
    """A benchmark: one loop is there and back, both asleep in between."""

    def run(loops: int) -> float:
        with ExitStack() as stack:
            near, far = make(stack)
            pid = os.fork()
            if pid == 0:
                status = 1
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(CHILD_SECONDS_MAX)
                try:
                    _bounce(loops, *far())
                    status = 0
                finally:
                    os._exit(status)
            wake, wait = near()
            started = time.perf_counter()
            for _ in range(loops):
                wake()
                wait()
            took = time.perf_counter() - started
            _, status = os.waitpid(pid, 0)
            assert status == 0, "the other side did not come to its end"
        return took

    return run


def by_eventfd(stack: ExitStack) -> tuple[Callable[[], Ends], Callable[[], Ends]]:
    """The broker's own way: a sequence of each side in shared memory, a word that says who sleeps, an eventfd."""
    region = stack.enter_context(Region.create(RegionKind.SLAB, 4096, 1))
    words = region.words
    dozes = [Sleeper(words, at, make_eventfd()) for at in (0, 8)]
    for doze in dozes:
        stack.callback(os.close, doze.fd)

    def end(mine: int) -> Callable[[], Ends]:
        def open_end() -> Ends:
            epoll = stack.enter_context(select.epoll())
            epoll.register(dozes[mine].fd, select.EPOLLIN | select.EPOLLET)
            waker = Waker(words, (8, 0)[mine], dozes[1 - mine].fd)
            seen = 0

            def wake() -> None:
                words[16 + mine] += 1
                waker.wake()

            def wait() -> None:
                nonlocal seen
                while words[17 - mine] == seen:
                    dozes[mine].wait(epoll.poll, 1.0, lambda: words[17 - mine] != seen)
                seen += 1

            return wake, wait

        return open_end

    return end(0), end(1)


def by_stream(stack: ExitStack, *, is_pipe: bool) -> tuple[Callable[[], Ends], Callable[[], Ends]]:
    if is_pipe:
        there, back = os.pipe(), os.pipe()
        fds = [(there[1], back[0]), (back[1], there[0])]
    else:
        pair = [sock.detach() for sock in socket.socketpair()]
        fds = [(pair[0], pair[0]), (pair[1], pair[1])]
    for fd in {fd for ends in fds for fd in ends}:
        stack.callback(os.close, fd)

    def end(mine: int) -> Callable[[], Ends]:
        write, read = fds[mine]
        return lambda: (lambda: _write_one(write), lambda: _read_one(read))

    return end(0), end(1)


def _write_one(fd: int) -> None:
    assert os.write(fd, b"x") == 1


def _read_one(fd: int) -> None:
    assert os.read(fd, 1) == b"x"


def awake(loops: int) -> float:
    """One loop is a wake-up that is not needed: the other side looks at its ring anyway."""
    with Region.create(RegionKind.SLAB, 4096, 1) as region:
        eventfd = make_eventfd()
        waker = Waker(region.words, 0, eventfd)
        started = time.perf_counter()
        for _ in range(loops):
            waker.wake()
        took = time.perf_counter() - started
        try:
            os.eventfd_read(eventfd)
            raise AssertionError("somebody was woken who did not sleep")
        except BlockingIOError:
            pass
        finally:
            os.close(eventfd)
    return took


BENCHMARKS = {
    "word and eventfd, round trip": round_trip(by_eventfd),
    "pipe, round trip": round_trip(lambda stack: by_stream(stack, is_pipe=True)),
    "socket pair, round trip": round_trip(lambda stack: by_stream(stack, is_pipe=False)),
    "word, the other one is awake": awake,
}

if __name__ == "__main__":
    raise SystemExit(main("bench.micro.wait", __doc__, BENCHMARKS))
