"""ControlServer: the functions of a broker under test as JSON over HTTP, for tests in other languages.

    POST /fault/add     {"rule": {"action": "close", "apis": ["Produce"]}}
    POST /time/advance  {"ms": 3600000}
    GET /               the names of all operations

It runs in threads of the process that owns a `kproc.Broker`, and calls the functions of `kproc/embedded/operations.py`.
Every answer is a JSON object, and that of a failure is {"error": "..."} with an error status.

A client that can add faults can disturb every other client. The server therefore listens at 127.0.0.1 only and rejects
the Host header of web pages that reach for the loopback. It requires a token, and compares it in constant time. The
number of connections, their time and the size of a request are bounded. If all connections are used, a new one replaces
the oldest that has sent no request with the token.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from kproc.client.errors import (
    AnswerTimeout,
    ApiError,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    OperationUnavailable,
)
from kproc.common.clock import NS_PER_S, SystemClock
from kproc.common.errors import RETRIABLE, ErrorCode
from kproc.common.own_host import is_own_host
from kproc.embedded import operations as _operations  # noqa: F401 - it registers them
from kproc.embedded.broker import Broker
from kproc.embedded.control_operation import OPERATIONS
from kproc.embedded.process import BrokerFailed, BrokerRestarting, RequestFailed, UnsupportedOperation

logger = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 32
BODY_BYTES_MAX: Final = 1 << 20
_REQUEST_TIMEOUT_S: Final = 10
_SLOT_WAIT_S: Final = 1
"""Longest wait, in s, until the thread of a connection that was shut down has freed its slot."""
_CLOSE_POLL_S: Final = 0.1
"""Interval, in s, between checks whether to stop, and for requests that take too long."""
_DISCARDED_BYTES: Final = 1 << 16
_METHODS: Final = "there are only GET / and POST with the name of an operation"
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_SCHEME: Final = "Bearer "
_TOKEN: Final = re.compile(r"[!-~]{16,}")
_TOKEN_BYTES: Final = 32
_INVALID: Final = (msgspec.DecodeError, RecursionError, ValueError)
"""Errors of arguments that an operation does not accept."""
_PASSING: Final = (
    BrokerFailed,
    BrokerRestarting,
    ConnectionFailed,
    ConnectionLost,
    OperationUnavailable,
    OSError,
)
"""Errors of a state that can pass: the broker does not run or answer, or the host lacks something, such as space."""
# A topic that does not exist is retriable in Kafka, because another broker may know it already. Here the only broker
# has answered.
_CODE_STATUS: Final[dict[int, int]] = {
    **dict.fromkeys(RETRIABLE - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}, 503),
    ErrorCode.REQUEST_TIMED_OUT: 504,
}
"""HTTP status for each error code of the broker that does not count as a rejection (400)."""
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ControlServer:
    """The control API of one broker. Use it as a context manager, within the block of the broker.

    `url` and `token` are what a client needs: the token goes into the header `Authorization: Bearer`.
    """

    def __init__(self, broker: Broker, *, port: int = 0, token: str | None = None) -> None:
        """Listen at a port of the loopback.

        port: 0 chooses a free one.
        token: the token that clients must know. Default: a random one.

        Raises OSError if the port is in use, and ValueError if the token is not of 16 or more printable characters.
        """
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError("the token must have at least 16 ASCII characters, and no blanks")
        self.broker = broker
        self.token = token or secrets.token_urlsafe(_TOKEN_BYTES)
        self._server = _Server(self, port)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"
        self._lock = threading.Lock()
        self._running = 0
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CLOSE_POLL_S,), name="kproc-control", daemon=True
        )

    def start(self) -> None:
        """Start to accept connections."""
        self._thread.start()

    def close(self) -> None:
        """Stop accepting connections, wait for the operations in progress, and close all connections.

        Resume the roles that operations have paused.
        """
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self.broker.paused_roles.resume_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()

    def call(self, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Run an operation. Return the HTTP status and the JSON object of the answer."""
        operation = OPERATIONS.get(name)
        if operation is None:
            return _unknown(name)
        with self._lock:
            self._running += 1
        try:
            return 200, operation.call(self.broker, body or b"{}")
        except Exception as error:
            status = _status_of(error)
            if status == 500:
                logger.exception("operation %s of the control API failed", name)
                return 500, _error(f"{name} failed, which is a defect of kproc: {error!r}")
            return status, _error(f"{name}: {error}" if isinstance(error, _INVALID) else str(error))
        finally:
            with self._lock:
                self._running -= 1

    @contextmanager
    def quiescent(self) -> Iterator[bool]:
        """Let new operations wait during this block. Yield False if an operation is in progress, such as a restart."""
        with self._lock:
            yield self._running == 0


class _Server(ThreadingHTTPServer):
    """The listening socket, and a thread for each connection."""

    daemon_threads = False  # server_close() waits for non-daemon threads only.
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, control: ControlServer, port: int) -> None:
        self.control = control
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._clock = SystemClock()
        # Connections that have sent no request with the token yet, and when each was accepted (monotonic ns).
        self._connections: dict[socket.socket, int] = {}
        super().__init__((LOOPBACK, port), _HttpOperation)

    def server_bind(self) -> None:
        # Skip HTTPServer.server_bind, because it looks up the host's name and can wait for a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False) and not self._replace_oldest():
            # The client may have closed the connection already.
            with suppress(OSError):
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        self._connections[request] = self._clock.now_ns()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.pop(request, None)
            self._slots.release()

    def _replace_oldest(self) -> bool:
        """Free a slot by closing the oldest connection that has sent no request with the token.

        Return False if all connections have sent the token, or if no slot is free within 1 s.

        Anybody on this host can connect. Idle connections must not keep out a client that knows the token.
        """
        oldest = next(iter(tuple(self._connections)), None)
        if oldest is None:
            return False
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RD)
        return self._slots.acquire(timeout=_SLOT_WAIT_S)

    def on_admitted(self, request: socket.socket) -> None:
        """Let a connection that has sent the token keep its slot until its request is answered."""
        self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Usually the client has closed its connection. Without this method, socketserver prints a traceback to stderr.
        logger.debug("a connection of the control API failed: %r", sys.exception())

    def service_actions(self) -> None:
        # A socket's timeout limits a single read. This limits the whole request of a client that sends byte by byte.
        self.shut_for_reading(self._clock.now_ns() - _REQUEST_TIMEOUT_S * NS_PER_S)

    def shut_for_reading(self, started_before_ns: int) -> None:
        """Shut down for reading connections that have not sent the token and began before `started_before_ns`.

        Their threads then end. Operations in progress still respond.
        """
        for request, start_ns in tuple(self._connections.items()):
            if start_ns < started_before_ns:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RD)

    def server_close(self) -> None:
        self.shut_for_reading(self._clock.now_ns() + 1)
        super().server_close()


class _HttpOperation(BaseHTTPRequestHandler):
    """Request handler of http.server, for the only request of a connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "kproc"
    sys_version = ""
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        """Respond with the names, summaries and arguments of all operations. The only path is /."""
        if not self._is_admitted():
            return
        if self.path != "/":
            name = self.path.removeprefix("/")
            self._respond(*((405, _error(_METHODS)) if name in OPERATIONS else _unknown(name)))
            return
        operations = {name: each.summary for name, each in sorted(OPERATIONS.items())}
        arguments = {name: each.arguments for name, each in sorted(OPERATIONS.items())}
        self._respond(200, {"operations": operations, "arguments": arguments})

    def do_POST(self) -> None:
        """Run the operation of the path."""
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not _LENGTH.fullmatch(length):
            self._reject(411, "a request needs Content-Length")
        elif int(length) > BODY_BYTES_MAX:
            self._reject(413, f"a request has {BODY_BYTES_MAX:,} bytes at most")
        # Read the body before the token is checked, because an answer that leaves it unread can be lost (_reject).
        elif len(body := self.rfile.read(int(length))) == int(length) and self._is_admitted():
            self._respond(*self.server.control.call(self.path.removeprefix("/"), body))

    def _is_admitted(self) -> bool:
        """Return True if a program of this host that knows the token sent the request. Otherwise respond an error."""
        if not all(map(is_own_host, self.headers.get_all("Host", []))):
            self._respond(421, _error("Host must be localhost, the host's own name or an address"))
            return False
        given = self.headers.get("Authorization", "")
        wanted = self.server.control.token
        if not given.startswith(_SCHEME) or not hmac.compare_digest(
            given.removeprefix(_SCHEME).strip().encode(), wanted.encode()
        ):
            self._respond(
                401, _error("the header Authorization must be: Bearer TOKEN, with the token of this API")
            )
            return False
        self.server.on_admitted(self.connection)
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond with a JSON error. http.server calls this for a request that is not HTTP or has another method."""
        text = message or self.responses[code][0]
        self._reject(code, f"{text}: {_METHODS}" if code == 501 else text)

    def _reject(self, status: int, text: str) -> None:
        """Respond with an error to a request whose body was not read, and discard the rest of the request.

        If a socket is closed with unread bytes, the kernel sends a reset, and the client can lose the answer.
        """
        self._respond(status, _error(text))
        # The client closes the connection when it has read the answer. service_actions() limits the time.
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read(_DISCARDED_BYTES):
                pass

    def _respond(self, status: int, answer: dict[str, Any]) -> None:
        body = msgspec.json.encode(answer)
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if status == 405:
            self.send_header("Allow", "POST")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.debug(format, *arguments)


def _unknown(name: str) -> tuple[int, dict[str, Any]]:
    return 404, _error(f"unknown operation {name!r}: GET / names all")


def _status_of(error: BaseException) -> int:
    """Return the HTTP status for the error of an operation. The table of TESTING.md says what each one means."""
    if isinstance(error, (UnsupportedOperation, *_INVALID)):
        return 400
    if isinstance(error, (TimeoutError, AnswerTimeout)):
        return 504
    if isinstance(error, (RequestFailed, ApiError)):
        return _CODE_STATUS.get(error.code, 400)
    if isinstance(error, _PASSING):
        return 503
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, ClientError):
        # BrokerState converts the client's errors.
        return _status_of(error.__cause__)
    # The broker has rejected the operation.
    return 400 if isinstance(error, (ClientError, RuntimeError)) else 500


def _error(text: str) -> dict[str, Any]:
    return {"error": text}
