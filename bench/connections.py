"""Connection limits and churn of a real broker: the rate that was set beside the rate that came.

    python -m bench.connections                      # all, about a minute and a half
    python -m bench.connections --only churn --seconds 20

A client connects, asks ApiVersions, reads the answer and closes; a connection counts when its answer came. Some are
always on their way (`--inflight`), so the limit is what slows them. The first 12 s of a limited run do not count:
Kafka's windows (11 samples of 1 s) let about 10 s worth of connections through at once, and so do ours. A throttled
connection of an address is closed without an answer, and is not counted.
Churn has no limit: connections per second, and whether a descriptor or a page stays behind in the broker, seen while
nobody is connected.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.peers.base import free_ports
from bench.proc import cpu_seconds, process_tree, pss_bytes
from kproc import Broker

WARM_SECONDS = 12.0
SETTLE_SECONDS = 2.0
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, 0)


class Churn:
    """Clients that come, ask once and go, `inflight` of them at a time."""

    def __init__(self, addresses: list[tuple[str, int]], sources: list[str], inflight: int) -> None:
        self._targets = [(address, source) for address in addresses for source in sources]
        self._epoll = select.epoll()
        self._socks: dict[int, tuple[socket.socket, int]] = {}
        self._next = 0
        self.served = [0] * len(self._targets)
        self.refused = 0
        for _ in range(inflight):
            self._connect()

    def run(self, seconds: float) -> list[int]:
        """Return how many connections of each (address, source) were served in this time."""
        before = list(self.served)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for fd, mask in self._epoll.poll(min(left, 0.1)):
                self._on_event(fd, mask)
        return [now - then for now, then in zip(self.served, before, strict=True)]

    def close(self) -> None:
        for sock, _ in self._socks.values():
            sock.close()
        self._epoll.close()

    def _connect(self) -> None:
        at = self._next % len(self._targets)
        self._next += 1
        address, source = self._targets[at]
        sock = socket.socket()
        sock.setblocking(False)
        # No TIME_WAIT, or the ports of the loopback are used up within seconds.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.bind((source, 0))
        sock.connect_ex(address)
        self._socks[sock.fileno()] = (sock, at)
        self._epoll.register(sock.fileno(), select.EPOLLOUT)

    def _on_event(self, fd: int, mask: int) -> None:
        sock, at = self._socks[fd]
        try:
            if mask & select.EPOLLOUT and not mask & select.EPOLLERR:
                sock.send(API_VERSIONS)
                self._epoll.modify(fd, select.EPOLLIN)
                return
            answer = sock.recv(65536)
        except OSError:
            answer = b""
        if answer:
            self.served[at] += 1
        else:
            self.refused += 1
        self._epoll.unregister(fd)
        del self._socks[fd]
        sock.close()
        self._connect()


@contextmanager
def broker(**settings: str) -> Iterator[Broker]:
    with Broker(settings={name.replace("_", "."): value for name, value in settings.items()}) as running:
        yield running


def descriptors(pids: list[int]) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def show(what: str, wanted: float, got: float) -> None:
    off = 100 * (got - wanted) / wanted
    print(f"{what:42} set {wanted:8.1f}/s  came {got:8.1f}/s  {off:+5.1f} %", flush=True)


def rate_of_a_listener(rate: int, seconds: float, inflight: int) -> None:
    with broker(max_connection_creation_rate=str(rate)) as running:
        churn = Churn([(running.host, running.port)], ["127.0.0.1"], inflight)
        churn.run(WARM_SECONDS)
        show("max.connection.creation.rate, one listener", rate, churn.run(seconds)[0] / seconds)
        churn.close()


def rate_of_the_broker(rate: int, seconds: float, inflight: int) -> None:
    """Two listeners share the broker's rate; each alone could have ten times of it."""
    own = {f"listener.name.{name}.max.connection.creation.rate": str(10 * rate) for name in ("one", "two")}
    one, two = free_ports(2)
    with broker(
        listeners=f"ONE://127.0.0.1:{one},TWO://127.0.0.1:{two}",
        listener_security_protocol_map="ONE:PLAINTEXT,TWO:PLAINTEXT",
        max_connection_creation_rate=str(rate),
        **own,
    ):
        churn = Churn([("127.0.0.1", one), ("127.0.0.1", two)], ["127.0.0.1"], inflight)
        churn.run(WARM_SECONDS)
        served = churn.run(seconds)
        show("the same for the broker, two listeners", rate, sum(served) / seconds)
        churn.close()


def rate_of_an_address(rate: int, seconds: float, inflight: int) -> None:
    from tests.support.raw import RawClient

    with broker() as running:
        alter_ip_rate(RawClient(running.bootstrap), "127.0.0.2", rate)
        churn = Churn([(running.host, running.port)], ["127.0.0.2", "127.0.0.3"], inflight)
        churn.run(WARM_SECONDS)
        limited, free = churn.run(seconds)
        show("connection_creation_rate of 127.0.0.2", rate, limited / seconds)
        print(f"{'':42} an address without one beside it: {free / seconds:.0f}/s", flush=True)
        churn.close()


def alter_ip_rate(client: object, address: str, rate: int) -> None:
    from kproc.wire.header import ApiKey

    entry = {
        "entity": [{"entity_type": "ip", "entity_name": address}],
        "ops": [{"key": "connection_creation_rate", "value": float(rate), "remove": False}],
    }
    answer = client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})  # type: ignore[attr-defined]
    assert answer["entries"][0]["error_code"] == 0, answer
    client.close()  # type: ignore[attr-defined]


def churn(seconds: float, inflight: int) -> None:
    """Without a limit. What stays behind is seen when nobody is connected, before and after."""
    with broker() as running:
        pids = process_tree(int(running.pid))
        served_before, *_ = come_and_go(running, 3.0, inflight)
        before = descriptors(pids), pss_bytes(pids), cpu_seconds(pids)
        served, refused = come_and_go(running, seconds, inflight)
        cpu = cpu_seconds(pids) - before[2]
        after = descriptors(pids), pss_bytes(pids)
        print(
            f"{'churn, no limit':42} {served / seconds:.0f} connections/s, {1e6 * cpu / served:.0f} us CPU each, "
            f"{refused} refused; idle after {served_before} and {served_before + served} connections: "
            f"descriptors {before[0]} -> {after[0]}, PSS {before[1] / 1e6:.1f} -> {after[1] / 1e6:.1f} MB",
            flush=True,
        )


def come_and_go(running: Broker, seconds: float, inflight: int) -> tuple[int, int]:
    """(served, refused) in so many seconds; everybody has left, and the broker has noticed, when this returns."""
    clients = Churn([(running.host, running.port)], ["127.0.0.1"], inflight)
    (served,) = clients.run(seconds)
    clients.close()
    time.sleep(SETTLE_SECONDS)
    return served, clients.refused


CASES = {
    "listener": lambda args: rate_of_a_listener(args.rate, args.seconds, args.inflight),
    "broker": lambda args: rate_of_the_broker(args.rate, args.seconds, args.inflight),
    "address": lambda args: rate_of_an_address(args.rate, args.seconds, args.inflight),
    "churn": lambda args: churn(args.seconds, args.inflight),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--inflight", type=int, default=32)
    args = parser.parse_args()
    for name in args.only or CASES:
        CASES[name](args)


if __name__ == "__main__":
    main()
