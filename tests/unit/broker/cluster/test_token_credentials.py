"""Logins by delegation token in a Handler: SCRAM with the token's id and secret, as the token's owner."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.security.principal import Principal
from kproc.broker.security.sasl.scram import KINDS, SCRAM_SHA_256, new_credential
from kproc.broker.transport.envelope import CLOSE, FLAG_LOGIN
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_logins import AUTHENTICATE, GENERAL, gated, refused, shake, start
from tests.support.handler_rig import Answer, HandlerRig
from tests.support.scram_client import ScramClient

__all__ = ["start"]  # The fixture.

Start = Callable[..., HandlerRig]
KEY = {"delegation_token_secret_key": "the key of the tokens"}
ALICE = ("User", "alice")
OF_A_TOKEN = ",tokenauth=true"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def create_token(rig: HandlerRig, **more: Any) -> tuple[str, str]:
    """A token of alice's: its id, and what it logs in with."""
    body = {"requester": ALICE, "owner": ALICE, "renewers": [], "max_lifetime": -1, **more}
    token = rig.cluster.do("create_delegation_token", **body)
    rig.tell()
    return token["token_id"], base64.b64encode(token["hmac"]).decode()


def log_in(rig: HandlerRig, token_id: str, secret: str, extensions: str = OF_A_TOKEN) -> Answer:
    """The last answer of a login."""
    shake(rig, SCRAM_SHA_256)
    client = ScramClient("sha256", token_id, secret, extensions=extensions)
    first = gated(rig, AUTHENTICATE, 1, auth_bytes=client.first()).fields(AUTHENTICATE, 1)
    assert first["error_code"] == 0, "what it is refused for shows at the end"
    return gated(rig, AUTHENTICATE, 1, auth_bytes=client.final(first["auth_bytes"]))


def is_refused(rig: HandlerRig, answer: Answer) -> bool:
    expected = (ErrorCode.SASL_AUTHENTICATION_FAILED, GENERAL + SCRAM_SHA_256)
    return (
        answer.kind == CLOSE
        and refused(answer, AUTHENTICATE, 1) == expected
        and not rig.processors[0].sessions
    )


def test_token_logs_in_as_its_owner_until_it_expires(start: Start) -> None:
    rig = start(**KEY)
    rig.clock.advance_ms(HOUR_MS)
    token = create_token(rig, max_lifetime=2 * HOUR_MS)
    answer = log_in(rig, *token).fields(AUTHENTICATE, 1)
    assert (answer["error_code"], answer["session_lifetime"]) == (0, 2 * HOUR_MS)
    session = rig.processors[0].sessions[1]
    assert session.principal == Principal("User", "alice", is_token=True)
    assert session.ends_ns == rig.clock.now_ns() + 2 * HOUR_MS * 1_000_000


def test_session_of_password_is_prolonged_by_token_of_same_user(start: Start) -> None:
    rig = start(connections_max_reauth_ms=60_000, **KEY)
    token = create_token(rig)
    rig.processors[0].introduce("10.0.0.7", principal=Principal(*ALICE), mechanism=SCRAM_SHA_256, ends_ns=5)
    assert log_in(rig, *token).fields(AUTHENTICATE, 1)["error_code"] == 0
    assert rig.processors[0].sessions[1].principal == Principal("User", "alice", is_token=True)


def test_session_keeps_lifetime_of_token_before_renewal(start: Start) -> None:
    rig = start(**KEY)
    token_id, secret = create_token(rig)
    token = rig.cluster.image.delegation_tokens[token_id]
    rig.clock.advance_ms(HOUR_MS)
    body = {"requester": ALICE, "hmac": base64.b64decode(secret), "period": 12 * HOUR_MS}
    assert rig.cluster.do("renew_delegation_token", **body)["error_code"] == 0
    rig.tell()
    assert rig.cluster.image.delegation_tokens[token_id] != token
    assert log_in(rig, token_id, secret).fields(AUTHENTICATE, 1)["session_lifetime"] == 12 * HOUR_MS


@pytest.mark.parametrize("why", ["expired", "removed", "unknown", "wrong secret", "no key", "not as a token"])
def test_anything_else_is_refused_like_a_wrong_password(start: Start, why: str) -> None:
    rig = start(**({} if why == "no key" else KEY))
    token_id, secret = ("x" * 22, "secret") if why in ("unknown", "no key") else create_token(rig)
    if why == "expired":
        rig.clock.advance_ms(DAY_MS + 1)
    elif why == "removed":
        assert is_logged_in(rig, token_id, secret)
        rig.processors[0].disconnect()
        rig.processors[0].sessions.clear()
        rig.processors[0].introduce("10.0.0.7")
        body = {"requester": ALICE, "hmac": base64.b64decode(secret), "period": -1}
        rig.cluster.do("expire_delegation_token", **body)
        rig.tell()
    elif why == "wrong secret":
        secret = create_token(rig)[1]
    assert is_refused(rig, log_in(rig, token_id, secret, "" if why == "not as a token" else OF_A_TOKEN))


def test_a_token_that_is_not_there_is_shown_as_one_that_is(start: Start) -> None:
    """Whatever users look like: how often and with how long a salt must not tell which tokens there are."""
    rig = start(**KEY)
    kind = KINDS[SCRAM_SHA_256]
    user = {"name": "carl", "mechanism": kind.number, **new_credential(kind, "word", 8192)._asdict()}
    rig.cluster.do("alter_user_scram_credentials", deletions=[], upsertions=[user])
    rig.tell()
    shapes = set()
    for name in (create_token(rig)[0], "x" * 22):
        shake(rig, SCRAM_SHA_256)
        first = ScramClient("sha256", name, "word", extensions=OF_A_TOKEN)
        told = gated(rig, AUTHENTICATE, 1, auth_bytes=first.first()).fields(AUTHENTICATE, 1)["auth_bytes"]
        _, salt, iterations = told.split(b",")
        shapes.add((len(salt), iterations))
        gated(rig, AUTHENTICATE, 1, auth_bytes=first.final(told))
    assert len(shapes) == 1


def is_logged_in(rig: HandlerRig, token_id: str, secret: str) -> bool:
    return log_in(rig, token_id, secret).fields(AUTHENTICATE, 1)["error_code"] == 0


def test_salts_of_handlers_differ_for_known_and_unknown_tokens(start: Start) -> None:
    """Each Handler has a secret of its own. A salt that only unknown ids had different would show who exists."""
    rig = start(handlers=2, **KEY)
    for token_id in (create_token(rig)[0], "x" * 22):
        salts = set()
        for processor in rig.processors:
            processor.send(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256}, flags=FLAG_LOGIN)
            processor.answers()
            first = ScramClient("sha256", token_id, "x", extensions=OF_A_TOKEN)
            processor.send(AUTHENTICATE, 1, {"auth_bytes": first.first()}, flags=FLAG_LOGIN)
            (answer,) = processor.answers()
            told = answer.fields(AUTHENTICATE, 1)["auth_bytes"]
            salts.add(told.split(b",")[1])
            processor.send(AUTHENTICATE, 1, {"auth_bytes": first.final(told)}, flags=FLAG_LOGIN)
            processor.answers()
        assert len(salts) == 2


def salt_of(rig: HandlerRig, token_id: str, mechanism: str = SCRAM_SHA_256) -> bytes:
    """The salt that is shown before the login."""
    shake(rig, mechanism)
    client = ScramClient(KINDS[mechanism].digest, token_id, "x", extensions=OF_A_TOKEN)
    first = gated(rig, AUTHENTICATE, 1, auth_bytes=client.first()).fields(AUTHENTICATE, 1)
    gated(rig, AUTHENTICATE, 1, auth_bytes=client.final(first["auth_bytes"]))
    parts = dict(part.split("=", 1) for part in first["auth_bytes"].decode().split(","))
    return base64.b64decode(parts["s"])


def test_salt_of_token_login_does_not_follow_from_key(start: Start) -> None:
    """Two brokers with one key show different salts: nobody can test a guess of the key by a salt."""
    salts = []
    for _ in range(2):
        rig = start(**KEY)
        token_id, _ = create_token(rig)
        salts.append((salt_of(rig, "whatever"), salt_of(rig, token_id)))
        assert salt_of(rig, "whatever") == salts[-1][0]
    (unknown, known), (unknown_again, known_again) = salts
    assert unknown != unknown_again
    key = KEY["delegation_token_secret_key"].encode()
    for salt, name in ((known, token_id), (known_again, token_id), (unknown, "whatever")):
        seed = hmac.digest(key, name.encode(), "sha256")
        assert salt not in (seed, hashlib.shake_256(seed).digest(len(salt)))


def test_salt_of_token_login_is_same_before_token_exists(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A salt that changes when the token is created, or ends, would show which ids are tokens."""
    rig = start(**KEY)
    token_id, secret = create_token(rig)
    credentials = rig.handler()._requests.logins._tokens
    found = credentials.find(KINDS[SCRAM_SHA_256], token_id)
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "_tokens", dict)
        assert credentials.find(KINDS[SCRAM_SHA_256], token_id).credential.salt == found.credential.salt
    assert log_in(rig, token_id, secret).fields(AUTHENTICATE, 1)["error_code"] == 0
