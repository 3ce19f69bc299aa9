"""A broker that is wrong on purpose: the load generator must notice, or its figures prove nothing.

Speaks just enough for a produce run (CreateTopics v2, Metadata v4, ListOffsets v1, Produce v7), one thread
per connection, one partition. A `fault` makes it answer the third Produce wrongly.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from types import TracebackType

PRODUCE, LIST_OFFSETS, METADATA, CREATE_TOPICS = 0, 2, 3, 19
FAULTS = ("error", "duplicate", "correlation", "close", "lost", "silence")
WRONG_ANSWER = 3  # the number of the Produce request that the fault hits


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class FakeBroker:
    """Listens on a port of its own until the `with` block ends."""

    def __init__(self, fault: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        assert fault is None or fault in FAULTS, fault
        self._fault = fault
        self._end = 0
        self._produced = 0
        self._has_leader = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.bootstrap = f"127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> FakeBroker:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._threads[0].join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if self._tls is not None:
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                except OSError:
                    continue  # The client does not trust us.
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with contextlib.suppress(OSError, struct.error), stream:
            while True:
                (length,) = struct.unpack(">i", stream.read(4))
                body = stream.read(length)
                key, _, correlation, client = struct.unpack_from(">hhih", body)
                answer = self._answer(key, body[10 + client :])
                if answer is None:
                    continue
                if not answer:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                is_wrong = key == PRODUCE and self._fault == "correlation" and self._produced == WRONG_ANSWER
                frame = struct.pack(">i", correlation + is_wrong) + answer
                connection.sendall(struct.pack(">i", len(frame)) + frame)

    def _answer(self, key: int, body: bytes) -> bytes | None:
        """The body of the answer; empty to close the connection, None to stay silent."""
        if key == PRODUCE:
            return self._produce(body)
        (name_length,) = struct.unpack_from(">h", body, 8 if key == LIST_OFFSETS else 4)
        start = 10 if key == LIST_OFFSETS else 6
        topic = _text(body[start : start + name_length].decode())
        if key == CREATE_TOPICS:
            return struct.pack(">ii", 0, 1) + topic + struct.pack(">hh", 0, -1)
        if key == METADATA:
            brokers = struct.pack(">ii", 1, 0) + _text("127.0.0.1") + struct.pack(">ih", 9092, -1)
            # At first there is no leader, as with Kafka after it has made many partitions.
            error, leader = (0, 0) if self._has_leader else (5, -1)
            self._has_leader = True
            partition = struct.pack(">hiiiiii", error, 0, leader, 1, 0, 1, 0)
            head = struct.pack(">i", 0) + brokers + struct.pack(">hiih", -1, 0, 1, 0)
            return head + topic + struct.pack(">bi", 0, 1) + partition
        assert key == LIST_OFFSETS, key
        end = self._end - (self._fault == "lost" and self._end > 0)
        return struct.pack(">i", 1) + topic + struct.pack(">iihqq", 1, 0, 0, -1, end)

    def _produce(self, body: bytes) -> bytes | None:
        self._produced += 1
        (name_length,) = struct.unpack_from(">h", body, 12)
        topic = _text(body[14 : 14 + name_length].decode())
        base, error = self._end, 0
        self._end += 1
        if self._produced == WRONG_ANSWER:
            if self._fault == "close":
                return b""
            if self._fault == "silence":
                return None
            error = 7 if self._fault == "error" else 0
            base -= self._fault == "duplicate"
        return struct.pack(">i", 1) + topic + struct.pack(">iihqqqi", 1, 0, error, base, -1, 0, 0)
