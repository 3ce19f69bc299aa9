"""One connection of a Producer: Produce requests out, their answers in, never blocking.

Requests are built by hand around batches that are sent from where they lie: a frame is a list of parts, and no
batch is copied on its way into the socket. What the answers mean is the Producer's; this file knows only bytes.
"""

from __future__ import annotations

import errno
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kproc.client import Client, ClientError, ConnectionLost, reason
from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.common.errors import ProtocolError
from kproc.wire import codec
from kproc.wire.header import ApiKey, encode_request_header
from kproc.wire.primitives import (
    INT16,
    INT32,
    encode_compact_string,
    encode_string,
    encode_unsigned_varint,
)

# 12 looks the same and says that transactions go by their second version; 13 names topics by ids, which change when a
# topic is made again under its name.
NEWEST_VERSION: Final = 11
OLDEST_VERSION: Final = 3  # The first with record batches of version 2
_FLEXIBLE: Final = 9
# Below the kernel's limit of vectors in one call.
_PARTS_MAX: Final = 64
_READ_BYTES: Final = 256 * 1024
# What TLS encrypts at a time.
_TLS_RECORD_BYTES: Final = 16 * 1024
_TLS_PIECE_BYTES: Final = 16 * _TLS_RECORD_BYTES
# The socket has no room, or nothing to read; TLS may want to read before it writes.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Parts = list[bytes | memoryview]
# (partition, the batch's parts)
Placed = tuple[int, Sequence[bytes | memoryview]]


def produce_frame(
    version: int,
    correlation_id: int,
    client_id: str,
    *,
    acks: int,
    timeout_ms: int,
    topics: Iterable[tuple[str, Sequence[Placed]]],
    transactional_id: str | None = None,
) -> Parts:
    """A Produce request, versions 3 to 11, as parts to be sent one after the other."""
    is_flexible = version >= _FLEXIBLE
    rows = list(topics)
    head = encode_request_header(ApiKey.PRODUCE, version, correlation_id, client_id)
    if transactional_id is None:
        head += b"\0" if is_flexible else INT16.pack(-1)
    else:
        head += encode_compact_string(transactional_id) if is_flexible else encode_string(transactional_id)
    head += INT16.pack(acks) + INT32.pack(timeout_ms) + _count(len(rows), is_flexible)
    parts: Parts = []
    for topic, batches in rows:
        head += encode_compact_string(topic) if is_flexible else encode_string(topic)
        head += _count(len(batches), is_flexible)
        for partition, batch in batches:
            size = sum(map(len, batch))
            head += INT32.pack(partition) + _length(size, is_flexible)
            parts += (head, *batch)
            head = b"\0" if is_flexible else b""  # No tagged fields
        head += b"\0" if is_flexible else b""
    parts.append(head + (b"\0" if is_flexible else b""))
    return [INT32.pack(sum(map(len, parts))), *parts]


def _count(count: int, is_flexible: bool) -> bytes:
    return encode_unsigned_varint(count + 1) if is_flexible else INT32.pack(count)


_length = _count


class ProduceLink:
    """A connection to one broker. Owned by its Producer; any ClientError means that it is of no more use."""

    def __init__(self, client: Client, version: int) -> None:
        self._client = client
        self._socket = client.detach()
        self._socket.setblocking(False)
        self.version = version
        self.address = client.address
        self._correlation_id = 1_000_000  # Far from those that `client` has used to negotiate.
        self._out: deque[memoryview] = deque()
        self._received = bytearray()

    @classmethod
    def connect(
        cls,
        address: tuple[str, int],
        *,
        connect_ms: int,
        client_id: str,
        security: ClientSecurity = PLAINTEXT,
    ) -> ProduceLink:
        """Connect, encrypt, log in and agree on a version, blocking."""
        client = Client.connect(*address, timeout_ms=connect_ms, client_id=client_id, security=security)
        try:
            version = client.negotiate(ApiKey.PRODUCE, newest=NEWEST_VERSION)
            if version < OLDEST_VERSION:
                raise ClientError(f"{client.address} is too old: no record batches of version 2")
            return cls(client, version)
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        """Close the socket; what waits for an answer is lost."""
        self._socket.close()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    @property
    def is_expiring(self) -> bool:
        """Whether the session ends soon: a new link, which logs in anew, is due."""
        return self._client.must_log_in_again

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for room in the socket."""
        return bool(self._out)

    def send(
        self,
        *,
        acks: int,
        timeout_ms: int,
        topics: Iterable[tuple[str, Sequence[Placed]]],
        transactional_id: str | None = None,
    ) -> int:
        """Queue a request; its correlation id. `write` sends it."""
        self._correlation_id += 1
        frame = produce_frame(
            self.version,
            self._correlation_id,
            self._client.client_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topics=topics,
            transactional_id=transactional_id,
        )
        self._out.extend(memoryview(part) for part in frame if len(part))
        return self._correlation_id

    def write(self) -> None:
        """Send as much as the socket takes."""
        while self._out:
            try:
                sent = self._send_some()
            except _NOT_NOW:
                return
            except OSError as error:
                raise self._lost(error) from error
            while sent:
                first = self._out[0]
                if len(first) > sent:
                    self._out[0] = first[sent:]
                    break
                sent -= len(first)
                self._out.popleft()

    def _send_some(self) -> int:
        """How many bytes the socket took."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return self._socket.sendmsg([self._out[at] for at in range(min(len(self._out), _PARTS_MAX))])
        first = self._out[0]
        if len(first) >= _TLS_RECORD_BYTES:
            return self._socket.send(first[:_TLS_PIECE_BYTES])
        # Small parts share a record. What was not taken is offered again, perhaps with more behind it.
        joined = bytearray()
        for part in self._out:
            if joined and len(joined) + len(part) > _TLS_RECORD_BYTES:
                break
            joined += part
        return self._socket.send(joined)

    def _receive(self) -> None:
        """Take what has come. With TLS all of it: what lies decrypted in the library wakes nobody."""
        is_all = not isinstance(self._socket, ssl.SSLSocket)
        has_some = False
        while True:
            try:
                piece = self._socket.recv(_READ_BYTES)
            except _NOT_NOW:
                return
            except OSError as error:
                raise self._lost(error) from error
            if not piece:
                if has_some:
                    return  # Answers that came before the end; the next read tells of it.
                raise ConnectionLost(f"{self.address} closed the connection")
            self._received += piece
            has_some = True
            if is_all:
                return

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """Answers that have come: (correlation id, fields)."""
        self._receive()
        answers = []
        while len(self._received) >= INT32.size:
            (length,) = INT32.unpack_from(self._received)
            if length < INT32.size:
                raise ConnectionLost(f"{self.address} sent a frame of {length} bytes")
            if len(self._received) < INT32.size + length:
                break
            frame = bytes(memoryview(self._received)[INT32.size : INT32.size + length])
            del self._received[: INT32.size + length]
            try:
                answers.append(codec.decode_response(ApiKey.PRODUCE, self.version, frame))
            except ProtocolError as error:
                raise ConnectionLost(f"{self.address} sent an answer that cannot be read: {error}") from error
        return answers

    def _lost(self, error: OSError) -> ConnectionLost:
        if error.errno in (errno.EPIPE, errno.ECONNRESET):
            return ConnectionLost(f"{self.address} closed the connection")
        return ConnectionLost(f"the connection to {self.address} failed: {reason(error)}")
