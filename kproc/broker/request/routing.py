"""ProduceRouter: decides cheaply which Handler a Processor sends a frame to.

Brokers with one Handler do not use it. A Produce for one partition should go straight to that partition's owner. Every
other frame goes to the connection's home Handler. The router knows no metadata. When a home Handler has to forward a
Produce, it sends a hint: the bytes that name topic and partition, and the owner. The next frame with the same bytes
goes to that owner. A stale hint costs one forwarding, but never causes a wrong response.
"""

from __future__ import annotations

import struct
from typing import Final

from kproc.common.errors import ProtocolError
from kproc.wire.header import REQUEST_HEADER
from kproc.wire.primitives import read_unsigned_varint

_HINTS_MAX: Final = 8192  # Limit of a Processor's hints. At the limit it discards all of them.
# The fields behind the client id, as every producer without transactions writes them: transactional id, acks, timeout,
# count of topics, length of the first topic's name.
_PLAIN: Final = struct.Struct(">hhiih")
# The same fields in flexible versions: tagged fields come first, and compact lengths are stored plus one.
_COMPACT: Final = struct.Struct(">BBhiBB")
_FLEXIBLE: Final = 9
_BY_ID: Final = 13  # From this version on Produce names topics by id (KIP-516).
_ID_BYTES: Final = 16
OWNER: Final = struct.Struct("=H")


class ProduceRouter:
    """The hints of one Processor, by the bytes that name a partition."""

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}

    def route(self, frame: memoryview) -> int:
        """Return the owner's index for a Produce to one known partition, or -1 for the home Handler."""
        if len(frame) < REQUEST_HEADER.size or frame[0] or frame[1]:  # Not API key 0, which is Produce.
            return -1
        key = _usual_key(frame) or partition_key(frame)
        return -1 if key is None else self._owners.get(key, -1)

    def learn(self, hint: memoryview) -> None:
        """Store a Handler's hint: the owner's index, then the bytes that name the partition."""
        if len(self._owners) >= _HINTS_MAX:
            self._owners.clear()
        self._owners[bytes(hint[OWNER.size :])] = OWNER.unpack_from(hint)[0]


def _usual_key(frame: memoryview) -> bytes | None:
    """Return the result of `partition_key` for a Produce of the usual form, or None for any other frame.

    The usual form has one topic, no transactional id and no tagged fields in its header. This function reads the fields
    at fixed positions, which is faster. The count of partitions is part of the key, so a frame with several partitions
    never equals a hint.
    """
    _, version, _, client_bytes = REQUEST_HEADER.unpack_from(frame)
    at = REQUEST_HEADER.size + client_bytes if client_bytes > 0 else REQUEST_HEADER.size
    if at + _PLAIN.size > len(frame):
        return None
    if version < _FLEXIBLE:
        transactional_id, _, _, topics, name_bytes = _PLAIN.unpack_from(frame, at)
        if transactional_id != -1 or topics != 1 or name_bytes < 0:
            return None
        start = at + _PLAIN.size - 2  # Behind the topic count: name length, name, partition count, index.
        return frame[start : start + 2 + name_bytes + 8].tobytes()
    tagged, transactional_id, _, _, topics, name_bytes = _COMPACT.unpack_from(frame, at)
    if tagged or transactional_id or topics != 2:
        return None
    start = at + _COMPACT.size - 1
    if version >= _BY_ID:  # Topic id (16 bytes), partition count (1), index (4).
        return frame[start : start + _ID_BYTES + 5].tobytes()
    return frame[start : start + name_bytes + 5].tobytes() if name_bytes < 128 else None


def partition_key(frame: memoryview) -> bytes | None:
    """Return the bytes of a Produce frame that name its only topic and partition, or None for any other frame.

    A malformed frame gives None, too, so that its home Handler rejects it.
    """
    try:
        _, version, _, client_bytes = REQUEST_HEADER.unpack_from(frame)
        at = REQUEST_HEADER.size + max(0, client_bytes)
        if version >= _FLEXIBLE:
            # A frame with tagged fields in its header gets no key, because such frames are too rare to be worth code.
            if frame[at]:
                return None
            at += 1
        return body_key(version, frame, at)
    except (IndexError, struct.error):
        return None


def body_key(version: int, body: memoryview, at: int = 0) -> bytes | None:
    """Return the result of `partition_key` for a request's body, which begins at position `at`."""
    try:
        return _flexible_key(body, at, version) if version >= _FLEXIBLE else _plain_key(body, at)
    except (IndexError, ProtocolError):
        return None


def _plain_key(body: memoryview, at: int) -> bytes | None:
    at += 2 + max(0, int.from_bytes(body[at : at + 2], "big", signed=True))  # transactional id
    at += 6  # acks, timeout
    if int.from_bytes(body[at : at + 4], "big") != 1:
        return None
    start = at + 4
    at = start + 2 + int.from_bytes(body[start : start + 2], "big")
    if int.from_bytes(body[at : at + 4], "big") != 1:
        return None
    return bytes(body[start : at + 8])


def _flexible_key(body: memoryview, at: int, version: int) -> bytes | None:
    length, at = read_unsigned_varint(body, at)  # transactional id, length + 1
    at += max(0, length - 1) + 6
    if body[at] != 2:  # 2: one topic. A compact array begins with its count + 1.
        return None
    start = at + 1
    if version >= _BY_ID:
        at = start + _ID_BYTES
    else:
        length, at = read_unsigned_varint(body, start)
        at += length - 1
    if body[at] != 2:
        return None
    return bytes(body[start : at + 5])
