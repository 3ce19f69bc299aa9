"""The control API over HTTP: its clients, errors and limits, without a running broker."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kproc.client.errors import (
    AnswerTimeout,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    OperationUnavailable,
)
from kproc.common.errors import ErrorCode
from kproc.embedded import Broker, BrokerFailed
from kproc.embedded.control import BODY_BYTES_MAX, CONNECTIONS_MAX, LOOPBACK, ControlServer
from kproc.embedded.control_operation import OPERATIONS, ControlOperation
from kproc.embedded.process import BrokerRestarting, RequestFailed, UnsupportedOperation
from tests.support.broker import ROOT
from tests.support.wait import PATIENCE_SECONDS

NAME = "broker/info"
NO_ARGUMENTS = msgspec.json.Decoder(msgspec.defstruct("NoArguments", []))


@pytest.fixture
def control() -> Iterator[ControlServer]:
    with ControlServer(Broker()) as running:
        yield running


def connect(control: ControlServer) -> socket.socket:
    port = int(control.url.rpartition(":")[2])
    return socket.create_connection((LOOPBACK, port), timeout=PATIENCE_SECONDS)


def read_answer(sock: socket.socket) -> tuple[int, Any]:
    """Return the status and the decoded body of an answer, or (0, None) if the connection ends without one."""
    with sock.makefile("rb") as file:
        head, _, body = file.read().partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body or b"null")) if head else (0, None)


def ask(control: ControlServer, start: str, body: bytes = b"", **headers: str | None) -> tuple[int, Any]:
    """Send a request, and return the status and the decoded body of its answer. None leaves out a header."""
    given: dict[str, str | None] = {
        "Host": "localhost",
        "Authorization": f"Bearer {control.token}",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"{start} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value is not None)]
    with connect(control) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return read_answer(sock)


def test_operation_is_called_with_the_token_only(control: ControlServer) -> None:
    assert ask(control, f"POST /{NAME}") == (200, {})
    for given in (None, "", control.token, "Bearer ", "Bearer x", f"Bearer {control.token}x", "Bearer \xe9"):
        assert ask(control, f"POST /{NAME}", Authorization=given)[0] == 401, given
        assert ask(control, "GET /", Authorization=given)[0] == 401, given


def test_host_of_a_web_page_is_rejected(control: ControlServer) -> None:
    status, answer = ask(control, f"POST /{NAME}", Host="evil.example:80")
    assert (status, answer["error"]) == (421, "Host must be localhost, the host's own name or an address")
    assert ask(control, "GET /", Host="evil.example")[0] == 421


def test_list_of_operations_has_a_line_for_each(control: ControlServer) -> None:
    status, answer = ask(control, "GET /")
    assert status == 200
    assert set(answer["operations"]) == set(OPERATIONS)
    assert all(text.endswith(".") for text in answer["operations"].values())


def test_wrong_requests_get_a_status_and_a_reason(control: ControlServer) -> None:
    cases = [
        ("POST /no/such", b"", {}, 404, "unknown operation 'no/such': GET / names all"),
        ("GET /no/such", b"", {}, 404, "unknown operation 'no/such': GET / names all"),
        (f"GET /{NAME}", b"", {}, 405, "there are only GET / and POST"),
        (f"PUT /{NAME}", b"{}", {}, 501, "Unsupported method ('PUT'): there are only GET / and POST"),
        (f"POST /{NAME}", b'{"\xff": 1}', {}, 400, "broker/info: 'utf-8' codec can't decode byte 0xff"),
        (f"POST /{NAME} x", b"", {}, 400, "Bad request"),
        (f"POST /{NAME}", b"{", {}, 400, "broker/info: Input data was truncated"),
        (f"POST /{NAME}", b"[]", {}, 400, "broker/info: Expected `object`, got `array`"),
        (f"POST /{NAME}", b'{"a": 1}', {}, 400, "broker/info: Object contains unknown field `a`"),
        ("POST /fault/add", b'{"rule": ' + b"[" * 100_000, {}, 400, "fault/add: "),
        ("POST /topic/create", b'{"name": "a", "partitions": 0}', {}, 400, "topic/create: Expected `int` >= 1"),
        ("POST /fault/remove", b"{}", {}, 400, "fault/remove: Object missing required field `id`"),
        ("POST /fault/get", b'{"id": 7}', {}, 400, "fault/get: fault rule 7 was removed, or was not added"),
        ("POST /topic/create", b'{"name": "a"}', {}, 503, "the broker is not running"),
        (f"POST /{NAME}", b"", {"Content_Length": None}, 411, "a request needs Content-Length"),
        (f"POST /{NAME}", b"", {"Content_Length": "-1"}, 411, "a request needs Content-Length"),
        (f"POST /{NAME}", b"", {"Transfer_Encoding": "chunked"}, 411, "a request needs Content-Length"),
        (f"POST /{NAME}", b"", {"Content_Length": str(BODY_BYTES_MAX + 1)}, 413, "a request has 1,048,576 bytes"),
        (f"POST /{NAME}", b"", {"x" * 70_000: "y"}, 431, "Line too long"),
    ]  # fmt: skip
    for start, body, headers, status, reason in cases:
        found = ask(control, start, body, **headers)
        assert found[0] == status, (start, headers, found)
        assert found[1]["error"].startswith(reason), (start, headers, found)


def test_client_that_sends_a_large_body_reads_the_reason(control: ControlServer) -> None:
    """It sends all before it reads. An answer beside unread bytes would be lost by a reset."""
    status, answer = ask(control, f"POST /{NAME}", bytes(8 * BODY_BYTES_MAX))
    assert (status, answer["error"]) == (413, "a request has 1,048,576 bytes at most")


def test_defect_of_an_operation_is_an_answer(control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_broker: Broker) -> dict[str, Any]:
        raise KeyError("lost")

    monkeypatch.setitem(OPERATIONS, "fail", ControlOperation(fail, NO_ARGUMENTS))
    assert ask(control, "POST /fail") == (
        500,
        {"error": "fail failed, which is a defect of kproc: KeyError('lost')"},
    )


def test_status_fits_the_cause_of_an_error(control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 503 and 504 promise that a retry can succeed. The guide has a row for each status."""

    def caused_by(cause: ClientError) -> RuntimeError:
        error = RuntimeError("the state")
        error.__cause__ = cause
        return error

    cases: list[tuple[Exception, int]] = [
        (UnsupportedOperation("no processes"), 400),
        (ValueError("no such role"), 400),
        (ClientError("127.0.0.1:9092: rejected"), 400),
        (RuntimeError("no recording"), 400),
        (RequestFailed(ErrorCode.TOPIC_ALREADY_EXISTS, "it exists"), 400),
        (RequestFailed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic"), 400),
        (caused_by(ClientError("the limit of snapshots")), 400),
        (KeyError("lost"), 500),
        (BrokerFailed("handler 0 has no process now"), 503),
        (BrokerRestarting("another thread restarts the broker"), 503),
        (ConnectionFailed("cannot connect"), 503),
        (ConnectionLost("closed"), 503),
        (OSError(errno.ENOSPC, "No space left on device"), 503),
        (ClientError("the text does not count; try again"), 400),
        (OperationUnavailable("127.0.0.1:9092: scale: 16 changes wait already"), 503),
        (caused_by(OperationUnavailable("snapshot failed: no space")), 503),
        (RequestFailed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator is loading"), 503),
        (caused_by(ConnectionLost("closed")), 503),
        (TimeoutError("not idle"), 504),
        (AnswerTimeout("no answer"), 504),
        (RequestFailed(ErrorCode.REQUEST_TIMED_OUT, "the controller stands still"), 504),
        (caused_by(AnswerTimeout("no answer")), 504),
    ]
    guide = (ROOT / "kproc/TESTING.md").read_text()
    for error, status in cases:

        def fail(_broker: Broker, error: Exception = error) -> dict[str, Any]:
            raise error

        monkeypatch.setitem(OPERATIONS, "fail", ControlOperation(fail, NO_ARGUMENTS))
        found, answer = control.call("fail", b"")
        assert found == status, (error, found)
        assert str(error) in answer["error"]
        assert f"\n| {status} | " in guide


def test_idle_connections_do_not_keep_out_a_request(control: ControlServer) -> None:
    """Anybody on the host can connect without the token."""
    idle = [connect(control) for _ in range(CONNECTIONS_MAX + 1)]
    try:
        for _ in range(3):
            assert ask(control, f"POST /{NAME}") == (200, {})
    finally:
        for sock in idle:
            sock.close()


def test_connections_above_the_limit_are_rejected(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places belong to operations in progress, which are not ended for a new connection."""
    started, may_end = threading.Semaphore(0), threading.Event()

    def wait(_broker: Broker) -> dict[str, Any]:
        started.release()
        may_end.wait(PATIENCE_SECONDS)
        return {}

    monkeypatch.setitem(OPERATIONS, "wait", ControlOperation(wait, NO_ARGUMENTS))
    head = f"POST /wait HTTP/1.1\r\nAuthorization: Bearer {control.token}\r\nContent-Length: 0\r\n\r\n"
    busy = [connect(control) for _ in range(CONNECTIONS_MAX)]
    for sock in busy:
        sock.sendall(head.encode())
        assert started.acquire(timeout=PATIENCE_SECONDS)
    with connect(control) as rejected:
        assert read_answer(rejected)[0] == 503
    may_end.set()
    for sock in busy:
        with sock:
            assert read_answer(sock)[0] == 200


def test_close_ends_idle_connections_and_all_threads() -> None:
    before = threading.active_count()
    with ControlServer(Broker()) as control:
        idle = [connect(control) for _ in range(2)]
        idle[1].sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert ask(control, "GET /")[0] == 200
    assert threading.active_count() == before
    for sock in idle:
        with sock:
            assert sock.recv(1) == b""


def test_block_is_not_quiescent_during_an_operation(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_started, may_end = threading.Event(), threading.Event()

    def wait(_broker: Broker) -> dict[str, Any]:
        has_started.set()
        may_end.wait(PATIENCE_SECONDS)
        return {}

    monkeypatch.setitem(OPERATIONS, "wait", ControlOperation(wait, NO_ARGUMENTS))
    with control.quiescent() as is_quiet:
        assert is_quiet
    asking = threading.Thread(target=ask, args=(control, "POST /wait"))
    asking.start()
    has_started.wait(PATIENCE_SECONDS)
    with control.quiescent() as is_quiet:
        assert not is_quiet
    may_end.set()
    asking.join()
    with control.quiescent() as is_quiet:
        assert is_quiet


def test_port_in_use_is_an_error(control: ControlServer) -> None:
    with pytest.raises(OSError, match="in use"):
        ControlServer(Broker(), port=int(control.url.rpartition(":")[2]))
