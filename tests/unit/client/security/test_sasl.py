"""The client's side of SCRAM, PLAIN and OAUTHBEARER, against another implementation and against broken brokers."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from scramp import ScramMechanism

from kproc.client.errors import SecurityFailed
from kproc.client.security.sasl import bearer_token, log_in, scram
from kproc.client.security.settings import ClientLogin
from tests.support.cases import in_one_test

ADDRESS = "localhost:9093"


def answer(token: bytes, *, code: int = 0, message: str | None = None, lifetime_ms: int = 0) -> bytes:
    text = struct.pack(">h", -1) if message is None else struct.pack(">h", len(message)) + message.encode()
    return (
        struct.pack(">h", code)
        + text
        + struct.pack(">i", len(token))
        + token
        + struct.pack(">q", lifetime_ms)
    )


def broker_of(tell: Callable[[bytes], bytes], asked: list[bytes]) -> Callable[[int, int, bytes], bytes]:
    """A broker that offers every mechanism and answers tokens as `tell` does."""

    def ask(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == 17:
            return struct.pack(">hi", 0, 0)
        (length,) = struct.unpack_from(">i", body)
        asked.append(body[4 : 4 + length])
        return tell(asked[-1])

    return ask


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_is_understood_by_another_implementation(mechanism: str) -> None:
    oracle = ScramMechanism(mechanism=mechanism)
    info = oracle.make_auth_info("pass,w=rd", iteration_count=4096)
    server = oracle.make_server(lambda user: {"al,i=ce": info}[user])
    turns = iter((server.set_client_first, server.set_client_final))
    ends = iter((server.get_server_first, server.get_server_final))

    def tell(token: bytes) -> bytes:
        next(turns)(token.decode())
        return answer(next(ends)().encode(), lifetime_ms=1234)

    lifetime_ms = log_in(broker_of(tell, []), ClientLogin(mechanism, "al,i=ce", "pass,w=rd"), ADDRESS)
    assert lifetime_ms == 1234


def test_broker_without_proof_of_password_is_rejected() -> None:
    oracle = ScramMechanism(mechanism="SCRAM-SHA-256")
    server = oracle.make_server(lambda _: oracle.make_auth_info("secret", iteration_count=4096))
    exchange = scram(ClientLogin("SCRAM-SHA-256", "alice", "secret"), ADDRESS, "nonce")
    server.set_client_first(next(exchange).decode())
    server.set_client_final(exchange.send(server.get_server_first().encode()).decode())
    lie = b"v=" + base64.b64encode(bytes(32))
    with pytest.raises(SecurityFailed, match="cannot prove"):
        exchange.send(lie)


@in_one_test(
    ("first", "words"),
    [
        (b"r=nonceX,s=QUJD,i=4095", "4095 iterations of SCRAM: 4096 to"),
        (b"r=nonceX,s=QUJD,i=99999999999", "iterations"),
        (b"r=other,s=QUJD,i=4096", "nonce of another"),
        (b"r=nonce,s=QUJD,i=4096", "nonce of another"),
        (b"r=nonceX,s=*,i=4096", "sent an invalid SCRAM message"),
        (b"nonsense", "sent an invalid SCRAM message"),
    ],
)
def test_first_message_of_a_broker_that_no_client_may_accept(first: bytes, words: str) -> None:
    exchange = scram(ClientLogin("SCRAM-SHA-256", "alice", "secret"), ADDRESS, "nonce")
    next(exchange)
    with pytest.raises(SecurityFailed, match=words):
        exchange.send(first)


def test_plain_sends_name_and_password_once() -> None:
    asked: list[bytes] = []
    log_in(broker_of(lambda _: answer(b""), asked), ClientLogin("PLAIN", "alice", "secret"), ADDRESS)
    assert asked == [b"\0alice\0secret"]


def test_wrong_password_error_quotes_broker_without_password() -> None:
    ask = broker_of(lambda _: answer(b"", code=58, message="Invalid username or password"), [])
    with pytest.raises(SecurityFailed) as caught:
        log_in(ask, ClientLogin("PLAIN", "alice", "s3cret-marker"), ADDRESS)
    text = str(caught.value)
    assert "login of alice by PLAIN: Invalid username or password" in text
    assert "s3cret-marker" not in text


def test_unoffered_mechanism_error_lists_offered_ones() -> None:
    def ask(api_key: int, version: int, body: bytes) -> bytes:
        return struct.pack(">hi", 33, 1) + struct.pack(">h", 5) + b"PLAIN"

    with pytest.raises(SecurityFailed, match=r"it offers PLAIN: set sasl\.mechanism"):
        log_in(ask, ClientLogin("SCRAM-SHA-256", "alice", "secret"), ADDRESS)


def test_unsigned_token_has_a_subject_and_an_end() -> None:
    asked: list[bytes] = []
    login = ClientLogin("OAUTHBEARER", "alice", extensions=(("team", "red"),))
    log_in(broker_of(lambda _: answer(b""), asked), login, ADDRESS)
    head, bearer, extension, *_ = asked[0].split(b"\1")
    assert (head, extension) == (b"n,,", b"team=red")
    payload = bearer.removeprefix(b"auth=Bearer ").split(b".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    assert claims["sub"] == "alice"
    assert claims["exp"] - claims["iat"] == 3600


def test_token_file_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    """Commands ended with a traceback."""
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SecurityFailed, match="token holds no token"):
        bearer_token(ClientLogin("OAUTHBEARER", token_file=str(file)))


def test_rejected_token_is_acknowledged_then_raised() -> None:
    asked: list[bytes] = []

    def tell(token: bytes) -> bytes:
        if len(asked) == 1:
            return answer(b'{"status":"invalid_token"}')
        return answer(b"", code=58, message="invalid_token")

    with pytest.raises(SecurityFailed, match="invalid_token"):
        log_in(broker_of(tell, asked), ClientLogin("OAUTHBEARER", token="a.b.c"), ADDRESS)
    assert asked[1:] == [b"\1"]


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_truncated_sasl_answer_raises_security_failed(cut: int) -> None:
    ask = broker_of(lambda _: answer(b"")[:cut], [])
    with pytest.raises(SecurityFailed, match="invalid response"):
        log_in(ask, ClientLogin("PLAIN", "alice", "secret"), ADDRESS)
