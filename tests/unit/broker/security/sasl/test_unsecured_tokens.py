"""Unsecured tokens: the claims that are accepted and those that are rejected."""

from __future__ import annotations

import base64
import json

import pytest

from kproc.broker.security.sasl.bearer import BadToken, Claims
from kproc.broker.security.sasl.unsecured_tokens import UnsecuredValidator
from tests.support.cases import in_one_test

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000


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


@in_one_test(
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


def test_token_without_scope_gets_the_missing_scopes() -> None:
    with pytest.raises(BadToken) as refused:
        check(unsecured(scope="a"), RequiredScope="a b c")
    assert refused.value.answer() == '{"status":"insufficient_scope","scope":"b c"}'
