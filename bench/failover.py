"""Measure how long partitions are away when a Handler that owns all of them dies.

    python -m bench.failover                          # 2,000 partitions, one Handler, 5 deaths, about 40 s
    python -m bench.failover --handlers 2 --producers 0

Every partition has been written to, by idempotent producers unless `--producers 0`. One Handler is killed with SIGKILL;
each client (they ask for a stretch of the partitions each, in one connection, some requests ahead) connects again when
it loses its connection and sends a record of 100 B to each of its partitions until it is acknowledged. A partition is
served again when that answer is there. Printed for each death: when the first, half and all partitions were, and the
CPU time of the successor until then, which says what a quiet host would take.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import statistics
import struct
import time
from collections import deque

from bench.proc import cpu_seconds
from kproc import Broker
from kproc.common.clock import SystemClock
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.raw import RawClient, create_topics_fields, produce_fields
from tests.support.status import processes

TOPIC = "failover"
BATCHES_BEFORE = 5  # Of each partition, before the first death.
_VERSION = 9
_LENGTH = struct.Struct(">i")
_NO_ANSWER_S = 60.0
_MS_PER_S = 1000.0


class Client:
    """One connection with its stretch of the partitions; those that are not acknowledged go out again."""

    def __init__(self, address: tuple[str, int], partitions: list[int], ahead: int) -> None:
        self._address = address
        self._partitions = partitions
        self._ahead = ahead
        self._left: deque[int] = deque()
        self._under_way: deque[int] = deque()
        self._frames: dict[int, bytes] = {}
        self._buffer = bytearray()
        self.sock = socket.create_connection(address)

    def prepare(self, number: int, producers: int) -> None:
        """The next record of each partition; `number` is its sequence."""
        now_ms = SystemClock().wall_ms()
        for partition in self._partitions:
            sequence = {
                "base_sequence": number,
                "producer_epoch": 0,
                "producer_id": partition % producers + 1,
            }
            records = encode_batch([Record(b"key", b"x" * 100, now_ms)], **(sequence if producers else {}))
            fields = produce_fields([(TOPIC, bytes(16), [(partition, bytes(records))])], acks=1)
            self._frames[partition] = codec.encode_request(ApiKey.PRODUCE, _VERSION, 1, "failover", fields)
        self._left = deque(self._partitions)
        self._under_way.clear()

    def is_done(self) -> bool:
        """Return True if all of its partitions were acknowledged."""
        return not self._left and not self._under_way

    def connect(self) -> None:
        """Again: what was under way is not acknowledged."""
        self.sock.close()
        self._buffer.clear()
        self._left.extendleft(reversed(self._under_way))
        self._under_way.clear()
        self.sock = socket.create_connection(self._address)

    def send(self) -> None:
        """As many requests as may be under way."""
        parts = []
        while self._left and len(self._under_way) < self._ahead:
            partition = self._left.popleft()
            self._under_way.append(partition)
            parts.append(self._frames[partition])
        if parts:
            self.sock.sendall(b"".join(parts))

    def receive(self) -> list[int]:
        """The partitions that were acknowledged; ConnectionError when the connection has ended."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        self._buffer += data
        done = []
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            frame = memoryview(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
            partition = self._under_way.popleft()
            _, answer = codec.decode_response(ApiKey.PRODUCE, _VERSION, frame)
            if answer["responses"][0]["partition_responses"][0]["error_code"]:
                self._left.append(partition)
            else:
                done.append(partition)
        return done


def drive(clients: list[Client], since: float) -> list[float]:
    """Until every partition is acknowledged; when each was, in ms since then."""
    poll = select.poll()
    by_fd: dict[int, Client] = {}

    def start(client: Client) -> None:
        by_fd[client.sock.fileno()] = client
        poll.register(client.sock.fileno(), select.POLLIN)
        client.send()

    for client in clients:
        start(client)
    times: list[float] = []
    while not all(client.is_done() for client in clients):
        ready = poll.poll(_NO_ANSWER_S * _MS_PER_S)
        assert ready, f"no answer for {_NO_ANSWER_S} s"
        for fd, _ in ready:
            client = by_fd[fd]
            try:
                count = len(client.receive())
                times += [(time.perf_counter() - since) * _MS_PER_S] * count
                client.send()
            except ConnectionError:
                poll.unregister(fd)
                del by_fd[fd]
                client.connect()
                start(client)
    return times


def main() -> None:
    """Print one line for each death, and the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--handlers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--ahead", type=int, default=5, help="requests under way of each connection")
    parser.add_argument("--producers", type=int, default=8, help="idempotent producers; 0: none")
    parser.add_argument("--deaths", type=int, default=5)
    options = parser.parse_args()
    settings = {"num.io.threads": options.handlers, "num.network.threads": 1}
    with Broker(settings, transport="process") as broker:
        with RawClient(broker.bootstrap) as client:
            answer = client.call(
                ApiKey.CREATE_TOPICS, 7, create_topics_fields(TOPIC, partitions=options.partitions)
            )
            assert answer["topics"][0]["error_code"] == 0, answer
        host, _, port = broker.bootstrap.rpartition(":")
        clients = [
            Client((host, int(port)), list(range(first, options.partitions, options.clients)), options.ahead)
            for first in range(options.clients)
        ]
        halves, wholes = [], []
        for number in range(BATCHES_BEFORE + options.deaths):
            for each in clients:
                each.prepare(number, options.producers)
            since = time.perf_counter()
            is_death = number >= BATCHES_BEFORE
            if is_death:
                os.kill(processes(broker.bootstrap)["handler", 0], signal.SIGKILL)
                since = time.perf_counter()
            times = drive(clients, since)
            if is_death:
                halves.append(times[len(times) // 2 - 1])
                wholes.append(times[-1])
                cpu_ms = cpu_seconds([processes(broker.bootstrap)["handler", 0]]) * _MS_PER_S
                print(
                    f"first {times[0]:6.0f} ms  half {halves[-1]:6.0f} ms  all {wholes[-1]:6.0f} ms"
                    f"  successor's CPU {cpu_ms:6.0f} ms"
                )
        print(
            f"medians:         half {statistics.median(halves):6.0f} ms  all {statistics.median(wholes):6.0f} ms"
        )


if __name__ == "__main__":
    main()
