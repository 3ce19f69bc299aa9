"""kproc.client against a scripted peer: framing, pipelining, negotiation, and each way to fail."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kproc.client import (
    AnswerTimeout,
    ApiError,
    Client,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
)
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.wait import PATIENCE_SECONDS

Script = Callable[[socket.socket], None]


@contextmanager
def peer(script: Script, timeout_ms: int = 120_000) -> Iterator[Client]:
    """A client connected to a peer that runs `script` once."""
    failures: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    script(connection)
                except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                    failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            with Client.connect("127.0.0.1", server.getsockname()[1], timeout_ms=timeout_ms) as client:
                yield client
        finally:
            thread.join()
    assert not failures, failures


def read_frame(connection: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = connection.recv(count - len(data))
            assert piece, "the client closed the connection"
            data += piece
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def correlation_id_of(frame: bytes) -> int:
    return int(struct.unpack_from(">hhi", frame)[2])


def versions_answer(frame: bytes, *rows: tuple[int, int, int], error_code: int = 0) -> bytes:
    api_keys = [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in rows]
    fields = {"error_code": error_code, "api_keys": api_keys}
    return codec.encode_response(ApiKey.API_VERSIONS, 0, correlation_id_of(frame), fields)


def test_a_request_is_framed_and_its_answer_comes_back():
    def script(connection: socket.socket) -> None:
        frame = read_frame(connection)
        header, _ = parse_request_header(memoryview(frame))
        assert (header.api_key, header.api_version, header.client_id) == (18, 0, "kproc")
        connection.sendall(versions_answer(frame, (0, 3, 9)))

    with peer(script) as client:
        assert client.api_versions() == {0: (3, 9)}
        assert client.api_versions() == {0: (3, 9)}  # Asked once: the script answers once.


def test_answers_come_in_the_order_of_pipelined_requests():
    def script(connection: socket.socket) -> None:
        frames = [read_frame(connection) for _ in range(3)]
        answers = b"".join(versions_answer(frame, (index, 0, index)) for index, frame in enumerate(frames))
        for position in range(0, len(answers), 5):  # In pieces that respect no boundary.
            connection.sendall(answers[position : position + 5])

    with peer(script) as client:
        ids = [client.send(ApiKey.API_VERSIONS, 0, {}) for _ in range(3)]
        answers = [client.receive() for _ in range(3)]
    assert [correlation_id for correlation_id, _ in answers] == ids
    assert [fields["api_keys"][0]["max_version"] for _, fields in answers] == [0, 1, 2]


@pytest.mark.parametrize(("low", "high", "chosen"), [(0, 13, 12), (0, 5, 5), (12, 20, 12)])
def test_the_newest_common_version_is_chosen(low, high, chosen):
    with peer(lambda sock: sock.sendall(versions_answer(read_frame(sock), (3, low, high)))) as client:
        assert client.negotiate(ApiKey.METADATA) == chosen


@pytest.mark.parametrize("rows", [[], [(3, 99, 100)]])
def test_no_common_version_is_an_error_that_names_the_api(rows):
    with (
        peer(lambda sock: sock.sendall(versions_answer(read_frame(sock), *rows))) as client,
        pytest.raises(ClientError, match="Metadata"),
    ):
        client.negotiate(ApiKey.METADATA)


def test_a_refused_version_request_carries_its_code():
    with (
        peer(lambda sock: sock.sendall(versions_answer(read_frame(sock), error_code=35))) as client,
        pytest.raises(ApiError, match="UNSUPPORTED_VERSION") as caught,
    ):
        client.api_versions()
    assert caught.value.code == 35


def test_refused_connection_error_has_address_and_reason():
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        with pytest.raises(
            ConnectionFailed, match=rf"^cannot connect to 127\.0\.0\.1:{port}: connection refused$"
        ):
            Client.connect("127.0.0.1", port)


def test_unknown_host_raises_connection_failed():
    with pytest.raises(ConnectionFailed, match=r"^cannot connect to no-such-host\.invalid:1: "):
        Client.connect("no-such-host.invalid", 1)


def test_a_silent_peer_ends_in_a_timeout():
    done = threading.Event()

    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(b"\x00\x00\x00\x10half")  # Half an answer does not prolong the deadline for ever.
        done.wait(PATIENCE_SECONDS)

    with peer(script, timeout_ms=50) as client:
        try:
            with pytest.raises(AnswerTimeout, match="gave no answer in 50 ms"):
                client.call(ApiKey.API_VERSIONS, 0, {})
        finally:
            done.set()


def test_invalid_host_name_raises_connection_failed():
    with pytest.raises(ConnectionFailed, match=r"a\.\.b:9092: that is not a host name"):
        Client.connect("a..b", 9092)


def test_closed_connection_raises_connection_lost():
    with (
        peer(lambda sock: (read_frame(sock), None)[1]) as client,
        pytest.raises(ConnectionLost, match="closed the connection"),
    ):
        client.call(ApiKey.API_VERSIONS, 0, {})


def test_answer_above_callers_bound_is_rejected_unread():
    """Where no broker listens anybody may, and root's command would keep what it sends in memory."""
    announced = (1000).to_bytes(4, "big") + bytes(10)
    with peer(lambda sock: (read_frame(sock), sock.sendall(announced))[1]) as client:
        client.answer_bytes_max = 999
        with pytest.raises(ConnectionLost, match="announces a response of 1000 bytes; this client accepts up to 999"):
            client.call(ApiKey.API_VERSIONS, 0, {})


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_answer_of_another_protocol_raises_connection_lost(answer):
    with (
        peer(lambda sock: (read_frame(sock), sock.sendall(answer))[1]) as client,
        pytest.raises(ConnectionLost, match="does not speak Kafka's protocol"),
    ):
        client.call(ApiKey.API_VERSIONS, 0, {})


def test_undecodable_answer_raises_connection_lost():
    def script(connection: socket.socket) -> None:
        body = struct.pack(">i", correlation_id_of(read_frame(connection))) + b"\x00"
        connection.sendall(struct.pack(">i", len(body)) + body)

    with peer(script) as client, pytest.raises(ConnectionLost, match="cannot be read"):
        client.call(ApiKey.API_VERSIONS, 0, {})


def test_answer_to_another_request_raises_connection_lost():
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(
            codec.encode_response(ApiKey.API_VERSIONS, 0, 77, {"error_code": 0, "api_keys": []})
        )

    with peer(script) as client, pytest.raises(ConnectionLost, match="answered correlation id 77, but 1 was next"):
        client.call(ApiKey.API_VERSIONS, 0, {})


def test_name_above_the_protocol_limit_raises_client_error():
    """Commands ended with a traceback, because it was a ValueError."""
    fields = {"topics": [{"name": "x" * 32_768}]}
    with (
        peer(lambda sock: None) as client,
        pytest.raises(ClientError, match=r"METADATA .*topics\.name: string of 32768 bytes is too long"),
    ):
        client.send(ApiKey.METADATA, 4, fields)


def test_reading_without_a_request_is_our_own_mistake():
    with peer(lambda sock: None) as client, pytest.raises(ClientError, match="there is no response to receive"):
        client.receive()


# -- kproc's own operations


def test_operation_is_sent_and_its_result_returned() -> None:
    def script(connection: socket.socket) -> None:
        frame = read_frame(connection)
        assert frame[-len(b'{"op": "status"}') :] == b'{"op": "status"}'
        body = frame[4:8] + json.dumps({"error": None, "result": {"topics": 3}}).encode()
        connection.sendall(struct.pack(">i", len(body)) + body)

    with peer(script) as client:
        assert client.operate("status") == {"topics": 3}


def test_operation_of_closed_connection_names_it() -> None:
    with (
        peer(lambda sock: (read_frame(sock), None)[1]) as client,
        pytest.raises(ConnectionLost, match="it is not a kproc broker, or it rejects `status`"),
    ):
        client.operate("status")
