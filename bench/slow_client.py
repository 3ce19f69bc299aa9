"""Do one client that stops reading and one that is stopped slow the others down?

    python -m bench.slow_client                       # 200 clients, 500 requests/s in all, about 45 s
    python -m bench.slow_client --processors 1 --rounds 3

The others produce one record of 100 B each at a fixed rate, whatever the answers do (open loop): a request's time
counts from when it was due, so that a stall is in all the requests it delayed. Every round measures them alone, then
beside the two: one client asked for 50 MB and reads nothing, a process with requests under way is stopped by SIGSTOP.
The two figures of a round are seconds apart; compare them, not rounds, and the medians over the rounds at the end.
One Processor and one Handler serve everybody. Printed besides: how much the memory of the broker's processes grew
(PSS), and how late the generator itself was.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.peers.base import REPOSITORY, python_environment
from bench.proc import process_tree, pss_bytes
from kproc import Broker
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient, batch, fetch_fields, produce_fields

TOPIC, BIG = "others", "big"
FETCHED_BYTES = 50_000_000
WARM_SECONDS = 2.0
_PRODUCE_VERSION = 9
_LENGTH = struct.Struct(">i")


class Others:
    """Many clients on one thread; each sends when it is its turn."""

    def __init__(self, bootstrap: str, count: int, rate: float) -> None:
        host, _, port = bootstrap.rpartition(":")
        fields = produce_fields([(TOPIC, bytes(16), [(0, batch(b"x" * 100))])], acks=1)
        self._frame = codec.encode_request(ApiKey.PRODUCE, _PRODUCE_VERSION, 1, "other", fields)
        self._interval = 1.0 / rate
        self._epoll = select.epoll()
        self._socks: list[socket.socket] = []
        self._by_fd: dict[int, tuple[socket.socket, bytearray, deque[float]]] = {}
        for _ in range(count):
            sock = socket.create_connection((host, int(port)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._socks.append(sock)
            self._by_fd[sock.fileno()] = sock, bytearray(), deque()
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def run(self, seconds: float) -> tuple[list[float], float]:
        """(milliseconds of every request that was due in so many seconds, the most that we were late to send)."""
        taken_ms: list[float] = []
        due = begun = time.perf_counter()
        late = turn = 0.0
        while True:
            now = time.perf_counter()
            while due <= now and due < begun + seconds:
                sock = self._socks[int(turn) % len(self._socks)]
                turn += 1
                late = max(late, now - due)
                self._by_fd[sock.fileno()][2].append(due)
                if sock.send(self._frame) != len(self._frame):
                    raise RuntimeError("a client's own socket is full: the broker does not read it")
                due += self._interval
            if due >= begun + seconds and not any(waiting for _, _, waiting in self._by_fd.values()):
                return taken_ms, late * 1000
            if now > begun + seconds + 30:
                raise RuntimeError("requests are unanswered after 30 s")
            for fd, _ in self._epoll.poll(max(0.0, min(due - time.perf_counter(), 0.1))):
                self._read(fd, taken_ms)

    def _read(self, fd: int, taken_ms: list[float]) -> None:
        sock, received, waiting = self._by_fd[fd]
        piece = sock.recv(65536)
        if not piece:
            raise RuntimeError("the broker closed a connection")
        received += piece
        now = time.perf_counter()
        while len(received) >= 4 and len(received) >= 4 + (length := _LENGTH.unpack_from(received)[0]):
            taken_ms.append((now - waiting.popleft()) * 1000)
            del received[: 4 + length]

    def close(self) -> None:
        for sock in self._socks:
            sock.close()
        self._epoll.close()


def fill(bootstrap: str) -> None:
    """The topics, and 50 MB to fetch."""
    with RawClient(bootstrap) as client:
        client.create_topic(TOPIC)
        client.create_topic(BIG)
        for _ in range(FETCHED_BYTES // 900_000 + 1):
            assert client.produce(BIG, batch(bytes(900_000)))["error_code"] == 0


def fetch_of_all() -> dict[str, object]:
    return fetch_fields(
        [(BIG, bytes(16), [(0, 0)])], max_bytes=FETCHED_BYTES, partition_max_bytes=FETCHED_BYTES
    )


@contextmanager
def reader_that_stopped(bootstrap: str, requests: int = 20) -> Iterator[None]:
    """Asks for 50 MB, many times, and reads none of it."""
    with RawClient(bootstrap) as client:
        for _ in range(requests):
            client.send(ApiKey.FETCH, 12, fetch_of_all())
        yield


@contextmanager
def stopped_process(bootstrap: str) -> Iterator[None]:
    """A client with requests of all kinds under way, stopped in the middle of sending and reading them."""
    command = [sys.executable, "-P", "-m", "bench.slow_client", "--be-stopped", bootstrap]
    environment = python_environment(REPOSITORY)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"busy\n"
            os.kill(process.pid, signal.SIGSTOP)
            yield
        finally:
            process.kill()


def be_busy(bootstrap: str) -> None:
    """The process that will be stopped: pipelines Produces and large Fetches for ever."""
    with RawClient(bootstrap) as client:
        produce = produce_fields([(TOPIC, bytes(16), [(0, batch(b"x" * 10_000))])], acks=1)
        client.send(ApiKey.FETCH, 12, fetch_of_all())
        is_said = False
        while True:
            client.send(ApiKey.PRODUCE, _PRODUCE_VERSION, produce)
            client.send(ApiKey.FETCH, 12, fetch_of_all())
            if not is_said:
                print("busy", flush=True)
                is_said = True
            client.receive_frame()


def show(what: str, taken_ms: list[float], late_ms: float) -> tuple[float, float]:
    """Print one measurement; its p50 and p99."""
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    print(
        f"{what:30} {len(taken_ms):6} requests   p50 {cuts[49]:6.2f} ms   p99 {cuts[98]:6.2f} ms   "
        f"max {max(taken_ms):7.2f} ms   generator late by {late_ms:.1f} ms at most",
        flush=True,
    )
    return cuts[49], cuts[98]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument(
        "--rate", type=float, default=500.0, help="requests per second of all clients together"
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processors", type=int, default=1)
    parser.add_argument("--handlers", type=int, default=1)
    parser.add_argument("--be-stopped", metavar="HOST:PORT", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.be_stopped:
        be_busy(chosen.be_stopped)
    settings = {"num.network.threads": chosen.processors, "num.io.threads": chosen.handlers}
    with Broker(settings=settings) as broker:
        fill(broker.bootstrap)
        others = Others(broker.bootstrap, chosen.clients, chosen.rate)
        others.run(WARM_SECONDS)
        pids = process_tree(int(broker.pid))
        alone: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []
        for _ in range(chosen.rounds):
            alone.append(show("alone", *others.run(chosen.seconds)))
            before = pss_bytes(pids)
            with ExitStack() as stack:
                stack.enter_context(reader_that_stopped(broker.bootstrap))
                stack.enter_context(stopped_process(broker.bootstrap))
                others.run(1.0)  # What the two get before they stop taking it.
                beside.append(show("beside the two", *others.run(chosen.seconds)))
                print(f"{'':30} memory {(pss_bytes(pids) - before) / 1e6:+.1f} MB", flush=True)
        others.close()
    for what, found in (("alone", alone), ("beside the two", beside)):
        p50, p99 = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{what:30} medians of {len(found)} rounds: p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
