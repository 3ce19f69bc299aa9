"""ProduceLink: one non-blocking connection of a Producer. It sends Produce requests and decodes their responses.

Requests are encoded by hand. A frame is a list of parts, so that no batch is copied before sendmsg. The Producer
interprets the responses.
"""

from __future__ import annotations

import errno
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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

# Produce version 12 has the fields of 11 and implies transactions of the second version (KIP-890), which the sink does
# not use. Version 13 addresses topics by id, which changes when a topic is deleted and created again.
NEWEST_VERSION: Final = 11
# The first version of Produce with record batches of format v2 (KIP-98).
OLDEST_VERSION: Final = 3
_FLEXIBLE: Final = 9
# Largest number of buffers in one sendmsg(). The kernel's limit is 1024 (IOV_MAX).
_PARTS_MAX: Final = 64
_READ_BYTES: Final = 256 * 1024
# The largest plaintext of one TLS record (RFC 8446).
_TLS_RECORD_BYTES: Final = 16 * 1024
_TLS_PIECE_BYTES: Final = 16 * _TLS_RECORD_BYTES
# Errors of a non-blocking socket that cannot continue now: its buffer is full, or empty when reading. TLS can also need
# to read before it can write, and vice versa.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Parts = list[bytes | memoryview]
# (partition, the batch's bytes as parts to send one after the other)
PartitionBatch = tuple[int, Sequence[bytes | memoryview]]


class ProduceFields(NamedTuple):
    """Fields of a Produce request. `timeout_ms` is how long the broker may wait for the acknowledgements."""

    acks: int
    timeout_ms: int
    topics: Mapping[str, Sequence[PartitionBatch]]
    transactional_id: str | None = None


def produce_frame(version: int, correlation_id: int, client_id: str, request: ProduceFields) -> Parts:
    """Encode a Produce request, versions 3 to 11, as parts to send one after the other."""
    is_flexible = version >= _FLEXIBLE
    name = request.transactional_id
    head = encode_request_header(ApiKey.PRODUCE, version, correlation_id, client_id)
    if name is None:
        head += b"\0" if is_flexible else INT16.pack(-1)
    else:
        head += encode_compact_string(name) if is_flexible else encode_string(name)
    head += INT16.pack(request.acks) + INT32.pack(request.timeout_ms)
    head += _count(len(request.topics), is_flexible)
    parts: Parts = []
    for topic, batches in request.topics.items():
        head += encode_compact_string(topic) if is_flexible else encode_string(topic)
        head += _count(len(batches), is_flexible)
        for partition, batch in batches:
            size = sum(map(len, batch))
            head += INT32.pack(partition) + _count(size, is_flexible)
            parts += (head, *batch)
            # In a flexible version each partition ends with its tagged fields, of which there are none.
            head = b"\0" if is_flexible else b""
        head += b"\0" if is_flexible else b""
    parts.append(head + (b"\0" if is_flexible else b""))
    return [INT32.pack(sum(map(len, parts))), *parts]


def _count(count: int, is_flexible: bool) -> bytes:
    """Encode the length of an array or of bytes: a varint of count + 1 in a flexible version, else an int32."""
    return encode_unsigned_varint(count + 1) if is_flexible else INT32.pack(count)


class ProduceLink:
    """A connection to one broker. A BatchProducer owns it, and must close it after any ClientError."""

    def __init__(self, client: Client, version: int) -> None:
        self._client = client
        self._socket = client.detach()
        self._socket.setblocking(False)
        self.version = version
        self.address = client.address
        # Start far above the correlation ids that `client` has used to negotiate versions and to log in.
        self._correlation_id = 1_000_000
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
        """Connect, encrypt, log in and negotiate a version. This blocks for up to `connect_ms` per step.

        Raises ClientError if that fails, or if the broker is too old.
        """
        client = Client.connect(*address, timeout_ms=connect_ms, client_id=client_id, security=security)
        try:
            version = client.negotiate(ApiKey.PRODUCE, newest=NEWEST_VERSION)
            if version < OLDEST_VERSION:
                raise ClientError(
                    f"{client.address} is too old: it does not accept record batches of version 2 (Kafka since 0.11)"
                )
            return cls(client, version)
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        """Close the socket and abandon the requests in flight."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def is_expiring(self) -> bool:
        """True if the SASL session expires soon (KIP-368), so that a new link has to log in again."""
        return self._client.must_log_in_again

    @property
    def wants_write(self) -> bool:
        """True if bytes are left to send, so that the owner must wait until the socket is writable."""
        return bool(self._out)

    def send(self, request: ProduceFields) -> int:
        """Enqueue a request and return its correlation id. `write` sends it."""
        self._correlation_id += 1
        frame = produce_frame(self.version, self._correlation_id, self._client.client_id, request)
        self._out.extend(memoryview(part) for part in frame if len(part))
        return self._correlation_id

    def write(self) -> None:
        """Send as much as the socket accepts. Raise ConnectionLost if the connection failed."""
        while self._out:
            try:
                sent = self._send_some()
            # The socket's buffer is full: the rest is sent when the socket is writable.
            except _NOT_NOW:
                return
            except OSError as error:
                raise self._lost(error) from error
            # The socket accepts any number of bytes. Remove the parts that were sent whole, and keep the rest of one
            # that was sent in part.
            while sent:
                first = self._out[0]
                if len(first) > sent:
                    self._out[0] = first[sent:]
                    break
                sent -= len(first)
                self._out.popleft()

    def _send_some(self) -> int:
        """Send some of the waiting bytes and return how many the socket accepted."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return self._socket.sendmsg([self._out[at] for at in range(min(len(self._out), _PARTS_MAX))])
        first = self._out[0]
        if len(first) >= _TLS_RECORD_BYTES:
            return self._socket.send(first[:_TLS_PIECE_BYTES])
        # Join small parts, so that they share one TLS record. If TLS does not accept the bytes now, the next call
        # offers the same bytes again, possibly followed by more.
        joined = bytearray()
        for part in self._out:
            if joined and len(joined) + len(part) > _TLS_RECORD_BYTES:
                break
            joined += part
        return self._socket.send(joined)

    def _receive(self) -> None:
        """Read from the socket into the buffer.

        With TLS, read until nothing is left.
        """
        # Read a TLS socket until it has no more bytes: OpenSSL can hold decrypted bytes, for which select() does not
        # report the socket as readable.
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
                # Return the responses that arrived before the end of the stream. The next read raises ConnectionLost.
                if has_some:
                    return
                raise ConnectionLost(f"{self.address} closed the connection")
            self._received += piece
            has_some = True
            if is_all:
                return

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the responses that have arrived: (correlation id, fields). Raise ConnectionLost on failure."""
        self._receive()
        answers = []
        while len(self._received) >= INT32.size:
            (length,) = INT32.unpack_from(self._received)
            if length < INT32.size:
                raise ConnectionLost(
                    f"{self.address} sent a response with an impossible length of {length} bytes"
                )
            if len(self._received) < INT32.size + length:
                break
            frame = bytes(memoryview(self._received)[INT32.size : INT32.size + length])
            del self._received[: INT32.size + length]
            try:
                answers.append(codec.decode_response(ApiKey.PRODUCE, self.version, frame))
            except ProtocolError as error:
                raise ConnectionLost(
                    f"{self.address} sent a response to Produce that cannot be decoded: {error}"
                ) from error
        return answers

    def _lost(self, error: OSError) -> ConnectionLost:
        if error.errno in (errno.EPIPE, errno.ECONNRESET):
            return ConnectionLost(f"{self.address} closed the connection")
        return ConnectionLost(f"the connection to {self.address} failed: {reason(error)}")
