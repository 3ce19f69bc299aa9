"""Signed tokens: which are accepted, which are rejected, and how the keys are loaded."""

from __future__ import annotations

import base64
import hmac
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from kproc.broker.security.sasl.bearer import BadToken, Claims
from kproc.broker.security.sasl.key_set import KeySet, fetch
from kproc.broker.security.sasl.mechanism import KeysAwaited
from kproc.broker.security.sasl.signed_tokens import ExpectedClaims, SignedValidator
from tests.support.cases import in_one_test

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
STRANGER = ECKey.generate_key("P-256", {"kid": "ec"})
EXPECTED = ExpectedClaims(audience=("kafka", "other"), issuer="https://issuer", skew_s=30, name_claim="sub")


def published(*keys: Key) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class Loads:
    """What the address answers, one by one; the last one again and again. Run when the test says so."""

    def __init__(self, *answers: bytes | Exception, runs_at_once: bool = True) -> None:
        self.answers = list(answers)
        self.count = 0
        self.now_ms = NOW_MS
        self.waiting: list[Callable[[], None]] = []
        self._runs_at_once = runs_at_once

    def keys(self, refresh_ms: int = 3_600_000) -> KeySet:
        url = "https://keys.example/jwks?secret=1"
        return KeySet(url, refresh_ms, lambda: self.now_ms, load=self.load, run=self.run)

    def load(self, _url: str) -> bytes:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, work: Callable[[], None]) -> None:
        if self._runs_at_once:
            work()
        else:
            self.waiting.append(work)


def check(token: str, *keys: Key, **expected: Any) -> Claims:
    loads = Loads(published(*(keys or (RSA, EC))))
    return SignedValidator(loads.keys(), EXPECTED._replace(**expected), lambda: NOW_MS)(token)


def signed(
    key: Key = EC, algorithm: str = "ES256", header: dict[str, Any] | None = None, **claims: Any
) -> str:
    body = {
        "sub": "alice", "iat": NOW_S, "exp": NOW_S + 60, "iss": "https://issuer", "aud": ["x", "kafka"], **claims,
    }  # fmt: skip
    head = {"alg": algorithm, "kid": key.kid, **(header or {})}
    fields = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(
        {name: value for name, value in head.items() if value is not None}, fields, key, [algorithm]
    )


def test_a_token_of_a_published_key_is_believed() -> None:
    assert check(signed()) == Claims("alice", (NOW_S + 60) * 1000)
    assert check(signed(RSA, "RS256")).name == "alice"
    assert check(signed(RSA, "PS512")).name == "alice"
    assert check(signed(header={"kid": None}), EC).name == "alice"
    assert check(signed(aud="other")).name == "alice"
    assert check(signed(aud=None, iss=None), audience=(), issuer=None).name == "alice"
    assert check(signed(user="bob"), name_claim="user").name == "bob"
    assert check(signed(exp=NOW_S - 29)).expires_ms == (NOW_S - 29) * 1000
    assert check(signed(nbf=NOW_S + 29)).name == "alice"


@in_one_test(
    "claims",
    [{"exp": NOW_S - 30}, {"exp": None}, {"iat": None}, {"exp": "soon"}, {"exp": True}, {"exp": 1e300},
     {"nbf": NOW_S + 31}, {"iss": "https://stranger"}, {"iss": None}, {"aud": "y"}, {"aud": None}, {"aud": [7, {}]},
     {"aud": {"kafka": 1}}, {"sub": None}, {"sub": " "}, {"sub": 7}],
)  # fmt: skip
def test_a_token_that_does_not_say_what_it_must_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(BadToken):
        check(signed(**claims))


def with_header(token: str, **header: Any) -> str:
    """The token with another header, its signature as it was."""
    text = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return ".".join((text, *token.split(".")[1:]))


def with_the_public_key_as_password() -> str:
    parts = with_header(signed(), alg="HS256", kid="rsa").rpartition(".")[0]
    mac = hmac.digest(RSA.as_pem(private=False), parts.encode(), "sha256")
    return f"{parts}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


@in_one_test(
    "token",
    [
        "", "a", "a.b.c", ".." , "e30..", signed().rpartition(".")[0] + ".", signed()[:-9] + "AAAAAAAAA",
        signed(STRANGER), signed(header={"kid": "nobody"}), signed(header={"kid": None}), signed() + ".x",
        with_header(signed(), alg="none", kid="ec"), with_header(signed(), alg="None", kid="ec"),
        with_header(signed(), alg="RS256", kid="rsa"), with_header(signed(), alg=["ES256"], kid="ec"),
        with_the_public_key_as_password(), signed().replace(".", "\u00e4.", 1), "W10.e30.x",
    ],
)  # fmt: skip
def test_a_token_without_a_signature_that_fits_is_refused(token: str) -> None:
    with pytest.raises(BadToken):
        check(token)


def test_a_password_among_the_keys_signs_nothing() -> None:
    secret = OctKey.generate_key(256, {"kid": "oct"})
    loads = Loads(json.dumps({"keys": [secret.as_dict(private=True)]}).encode())
    with pytest.raises(BadToken):
        SignedValidator(loads.keys(), EXPECTED, lambda: NOW_MS)(signed(secret, "HS256"))


# -- keys ----------------------------------------------------------------------------------------------------------


def test_token_before_keys_are_loaded_waits_for_them() -> None:
    loads = Loads(published(EC), runs_at_once=False)
    keys = loads.keys()
    for _ in range(3):
        with pytest.raises(KeysAwaited):
            keys.find("ec")
    (work,) = loads.waiting
    work()
    found = keys.find("ec")
    assert found is not None
    assert found.kid == "ec"


def test_new_key_id_is_fetched_once_not_per_invented_name() -> None:
    loads = Loads(published(EC), published(EC, RSA))
    keys = loads.keys()
    assert keys.find("ec") is not None
    assert keys.find("rsa") is not None
    for number in range(100):
        assert keys.find(f"invented-{number}") is None
    assert loads.count == 2
    loads.now_ms += 10_000
    assert keys.find("invented") is None
    assert loads.count == 3


def test_old_keys_are_reloaded_and_used_meanwhile() -> None:
    loads = Loads(published(EC), runs_at_once=False)
    keys = loads.keys(refresh_ms=1_000_000)
    with pytest.raises(KeysAwaited):
        keys.find("ec")
    loads.waiting.pop()()
    loads.now_ms += 999_999
    assert keys.find("ec") is not None
    assert loads.waiting == []
    loads.now_ms += 1
    assert keys.find("ec") is not None
    assert len(loads.waiting) == 1


@pytest.mark.parametrize(
    "answer",
    [OSError("refused"), ValueError("too large"), b"", b"[]", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [7]}',
     b'{"keys": [{"kty": "RSA"}]}', b"<html>"],
)  # fmt: skip
def test_invalid_key_response_is_retried_and_logged(
    answer: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    loads = Loads(answer, published(EC))
    keys = loads.keys()
    with pytest.raises(KeysAwaited):
        keys.find("ec")
    (line,) = caplog.messages
    assert "https://keys.example/jwks, " in line
    assert "secret" not in line
    loads.now_ms += 1_000
    assert keys.find("ec") is not None


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(published(RSA))
    assert fetch(file.as_uri()) == published(RSA)
    file.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(OSError, match="Larger than 1048576 bytes"):
        fetch(file.as_uri())


def test_fifo_instead_of_keys_is_rejected(tmp_path: Path) -> None:
    """The open of a FIFO blocked the thread that loads keys, for ever."""
    file = tmp_path / "keys.json"
    os.mkfifo(file)
    with pytest.raises(OSError, match="Not a regular file"):
        fetch(file.as_uri())
