"""OAUTHBEARER's messages: tokens, and the acknowledgement of a rejected one."""

from __future__ import annotations

import pytest

from kproc.broker.security.sasl.bearer import BadToken, Claims, TokenExchange, TokenMechanism
from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed
from tests.support.cases import in_one_test

NOW_MS = 1_700_000_000_000


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


@in_one_test(
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
