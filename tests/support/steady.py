"""Connections that must never break: producers and long-polling consumers on one thread, each on one TCP connection.

Unlike the load of checker.py nothing here reconnects or is idempotent: a closed connection, an error code or an
answer out of turn is a violation. So is a value that a consumer sees twice, not at all or out of order.
Values are `<producer>:<number>`, as checker.py reads them.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import deque
from typing import Any

from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.checker import Acknowledged, check_log, read_log
from tests.support.raw import address_of, batch, fetch_fields, produce_fields, values_of
from tests.support.wait import wait_until

_PRODUCE_VERSION, _FETCH_VERSION = 9, 12
_LONG_POLL_MS = 300
_PIPELINED = (
    2  # Requests of a producer under way: an order to keep, and bytes that are half read when it moves.
)
_PAUSE_SECONDS = 0.05  # Between a producer's requests, so that the broker has the cores.
_BIG_BYTES = 40_000  # Above the size that goes through the arena.
_ANSWER_SECONDS = 120.0


class _Connection:
    """One socket, its unsent bytes, its unanswered requests."""

    def __init__(self, load: SteadyLoad, name: str) -> None:
        self.load = load
        self.name = name
        self.sock = socket.create_connection(address_of(load.bootstrap), timeout=_ANSWER_SECONDS)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.unsent = b""
        self.waiting: deque[tuple[int, float, Any]] = deque()
        self.next_id = 0
        self.due = 0.0
        self.answers = 0

    def request(self, key: ApiKey, version: int, fields: dict[str, Any], note: Any) -> None:
        self.next_id += 1
        self.waiting.append((self.next_id, time.monotonic(), note))
        self.unsent += codec.encode_request(key, version, self.next_id, self.name, fields)
        self.write()

    def write(self) -> None:
        while self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except BlockingIOError:
                return

    def read(self) -> None:
        piece = self.sock.recv(1 << 20)
        if not piece:
            raise ConnectionResetError("closed by the broker")
        self.received += piece
        while len(self.received) >= 4:
            (length,) = struct.unpack_from(">i", self.received)
            if len(self.received) < 4 + length:
                return
            frame = bytes(self.received[4 : 4 + length])
            del self.received[: 4 + length]
            wanted, _, note = self.waiting.popleft()
            found = int.from_bytes(frame[:4], "big", signed=True)
            if found != wanted:
                raise ConnectionResetError(f"answer {found} where {wanted} was due")
            self.answers += 1
            self.take(frame, note)

    def take(self, frame: bytes, note: Any) -> None:
        raise NotImplementedError

    def feed(self, now: float) -> None:
        raise NotImplementedError


class _Producer(_Connection):
    def __init__(self, load: SteadyLoad, name: str, partition: int) -> None:
        super().__init__(load, name)
        self.partition = partition
        self.number = 0
        self.acknowledged: list[Acknowledged] = []

    def feed(self, now: float) -> None:
        if now < self.due or len(self.waiting) >= _PIPELINED or self.load.is_ending:
            return
        self.due = now + _PAUSE_SECONDS
        value = f"{self.name}:{self.number}".encode()
        self.number += 1
        big = b"" if self.number % 50 else b"#" * _BIG_BYTES
        records = batch(value + big)
        fields = produce_fields([(self.load.topic, bytes(16), [(self.partition, records)])])
        self.request(ApiKey.PRODUCE, _PRODUCE_VERSION, fields, value + big)

    def take(self, frame: bytes, note: Any) -> None:
        fields = codec.decode_response(ApiKey.PRODUCE, _PRODUCE_VERSION, frame)[1]
        row = fields["responses"][0]["partition_responses"][0]
        if row["error_code"]:
            raise ConnectionResetError(f"Produce was answered with error {row['error_code']}")
        self.acknowledged.append(Acknowledged(self.partition, row["base_offset"], note))


class _Consumer(_Connection):
    def __init__(self, load: SteadyLoad, name: str, partition: int) -> None:
        super().__init__(load, name)
        self.partition = partition
        self.seen: list[tuple[int, bytes]] = []

    def feed(self, now: float) -> None:
        del now
        if self.waiting or self.load.is_over:
            return
        offset = self.seen[-1][0] + 1 if self.seen else 0
        fields = fetch_fields(
            [(self.load.topic, bytes(16), [(self.partition, offset)])], max_wait_ms=_LONG_POLL_MS
        )
        self.request(ApiKey.FETCH, _FETCH_VERSION, fields, offset)

    def take(self, frame: bytes, note: Any) -> None:
        fields = codec.decode_response(ApiKey.FETCH, _FETCH_VERSION, frame)[1]
        if fields["error_code"]:
            raise ConnectionResetError(f"Fetch was answered with error {fields['error_code']}")
        row = fields["responses"][0]["partitions"][0]
        if row["error_code"]:
            raise ConnectionResetError(f"Fetch of a partition was answered with error {row['error_code']}")
        fresh = [(offset, value or b"") for offset, value in values_of(row["records"]) if offset >= note]
        self.seen += fresh


class SteadyLoad:
    """`producers` and `consumers` connections over one topic until `finish`."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, producers: int = 24, consumers: int = 24
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.is_ending = False  # Producers send nothing new.
        self.is_over = False
        self.violations: list[str] = []
        self._producers = [_Producer(self, f"s{n}", n % partitions) for n in range(producers)]
        self._consumers = [_Consumer(self, f"c{n}", n % partitions) for n in range(consumers)]
        self._selector = selectors.DefaultSelector()
        for each in (*self._producers, *self._consumers):
            self._selector.register(each.sock, selectors.EVENT_READ, each)
        self._thread = threading.Thread(target=self._run, name="steady-load")

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_ending = self.is_over = True
        self._thread.join()
        for each in (*self._producers, *self._consumers):
            each.sock.close()
        self._selector.close()

    @property
    def acknowledged_count(self) -> int:
        """How many records are acknowledged so far."""
        return sum(len(each.acknowledged) for each in self._producers)

    def wait_progress(self, what: str) -> None:
        """Every connection gets an answer from now on."""
        before = {each.name: each.answers for each in (*self._producers, *self._consumers)}

        def all_go_on() -> bool:
            assert not self.violations, self.violations[:5]
            rows = (*self._producers, *self._consumers)
            stuck = [each.name for each in rows if each.answers <= before[each.name]]
            assert not stuck, f"no answer to {stuck[:10]}"
            return True

        wait_until(all_go_on, seconds=_ANSWER_SECONDS, what=f"every connection goes on: {what}")

    def finish(self) -> list[str]:
        """Let everything under way end, read the log, say every violation; empty is good."""
        self.is_ending = True
        wait_until(
            lambda: self.violations or not any(each.waiting for each in self._producers),
            seconds=_ANSWER_SECONDS,
            what="every Produce is answered",
        )
        log = read_log(self.bootstrap, self.topic, self.partitions)
        ends = {index: len(rows) for index, rows in log.items()}
        wait_until(
            lambda: self.violations or all(len(c.seen) >= ends[c.partition] for c in self._consumers),
            seconds=_ANSWER_SECONDS,
            what="every consumer is at the end",
        )
        self.is_over = True
        violations = list(self.violations)
        acknowledged = [row for each in self._producers for row in each.acknowledged]
        violations += check_log(
            {index: [(offset, value.rstrip(b"#")) for offset, value in rows] for index, rows in log.items()},
            [Acknowledged(row.partition, row.offset, row.value.rstrip(b"#")) for row in acknowledged],
        )
        stored = sum(ends.values())
        if stored != len(acknowledged):
            violations.append(f"{stored} records are stored, {len(acknowledged)} were acknowledged")
        for each in self._consumers:
            if each.seen != log[each.partition]:
                violations.append(f"{each.name} did not see what is in partition {each.partition}")
        return violations

    def _run(self) -> None:
        while not self.is_over:
            now = time.monotonic()
            for each in [*self._selector.get_map().values()]:
                self._guarded(each.data, "feed", now)
            for key, _ in self._selector.select(0.005):
                self._guarded(key.data, "read")

    def _guarded(self, each: _Connection, what: str, *arguments: Any) -> None:
        try:
            getattr(each, what)(*arguments)
            if each.unsent:
                each.write()
        except OSError as problem:
            self.violations.append(f"{each.name}: {problem}")
            self._selector.unregister(each.sock)
            each.waiting.clear()
