"""The life of a delegation token, and the rights to create one for another user."""

from __future__ import annotations

import orjson
import pytest

from kproc.broker.handler.request_log import loggable
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import ANONYMOUS, Principal
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.delegation_tokens import (
    ALICE,
    BOB,
    CARL,
    CREATE,
    DESCRIBE,
    EXPIRE,
    RENEW,
    Start,
    ask,
    fields_of,
    principal_fields,
    set_protocol,
    set_rules,
    with_key,
)
from tests.support.handler_rig import HandlerRig

NOT_ALLOWED = int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
EVERY_VERSION = [(key, version) for key in (CREATE, RENEW, EXPIRE, DESCRIBE) for version in (1, 2)]


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    return with_key(start, {"delegation.token.secret.key": "the key of the tokens"})


def test_owner_creates_renews_describes_and_expires_a_token(rig: HandlerRig) -> None:
    token = ask(rig, ALICE, CREATE, renewers=[principal_fields(BOB)])
    assert token["error_code"] == 0
    assert (token["principal_name"], token["token_requester_principal_name"]) == ("alice", "alice")
    assert ask(rig, BOB, RENEW, hmac=token["hmac"])["expiry_timestamp"] == token["expiry_timestamp"]
    assert (
        ask(rig, CARL, RENEW, hmac=token["hmac"])["error_code"] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    )
    (shown,) = ask(rig, BOB, DESCRIBE)["tokens"]
    assert (shown["token_id"], shown["hmac"]) == (token["token_id"], token["hmac"])
    assert shown["renewers"] == [principal_fields(BOB)]
    assert ask(rig, ALICE, EXPIRE, hmac=token["hmac"])["expiry_timestamp"] == rig.clock.wall_ms()
    assert ask(rig, ALICE, DESCRIBE)["tokens"] == []


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
@pytest.mark.parametrize(
    ("protocol", "who"),
    [("PLAINTEXT", ANONYMOUS), ("SSL", ANONYMOUS), ("SASL_SSL", ALICE._replace(is_token=True))],
)
def test_unauthenticated_or_token_only_client_is_rejected(
    rig: HandlerRig, key: ApiKey, version: int, protocol: str, who: Principal
) -> None:
    set_protocol(rig, protocol)
    answer = ask(rig, who, key, version)
    assert answer["error_code"] == NOT_ALLOWED
    assert answer.get("expiry_timestamp", -1) == -1


@pytest.mark.parametrize(
    ("protocol", "who"), [("SSL", ALICE), ("SASL_SSL", ALICE), ("SASL_PLAINTEXT", ALICE)]
)
def test_authenticated_connection_may_create_token(rig: HandlerRig, protocol: str, who: Principal) -> None:
    set_protocol(rig, protocol)
    assert ask(rig, who, CREATE)["error_code"] == 0


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_without_a_key_there_are_no_tokens(start: Start, key: ApiKey, version: int) -> None:
    rig = with_key(start, {})
    assert ask(rig, ALICE, key, version)["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_token_of_another_owner_needs_the_right_to_create_it(rig: HandlerRig) -> None:
    for_bob = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    set_rules(rig)
    assert ask(rig, ALICE, CREATE)["error_code"] == 0, "one's own needs none"
    denied = ask(rig, ALICE, CREATE, **for_bob)
    assert denied["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (denied["issue_timestamp"], denied["token_id"], denied["hmac"]) == (-1, "", b"")
    set_rules(rig, (ALICE, Operation.CREATE_TOKENS, ResourceType.USER, "User:bob"))
    token = ask(rig, ALICE, CREATE, **for_bob)
    assert (token["principal_name"], token["token_requester_principal_name"]) == ("bob", "alice")
    assert ask(rig, BOB, RENEW, hmac=token["hmac"])["error_code"] == 0, "it is bob's"
    assert [each["token_id"] for each in ask(rig, ALICE, DESCRIBE)["tokens"]][-1] == token["token_id"], (
        "she asked"
    )
    assert (
        ask(rig, ALICE, RENEW, hmac=token["hmac"])["error_code"] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    )


@pytest.mark.parametrize("owner_type", [None, "User"])
def test_principals_of_another_type_are_refused(rig: HandlerRig, owner_type: str | None) -> None:
    group = [{"principal_type": "Group", "principal_name": "g"}]
    wish = {"owner_principal_type": owner_type, "owner_principal_name": "alice", "renewers": group}
    assert ask(rig, ALICE, CREATE, **wish)["error_code"] == ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize("key", [RENEW, EXPIRE])
def test_the_request_log_does_not_show_a_tokens_secret(key: ApiKey) -> None:
    for secret in (b"short", b"s" * 64):
        frame = memoryview(codec.encode_request(key, 1, 1, "c", fields_of(key, hmac=secret)))[4:]
        _, body_at = parse_request_header(frame)
        shown = loggable(key, 1, frame[body_at:])
        assert shown["hmac"] == "[hidden]"
        assert secret.decode() not in orjson.dumps(shown).decode()
