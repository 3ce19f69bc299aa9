"""PLAIN: passwords are compared in constant time, for known and unknown users."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.security.sasl import plain as plain_module
from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed
from kproc.broker.security.sasl.plain import PlainMechanism, users_of
from tests.support.cases import in_one_test

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


@in_one_test(
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
def test_invalid_plain_token_is_rejected(token: bytes, told: str | None) -> None:
    with pytest.raises(ExchangeFailed) as refused:
        plain(token)
    assert refused.value.told == told
    assert "pencil" not in str(refused.value)


def test_users_are_the_options_that_say_so() -> None:
    assert users_of({"username": "admin", "password": "x", "user_admin": "x", "user_": "empty"}) == {
        "admin": "x", "": "empty",
    }  # fmt: skip


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


def test_plain_without_users_rejects_every_login() -> None:
    with pytest.raises(ExchangeFailed):
        PlainMechanism({}).start().evaluate(b"\0alice\0x")
