"""A broker that is wrong on purpose: the load generator must notice, or its figures prove nothing.

Speaks just enough for a produce run (CreateTopics v2, Metadata v4, ListOffsets v1, Produce v7), one thread
per connection, one partition. A `fault` makes it answer the third Produce wrongly.
"""

from __future__ import annotations

import ssl
import struct

from tests.support.frame_server import FrameServer

PRODUCE, LIST_OFFSETS, METADATA, CREATE_TOPICS = 0, 2, 3, 19
FAULTS = ("error", "duplicate", "correlation", "close", "lost", "silence")
WRONG_ANSWER = 3  # the number of the Produce request that the fault hits


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class FakeBroker(FrameServer):
    """Answers a produce run, wrongly if a `fault` says so."""

    def __init__(self, fault: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        assert fault is None or fault in FAULTS, fault
        self._fault = fault
        self._end = 0
        self._produced = 0
        self._has_leader = False

    def handle(self, frame: bytes) -> bytes | None:
        key, _, correlation, client = struct.unpack_from(">hhih", frame)
        answer = self._answer(key, frame[10 + client :])
        if answer is None:
            return b""
        if not answer:
            return None
        is_wrong = key == PRODUCE and self._fault == "correlation" and self._produced == WRONG_ANSWER
        return struct.pack(">ii", 4 + len(answer), correlation + is_wrong) + answer

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
