"""Client: a blocking client on one socket, for readiness checks, commands, and tests with raw requests.

It encodes every API by kproc.wire.codec from plain dicts. Tests can also send raw bytes. It never retries, reconnects
or caches metadata: it sends each request once, to one broker, and returns the response or raises a one-line
ClientError. Responses are read in the order of the requests, which Kafka guarantees on each connection.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

from kproc.client.error_texts import error_text
from kproc.client.errors import (
    AnswerTimeout,
    ApiError,
    AuthenticationFailed,
    ClientError,
    ConnectionBroken,
    ConnectionFailed,
    ConnectionLost,
    SecurityFailed,
)
from kproc.client.own_operations import (
    STATUS_KEY,
    STATUS_VERSION,
    OperationFields,
    decode_result,
    encode_operation,
)
from kproc.client.versions import NEWEST
from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock, SystemClock
from kproc.common.errors import ProtocolError
from kproc.wire.header import REQUEST_HEADER, ApiKey, encode_request_header, kafka_name

if TYPE_CHECKING:
    from kproc.client.security.settings import ClientSecurity

FRAME_BYTES_MAX: Final = 1 << 30
"""Largest length that a response may have: 1 GiB. A larger one means that the peer does not speak Kafka's protocol."""
_HINT: Final = "give --command-config FILE (in Spark: kafka.security.protocol)"
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes that a TLS listener sends to a client without TLS."""
# Share of a session's lifetime after which the client logs in again, like Kafka's clients (KIP-368).
_LOGIN_AGAIN_PERCENT: Final = 85


class _PendingRequest(NamedTuple):
    """A request that was sent and whose response was not read yet."""

    api_key: int
    api_version: int
    correlation_id: int


class Client:
    """One connection to a broker. One thread owns it. Close it, or use it as a context manager."""

    def __init__(self, sock: socket.socket, *, address: str, timeout_ms: int, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.answer_bytes_max = FRAME_BYTES_MAX
        self._socket = sock
        self._clock: Clock = SystemClock()
        self._received = bytearray()
        self._pending: deque[_PendingRequest] = deque()
        self._correlation_id = 0
        # Number of responses to `introduce` that the next read discards.
        self._unread = 0
        self._versions: dict[int, tuple[int, int]] | None = None
        self._security: ClientSecurity | None = None
        # Number of responses so far. A peer that closes the connection before the second one possibly requires TLS or a
        # login, and the error then says so.
        self._answers = 0
        self._login_again_ns: int | None = None

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        *,
        timeout_ms: int = 10_000,
        client_id: str = "kproc",
        security: ClientSecurity | None = None,
    ) -> Self:
        """Connect to a broker. Encrypt and log in by `security`.

        timeout_ms: limit of connecting, and then of each call.

        Raises ConnectionFailed, ConnectionLost, AnswerTimeout or AuthenticationFailed with the reason.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            sock = socket.create_connection((host, port), timeout=timeout_ms / 1000)
        except TimeoutError:
            raise ConnectionFailed(f"cannot connect to {address}: no answer in {timeout_ms} ms") from None
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {address}: {reason(error)}") from error
        # Python encodes a host name by the idna codec, which rejects an empty label and one above 63 characters.
        except UnicodeError as error:
            raise ConnectionFailed(f"cannot connect to {address}: that is not a host name") from error
        client = cls(sock, address=address, timeout_ms=timeout_ms, client_id=client_id)
        try:
            # Nagle's algorithm would delay the last segment of a request until the peer acknowledges the earlier
            # segments. Linux delays that ACK by up to 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security is not None:
                client._secure(security, host)
        except BaseException:
            client.close()
            raise
        return client

    def _secure(self, security: ClientSecurity, host: str) -> None:
        """Perform the TLS handshake if `security` has TLS settings, and log in if it has a login."""
        self._security = security
        if security.tls is not None:
            from kproc.broker.config.values import ConfigError
            from kproc.client.security import tls

            try:
                self._socket = tls.start_tls(self._socket, host, self.address, security.tls)
            except (SecurityFailed, ConfigError) as error:
                raise AuthenticationFailed(str(error)) from None
            except ConnectionBroken as error:
                raise ConnectionLost(str(error)) from None
            except TimeoutError:
                raise AnswerTimeout(
                    f"{self.address} did not finish the TLS handshake in {self.timeout_ms} ms"
                ) from None
        self._log_in()

    def _log_in(self) -> None:
        """Log in by SASL, for the first time or again (KIP-368). Do nothing if the settings have no login."""
        if self._security is None or self._security.login is None:
            return
        from kproc.client.security.sasl import log_in

        # KIP-368: the session's lifetime starts when the broker accepts the login. Count it from before the login, so
        # that the client never relies on a session that has expired.
        begin_ns = self._clock.now_ns()
        try:
            lifetime_ms = log_in(self._exchange_bytes, self._security.login, self.address)
        except SecurityFailed as error:
            raise AuthenticationFailed(str(error)) from None
        share_ns = lifetime_ms * NS_PER_MS * _LOGIN_AGAIN_PERCENT // 100
        self._login_again_ns = begin_ns + share_ns if lifetime_ms else None

    def _exchange_bytes(self, api_key: int, version: int, body: bytes) -> bytes:
        """Send a request with an encoded body. Return the bytes of its response that follow the correlation id."""
        self._correlation_id += 1
        header = encode_request_header(api_key, version, self._correlation_id, self.client_id)
        self.send_bytes(struct.pack(">i", len(header) + len(body)) + header + body)
        frame = self.receive_frame()
        self._check_correlation(
            int.from_bytes(frame[:4], "big", signed=True),
            _PendingRequest(api_key, version, self._correlation_id),
        )
        return frame[4:]

    def log_in_if_due(self) -> None:
        """Log in again if the session expires soon.

        With requests in flight it does nothing, because their responses would arrive before that of the login.
        """
        # KIP-368: the broker closes a connection whose session has expired, so log in before that.
        if self.must_log_in_again and not self._pending and not self._received and not self._unread:
            self._login_again_ns = None
            self._log_in()

    @property
    def must_log_in_again(self) -> bool:
        """True if 85 % of the SASL session's lifetime has passed. False if the session has no limit."""
        return self._login_again_ns is not None and self._clock.now_ns() >= self._login_again_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, so that a test can wait for several clients."""
        return self._socket.fileno()

    @property
    def peer(self) -> tuple[str, int]:
        """The numeric host and port of the other end. Raises ConnectionLost if the connection has ended."""
        try:
            host, port = self._socket.getpeername()[:2]
        except OSError as error:
            self._fail(error)
        return str(host), int(port)

    def detach(self) -> socket.socket:
        """Return the socket, for a caller with its own non-blocking I/O. Do not use this client for I/O afterwards.

        Raises ClientError if responses are unread.
        """
        if self._pending or self._received:
            raise ClientError(f"cannot detach the socket to {self.address}: receive all responses first")
        return self._socket

    # -- bytes

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Send raw bytes, which need not be a frame. Raise AnswerTimeout or ConnectionLost."""
        self._socket.settimeout(self.timeout_ms / 1000)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise AnswerTimeout(f"{self.address} took no data for {self.timeout_ms} ms") from None
        except OSError as error:
            self._fail(error)

    def receive_frame(self) -> bytes:
        """Return the next frame without its length prefix. Raise AnswerTimeout or ConnectionLost."""
        deadline_ns = self._clock.now_ns() + self.timeout_ms * NS_PER_MS
        # Discard the responses to `introduce` first, because a broker responds in the order of the requests.
        while self._unread:
            self._frame(deadline_ns)
            self._unread -= 1
        return self._frame(deadline_ns)

    def _frame(self, deadline_ns: int) -> bytes:
        self._fill(4, deadline_ns)
        # A TLS listener answers the first request with an alert. In a later response, the bytes 0x15 0x03 can be the
        # start of the length of a frame of 350 MB.
        if not self._answers and self._received.startswith(_TLS_ALERT):
            raise AuthenticationFailed(
                f"{self.address} speaks TLS: security.protocol is SSL or SASL_SSL there; {_HINT}"
            )
        length = int.from_bytes(self._received[:4], "big", signed=True)
        if self.answer_bytes_max < length <= FRAME_BYTES_MAX:
            raise ConnectionLost(
                f"{self.address} announces a response of {length} bytes; this client accepts "
                f"up to {self.answer_bytes_max}"
            )
        if not 4 <= length <= FRAME_BYTES_MAX:
            start = bytes(self._received[:4])
            raise ConnectionLost(
                f"{self.address} does not speak Kafka's protocol: its answer starts with {start!r}"
            )
        self._fill(4 + length, deadline_ns)
        frame = bytes(memoryview(self._received)[4 : 4 + length])
        del self._received[: 4 + length]
        self._answers += 1
        return frame

    def _fill(self, wanted_bytes: int, deadline_ns: int) -> None:
        """Read until the buffer has `wanted_bytes`. Raise AnswerTimeout if they are not complete at the deadline."""
        while len(self._received) < wanted_bytes:
            left_ns = deadline_ns - self._clock.now_ns()
            if left_ns <= 0:
                raise AnswerTimeout(f"{self.address} gave no answer in {self.timeout_ms} ms")
            self._socket.settimeout(left_ns / NS_PER_S)
            try:
                # Read up to 64 KiB, even if fewer bytes are wanted: the rest of the frame has often arrived, too, and
                # another recv() is saved.
                piece = self._socket.recv(max(65536, wanted_bytes - len(self._received)))
            except TimeoutError:
                # The deadline has passed, so that the check at the loop's start raises AnswerTimeout.
                continue
            except OSError as error:
                self._fail(error)
            if not piece:
                raise ConnectionLost(f"{self.address} closed the connection{self._hint()}")
            self._received += piece

    def _fail(self, error: OSError) -> NoReturn:
        """Raise the error of a failed connection. A TLS alert or a failed verification gives a precise reason."""
        if self._security is not None and self._security.tls is not None:
            from kproc.client.security import tls

            refusal = tls.refusal_of(tls.first_cause(self._socket, error), self.address)
            if isinstance(refusal, SecurityFailed):
                raise AuthenticationFailed(str(refusal)) from None
            if refusal is not None:
                raise ConnectionLost(str(refusal)) from error
        raise ConnectionLost(
            f"{self.address} closed the connection: {reason(error)}{self._hint()}"
        ) from error

    def _hint(self) -> str:
        """Return a hint for the error of a closed connection: the listener possibly requires TLS or a login.

        The hint is empty if the client's settings have a login. It is also empty after two responses, because a
        listener that requires a login still answers the first request (ApiVersions).
        """
        has_login = self._security is not None and self._security.login is not None
        if self._answers > 1 or has_login:
            return ""
        return f"; if its listener wants TLS or a login, {_HINT}"

    def introduce(self, software: str, version: str) -> None:
        """Send the client's name and version to the broker, in ApiVersions version 3 (KIP-511).

        The next read discards the response, which is an error if the broker does not support this version. The request
        is encoded by hand, so that commands which need no other schema do not import kproc.wire.codec.
        """
        name = self.client_id.encode()
        words = b"".join(bytes((len(each) + 1,)) + each for each in (software.encode(), version.encode()))
        frame = REQUEST_HEADER.pack(ApiKey.API_VERSIONS, 3, 0, len(name)) + name + b"\0" + words + b"\0"
        self.send_bytes(struct.pack(">i", len(frame)) + frame)
        self._unread += 1

    # -- requests

    def send(self, api_key: int, version: int, fields: Mapping[str, Any]) -> int:
        """Send a request without waiting for its response. Return its correlation id.

        Raises ClientError for a string above the limit of Kafka's protocol.
        """
        # Import the codec here and not at the top, because the import takes some ms and `kproc status` does not need
        # it.
        from kproc.wire import codec
        from kproc.wire.primitives import StringTooLong

        self.log_in_if_due()
        self._correlation_id += 1
        try:
            frame = codec.encode_request(api_key, version, self._correlation_id, self.client_id, dict(fields))
        except StringTooLong as error:
            # Callers pass on names that a user chose.
            raise ClientError(str(error)) from None
        self.send_bytes(frame)
        self._pending.append(_PendingRequest(api_key, version, self._correlation_id))
        return self._correlation_id

    def receive(self) -> tuple[int, dict[str, Any]]:
        """Return the response to the oldest request in flight: its correlation id and fields."""
        from kproc.wire import codec

        if not self._pending:
            raise ClientError("there is no response to receive: every request sent has had its response")
        pending = self._pending[0]
        frame = self.receive_frame()
        self._pending.popleft()
        try:
            correlation_id, fields = codec.decode_response(pending.api_key, pending.api_version, frame)
        except ProtocolError as error:
            raise ConnectionLost(f"{self.address} sent an answer that cannot be read: {error}") from error
        self._check_correlation(correlation_id, pending)
        return correlation_id, fields

    def call(self, api_key: int, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the fields of its response."""
        self.send(api_key, version, fields)
        return self.receive()[1]

    def call_latest(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, newest: int | None = None
    ) -> dict[str, Any]:
        """Send a request in the newest version that client and broker support. Return the response's fields.

        newest: the highest version to use, instead of that in kproc/client/versions.py.
        """
        return self.call(api_key, self.negotiate(api_key, newest=newest), fields)

    def negotiate(self, api_key: ApiKey, *, newest: int | None = None) -> int:
        """Return the newest version of an API that client and broker support.

        Raise ClientError if they have none in common.
        """
        ours = NEWEST.get(api_key, 0) if newest is None else newest
        low, high = self.api_versions().get(api_key, (0, -1))
        if high < 0:
            raise ClientError(f"{self.address} does not serve {kafka_name(api_key)}")
        if low > ours:
            raise ClientError(
                f"{self.address} serves {kafka_name(api_key)} only from version {low}, this client only up to {ours}"
            )
        return min(high, ours)

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Return the (oldest, newest) version of each API key that the broker supports.

        The first call requests them.
        """
        if self._versions is None:
            answer = self.call(ApiKey.API_VERSIONS, 0, {})
            if answer["error_code"]:
                raise ApiError(answer["error_code"], f"ApiVersions: {error_text(answer['error_code'])}")
            self._versions = {
                int(row["api_key"]): (int(row["min_version"]), int(row["max_version"]))
                for row in answer["api_keys"]
            }
        return self._versions

    # -- kproc's own operations

    def operate(self, op: str, **arguments: Any) -> OperationFields:
        """Run one of kproc's own operations, such as `status`, and return its result. Raise ClientError on failure."""
        if self._pending:
            raise ClientError(
                f"cannot send {op} to {self.address}: receive the responses to earlier requests first"
            )
        self.log_in_if_due()
        self._correlation_id += 1
        pending = _PendingRequest(STATUS_KEY, STATUS_VERSION, self._correlation_id)
        self.send_bytes(encode_operation(self._correlation_id, self.client_id, op, arguments))
        try:
            frame = self.receive_frame()
        except ConnectionLost as error:
            # Kafka closes the connection at the unknown API key 30000, and kproc if this client may not run the
            # operation.
            raise ConnectionLost(
                f"{error}: it is not a kproc broker, or it rejects `{op}` from this client"
            ) from error
        self._check_correlation(int.from_bytes(frame[:4], "big", signed=True), pending)
        return decode_result(frame[4:], self.address)

    def scale(self, **counts: int) -> dict[str, Any]:
        """Change the numbers of `processors` and `handlers`, wait until the change is complete, and return its result.

        While the change is in progress, the broker responds several times a second with a ticket, and the client
        repeats the request with that ticket. One request that waited for the end would keep its Handler from stopping.
        """
        answer = self.operate("scale", **counts)
        while not answer["is_done"]:
            answer = self.operate("scale", ticket=answer["ticket"])
        return answer

    def _check_correlation(self, correlation_id: int, pending: _PendingRequest) -> None:
        if correlation_id != pending.correlation_id:
            raise ConnectionLost(
                f"{self.address} answered correlation id {correlation_id}, but {pending.correlation_id} was next"
            )


def reason(error: OSError) -> str:
    """Return the system's message for an error in lower case, without errno and addresses."""
    return (error.strerror or str(error) or type(error).__name__).lower()
