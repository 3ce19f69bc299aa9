"""SCRAM against `scramp`, and every way in which a client's message can be wrong."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient as Oracle

from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed
from kproc.broker.security.sasl.scram import (
    KINDS,
    FoundCredential,
    ScramCredential,
    ScramExchange,
    ScramKind,
    ScramMechanism,
    made_up,
    new_credential,
)
from tests.support.budget import example_count
from tests.support.cases import in_one_test
from tests.support.scram_client import ScramClient

KIND = KINDS["SCRAM-SHA-256"]
ALICE = new_credential(KIND, "pencil")


def mechanism(
    users: Mapping[str, ScramCredential], kind: ScramKind = KIND, *, is_strict: bool = True
) -> ScramMechanism:
    def find(wanted: ScramKind, name: str, is_token: bool) -> FoundCredential:
        assert wanted is kind
        if name in users:
            user = AuthenticatedUser(f"token's {name}" if is_token else name, is_token=is_token)
            return FoundCredential(users[name], user)
        return FoundCredential(made_up(kind, name, b"secret"), None)

    return ScramMechanism(kind, find, is_strict=is_strict)


def begin(*, is_strict: bool = True) -> ScramExchange:
    return mechanism({"alice": ALICE}, is_strict=is_strict).start()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=example_count(20), deadline=None)
@given(
    name=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
)
def test_another_implementation_logs_in(kind: ScramKind, name: str, password: str) -> None:
    """Names with a comma or an equals sign are escaped on their way."""
    exchange = mechanism({name: new_credential(kind, password)}, kind).start()
    client = Oracle([kind.name], name, password)
    client.set_server_first(exchange.evaluate(client.get_client_first().encode()).decode())
    assert exchange.outcome is None
    client.set_server_final(exchange.evaluate(client.get_client_final().encode()).decode())
    assert exchange.outcome == AuthenticatedUser(name)


def test_a_wrong_password_is_refused() -> None:
    exchange, client = begin(), ScramClient("sha256", "alice", "pen")
    final = client.final(exchange.evaluate(client.first()))
    with pytest.raises(ExchangeFailed) as refused:
        exchange.evaluate(final)
    assert refused.value.told is None
    assert exchange.outcome is None


def test_unknown_user_always_gets_same_salt() -> None:
    answers = [
        dict(
            part.split("=", 1)
            for part in begin().evaluate(ScramClient("sha256", name, "x").first()).decode().split(",")
        )
        for name in ("bob", "bob", "carol", "alice")
    ]
    bob, again, carol, alice = answers
    assert bob["s"] == again["s"] != carol["s"]
    assert bob["i"] == alice["i"]
    assert len(base64.b64decode(bob["s"])) == len(base64.b64decode(alice["s"]))
    assert bob["r"] != again["r"]


def test_unknown_user_is_rejected_like_wrong_password() -> None:
    reasons = []
    for name in ("alice", "bob"):
        exchange, client = begin(), ScramClient("sha256", name, "x")
        final = client.final(exchange.evaluate(client.first()))
        with pytest.raises(ExchangeFailed) as refused:
            exchange.evaluate(final)
        reasons.append((refused.value.why, refused.value.told))
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_nonce_sent_twice_passes_only_where_that_is_allowed(*, is_strict: bool) -> None:
    exchange, client = begin(is_strict=is_strict), ScramClient("sha256", "alice", "pencil", nonce="abc")
    server_first = exchange.evaluate(client.first())
    nonce = server_first.decode().split(",")[0].removeprefix("r=")
    final = client.final(server_first, nonce="abc" + nonce)
    if not is_strict:
        assert client.is_server(exchange.evaluate(final))
        return
    with pytest.raises(ExchangeFailed, match=r"kproc\.sasl\.scram\.lenient\.nonce=true"):
        exchange.evaluate(final)


@in_one_test("change", ["{client}", "{server}", "x{nonce}", "{nonce}x", "{client}{client}{nonce}"])
@in_one_test("is_strict", [True, False])
def test_another_nonce_is_refused(change: str, *, is_strict: bool) -> None:
    exchange, client = begin(is_strict=is_strict), ScramClient("sha256", "alice", "pencil", nonce="abc")
    server_first = exchange.evaluate(client.first())
    nonce = server_first.decode().split(",")[0].removeprefix("r=")
    wrong = change.format(client="abc", server=nonce.removeprefix("abc"), nonce=nonce)
    with pytest.raises(ExchangeFailed, match="nonce"):
        exchange.evaluate(client.final(server_first, nonce=wrong))


def test_channel_binding_is_refused() -> None:
    exchange, client = begin(), ScramClient("sha256", "alice", "pencil")
    final = client.final(exchange.evaluate(client.first()), channel="eSws")
    with pytest.raises(ExchangeFailed, match="channel"):
        exchange.evaluate(final)


@in_one_test(
    "message",
    [b"", b"n,,", b"y,,n=alice,r=abc", b"p=tls-unique,,n=alice,r=abc", b"n,,n=,r=abc", b"n,,n=alice,r=",
     b"n,,n=alice", b"n,,r=abc,n=alice", b"n,,n=al=ice,r=abc", b"n,,n=alice,r=a b", b"n,,n=alice,r=abc,x",
     b"n,,n=alice,r=abc\n", b"n,a=bob,n=alice,r=abc", b"n,,n=alice,r=abc\xff", b"\x00" * 100, b"n,,n=alice,r=abc,,",
     b"\0alice\0pencil"],
)  # fmt: skip
def test_a_first_message_that_is_wrong_is_refused(message: bytes) -> None:
    exchange = begin()
    with pytest.raises(ExchangeFailed):
        exchange.evaluate(message)
    assert exchange.outcome is None


def test_long_scram_message_is_refused() -> None:
    """A connection keeps its first message and the nonce until the login is over, and needs no account for that."""
    exchange = begin()
    longest = b"n,,n=alice,r=" + b"x" * (4096 - 13)
    with pytest.raises(ExchangeFailed, match="4097 bytes; the limit is 4096"):
        exchange.evaluate(longest + b"x")
    assert exchange.evaluate(longest).startswith(b"r=xxx")


@in_one_test(
    "damage",
    [lambda m: b"", lambda m: m[:-1], lambda m: m + b",x=y", lambda m: m.replace(b",p=", b",p=AAAA"),
     lambda m: m.partition(b",p=")[0] + b",p=", lambda m: m.partition(b",p=")[0] + b",p=AAAA", lambda m: m[1:],
     lambda m: m.partition(b",p=")[0], lambda m: m.replace(b"c=biws,", b""), lambda m: m + b"\xff", lambda m: m * 2],
)  # fmt: skip
def test_a_final_message_that_is_wrong_is_refused(damage: object) -> None:
    exchange, client = begin(), ScramClient("sha256", "alice", "pencil")
    final = client.final(exchange.evaluate(client.first()))
    with pytest.raises(ExchangeFailed):
        exchange.evaluate(damage(final))  # type: ignore[operator]
    assert exchange.outcome is None


class ExtendedClient(ScramClient):
    """Signs what it sends, with an extension that Kafka does not sign."""

    def __init__(self, *, first: str = "", final: str = "") -> None:
        super().__init__("sha256", "alice", "pencil")
        self._bare = first + self._bare
        self._final = final

    def final(self, server_first: bytes, *, nonce: str | None = None, channel: str = "biws") -> bytes:
        """The final message with the extension behind its nonce."""
        own = server_first.decode().split(",")[0].removeprefix("r=")
        return super().final(server_first, nonce=f"{own}{self._final}", channel=channel)


@pytest.mark.parametrize("extensions", [{"first": "m=must,"}, {"final": ",ext=1"}])
def test_mandatory_or_final_message_extension_is_rejected(
    extensions: dict[str, str],
) -> None:
    exchange, client = begin(), ExtendedClient(**extensions)
    final = client.final(exchange.evaluate(client.first()))
    with pytest.raises(ExchangeFailed):
        exchange.evaluate(final)
    assert exchange.outcome is None


def test_without_extensions_such_a_client_is_let_in() -> None:
    exchange, client = begin(), ExtendedClient()
    assert client.is_server(exchange.evaluate(client.final(exchange.evaluate(client.first()))))


def test_the_extension_says_that_the_name_is_a_tokens() -> None:
    exchange = mechanism({"id-7": new_credential(KIND, "mac")}).start()
    client = ScramClient("sha256", "id-7", "mac", extensions=",tokenauth=true")
    exchange.evaluate(client.final(exchange.evaluate(client.first())))
    assert exchange.outcome == AuthenticatedUser("token's id-7", is_token=True)


def test_the_own_name_may_be_named_as_the_one_to_act_for() -> None:
    exchange, client = begin(), ScramClient("sha256", "alice", "pencil")
    first = exchange.evaluate(client.first(authorization="a=alice"))
    assert first.startswith(b"r=clients-nonce")


def test_no_form_of_a_credential_shows_its_keys() -> None:
    assert str(ALICE) == repr(ALICE) == f"{ALICE}" == "ScramCredential(iterations=4096)"
