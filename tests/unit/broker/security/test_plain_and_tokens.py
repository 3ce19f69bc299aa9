"""PLAIN, OAUTHBEARER's messages and unsecured tokens: what is believed, what is refused, what the client is told."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.security.sasl import plain as plain_module
from kproc.broker.security.sasl.bearer import BadToken, Claims, TokenExchange, TokenMechanism
from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed
from kproc.broker.security.sasl.plain import PlainMechanism, users_of
from kproc.broker.security.sasl.unsecured_tokens import UnsecuredValidator

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
OTHER_NAME = "Authentication failed: Client requested an authorization id that is different from username"
WRONG = "Authentication failed: Invalid username or password"


def plain(token: bytes) -> tuple[bytes, AuthenticatedUser | None]:
    exchange = PlainMechanism({"alice": "pencil", "umläut": "pässword"}).start()
    return exchange.evaluate(token), exchange.outcome


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (b"\0alice\0pencil", "alice"),
        (b"alice\0alice\0pencil", "alice"),
        ("\0umläut\0pässword".encode(), "umläut"),
    ],
)
def test_a_right_password_is_believed(token: bytes, name: str) -> None:
    assert plain(token) == (b"", AuthenticatedUser(name))


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (b"\0alice\0pen", WRONG),
        (b"\0alice\0pencil2", WRONG),
        (b"\0bob\0pencil", WRONG),
        (b"\0Alice\0pencil", WRONG),
        (b"bob\0alice\0pencil", OTHER_NAME),
        (b"\0\0pencil", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"", None),
        (b"alice\0pencil", None),
        (b"\0alice\0pencil\0", None),
        (b"\0\xff\0pencil", None),
        (b"\0" * 500_000, None),
    ],
)  # fmt: skip
def test_what_is_no_login_is_refused(token: bytes, told: str | None) -> None:
    with pytest.raises(ExchangeFailed) as refused:
        plain(token)
    assert refused.value.told == told
    assert "pencil" not in str(refused.value)


def test_users_are_the_options_that_say_so() -> None:
    assert users_of({"username": "admin", "password": "x", "user_admin": "x", "user_": "empty"}) == {
        "admin": "x", "": "empty",
    }  # fmt: skip


# -- OAUTHBEARER ---------------------------------------------------------------------------------------------------


def judge(token: str) -> Claims:
    if token == "good":
        return Claims("alice", NOW_MS)
    raise BadToken("a token that this test dislikes")


def bearer() -> TokenExchange:
    return TokenMechanism(judge).start()


@pytest.mark.parametrize(
    "message",
    [b"n,,\1auth=Bearer good\1\1", b"n,a=alice,\1auth=bearer good\1x=y z\1\1", b"n,,\1k=v\1auth=BEARER   good \1\1"],
)  # fmt: skip
def test_a_good_token_is_believed(message: bytes) -> None:
    exchange = bearer()
    assert exchange.evaluate(message) == b""
    assert exchange.outcome == AuthenticatedUser("alice", NOW_MS)


def test_bad_token_is_rejected_after_clients_acknowledgement() -> None:
    exchange = bearer()
    assert exchange.evaluate(b"n,,\1auth=Bearer bad\1\1") == b'{"status":"invalid_token"}'
    assert exchange.outcome is None
    with pytest.raises(ExchangeFailed) as refused:
        exchange.evaluate(b"\1")
    assert refused.value.told == '{"status":"invalid_token"}'


def test_nothing_but_the_acknowledgement_may_follow_a_bad_token() -> None:
    exchange = bearer()
    exchange.evaluate(b"n,,\1auth=Bearer bad\1\1")
    with pytest.raises(ExchangeFailed):
        exchange.evaluate(b"n,,\1auth=Bearer good\1\1")
    assert exchange.outcome is None


@pytest.mark.parametrize(
    "message",
    [b"", b"\1", b"good", b"n,,\1auth=Bearer good\1", b"n,,\1\1", b"n,,\1auth=Basic good\1\1",
     b"n,,auth=Bearer good\1\1",
     b"y,,\1auth=Bearer good\1\1", b"n,,\1auth=Bearer good\1\1x", b"n,,\1au th=Bearer good\1\1",
     b"n,,\1auth=Bearer g\0od\1\1",
     b"n,a=bob,\1auth=Bearer good\1\1", b"n,,\1auth=\1\1", b"\xff\xfe" * 1000],
)  # fmt: skip
def test_a_message_that_brings_no_token_is_refused(message: bytes) -> None:
    exchange = bearer()
    with pytest.raises(ExchangeFailed):
        exchange.evaluate(message)
    assert exchange.outcome is None


# -- unsecured tokens ----------------------------------------------------------------------------------------------


def part(fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()


def unsecured(**claims: object) -> str:
    body = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 60, **claims}
    return (
        f"{part({'alg': 'none'})}.{part({key: value for key, value in body.items() if value is not None})}."
    )


def check(token: str, **options: str) -> Claims:
    prefixed = {f"unsecuredValidator{name}": value for name, value in options.items()}
    return UnsecuredValidator(prefixed, lambda: NOW_MS)(token)


def test_an_unsecured_token_is_believed_what_it_claims() -> None:
    assert check(unsecured()) == Claims("alice", NOW_MS + 60_000)
    assert check(unsecured(user="bob"), PrincipalClaimName="user").name == "bob"
    assert check(unsecured(scope=["a", "b"]), RequiredScope="a b").name == "alice"
    assert check(unsecured(roles="b a"), RequiredScope="a", ScopeClaimName="roles").name == "alice"
    assert check(unsecured(iat=None)).name == "alice"
    assert check(unsecured(exp=NOW_S - 1, iat=NOW_S - 9), AllowableClockSkewMs="2000").expires_ms < NOW_MS


@pytest.mark.parametrize(
    "token",
    ["", "a.b", "a.b.c.d", "..", f"{part({'alg': 'none'})}.{part({})}.", f"{part({'alg': 'HS256'})}.{part({})}.",
     f"{part({'alg': 'none'})}.{part([1])}.", f"{part('none')}.{part({})}.", unsecured() + "sig", unsecured(exp=NOW_S),
     unsecured(exp=None), unsecured(exp="soon"), unsecured(exp=True), unsecured(exp=1e300), unsecured(exp=float("nan")),
     unsecured(exp=float("inf")), unsecured(iat=NOW_S + 1), unsecured(iat=NOW_S + 60), unsecured(sub=None),
     unsecured(sub=7),
     unsecured(sub="  "), part({"alg": "none"}) + "." + base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".",
     "\u00e4.\u00e4."],
)  # fmt: skip
def test_a_token_that_proves_nothing_is_refused(token: str) -> None:
    with pytest.raises(BadToken) as refused:
        check(token)
    assert refused.value.answer() == '{"status":"invalid_token"}'


def test_a_token_without_the_scope_is_told_which_one_it_needs() -> None:
    with pytest.raises(BadToken) as refused:
        check(unsecured(scope="a"), RequiredScope="a b c")
    assert refused.value.answer() == '{"status":"insufficient_scope","scope":"b c"}'


@pytest.mark.parametrize("password", [b"pencil", b"x", b"x" * 500_000])
def test_plain_compares_alike_for_known_and_unknown_user(
    monkeypatch: pytest.MonkeyPatch, password: bytes
) -> None:
    """Every user costs equal calls with arguments of equal lengths, so that no measurement shows who exists."""
    seen: list[list[tuple[int, ...]]] = []

    def record(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen[-1].append((hash(name), *(len(each) for each in arguments)))
            return real(*arguments)

        return call

    mechanism = PlainMechanism({"alice": "pencil-2", "bob": "y" * 1000})
    monkeypatch.setattr(plain_module.hmac, "compare_digest", record("compare", hmac.compare_digest))
    monkeypatch.setattr(plain_module.hmac, "digest", record("digest", hmac.digest))
    for user in (b"alice", b"nobdy", b"bob"):
        seen.append([])
        with pytest.raises(ExchangeFailed) as refused:
            mechanism.start().evaluate(b"\0" + user + b"\0" + password)
        assert refused.value.told == "Authentication failed: Invalid username or password"
    assert len(seen[0]) == 2
    assert seen[0] == seen[1] == seen[2]


def test_plain_without_users_lets_nobody_in() -> None:
    with pytest.raises(ExchangeFailed):
        PlainMechanism({}).start().evaluate(b"\0alice\0x")
