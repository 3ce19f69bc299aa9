"""Clients that wait: each long poll of theirs ends in an answer or in a closed connection, and never in silence.

A long poll here asks for more than it may be given, so that it always waits for its deadline or for somebody's death.
A client whose connection is closed comes back with a new one.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time

from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.raw import address_of, fetch_fields

_FETCH_VERSION = 12
_LONG_POLL_MS = 1_500
# Beyond it a request counts as forgotten. Roles are stopped for less than a second, restarted in less than that.
_SILENCE_SECONDS = 90.0


class _Waiter:
    def __init__(self, name: str, partition: int) -> None:
        self.name = name
        self.partition = partition
        self.sock: socket.socket | None = None
        self.received = bytearray()
        self.asked_at = 0.0


class WaitingClients:
    """`count` connections that long-poll the partitions of a topic until the block ends."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, count: int = 16) -> None:
        self._address = address_of(bootstrap)
        self._topic = topic
        self._waiters = [_Waiter(f"w{n}", n % partitions) for n in range(count)]
        self._selector = selectors.DefaultSelector()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waiting-clients")
        self.violations: list[str] = []
        self.longest_seconds = 0.0
        self.answers = self.ends = 0

    def __enter__(self) -> WaitingClients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._waiters:
            self._close(each)
        self._selector.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for each in self._waiters:
                if each.sock is None:
                    self._connect(each)
                self._judge(each, time.monotonic() - each.asked_at)
            for key, _ in self._selector.select(0.05):
                self._read(key.data)

    def _connect(self, each: _Waiter) -> None:
        each.asked_at = time.monotonic()
        each.received.clear()
        try:
            each.sock = socket.create_connection(self._address, timeout=_SILENCE_SECONDS)
        except OSError as problem:  # The listening socket outlives every role.
            self.violations.append(f"{each.name}: nobody took its connection: {problem}")
            self._is_over.set()
            return
        each.sock.setblocking(False)
        self._selector.register(each.sock, selectors.EVENT_READ, each)
        self._ask(each)

    def _ask(self, each: _Waiter) -> None:
        assert each.sock is not None
        wanted = [(self._topic, bytes(16), [(each.partition, 0)])]
        fields = fetch_fields(wanted, max_wait_ms=_LONG_POLL_MS, min_bytes=1 << 30, max_bytes=1)
        each.asked_at = time.monotonic()
        try:
            each.sock.sendall(codec.encode_request(ApiKey.FETCH, _FETCH_VERSION, 1, each.name, fields))
        except OSError:
            self._end(each)

    def _read(self, each: _Waiter) -> None:
        assert each.sock is not None
        try:
            piece = each.sock.recv(1 << 16)
        except ConnectionError:
            piece = b""
        if not piece:
            self._end(each)
            return
        each.received += piece
        if len(each.received) < 4:
            return
        (length,) = struct.unpack_from(">i", each.received)
        if len(each.received) >= 4 + length:
            each.received.clear()
            self.answers += 1
            self._judge(each, time.monotonic() - each.asked_at)
            self._ask(each)

    def _end(self, each: _Waiter) -> None:
        self.ends += 1
        self._judge(each, time.monotonic() - each.asked_at)
        self._close(each)

    def _judge(self, each: _Waiter, waited: float) -> None:
        self.longest_seconds = max(self.longest_seconds, waited)
        if waited > _SILENCE_SECONDS:
            self.violations.append(f"{each.name}: silence for {waited:.1f} s")
            self._close(each)

    def _close(self, each: _Waiter) -> None:
        if each.sock is not None:
            self._selector.unregister(each.sock)
            each.sock.close()
            each.sock = None
