"""DescribeDelegationToken shows own tokens and those that the client may describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.role.listeners import Endpoint
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import Principal
from tests.support.delegation_tokens import CREATE, DESCRIBE, Rules, ask
from tests.support.handler_rig import HandlerRig, parts_of

Start = Callable[..., HandlerRig]
ALICE, BOB, CARL = (Principal("User", name) for name in ("alice", "bob", "carl"))


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    return with_key(start, {"delegation.token.secret.key": "the key of the tokens"})


def with_key(start: Start, settings: dict[str, object]) -> HandlerRig:
    rig = start(settings=settings)
    rig.controller_serves |= {"create_delegation_token", "renew_delegation_token", "expire_delegation_token"}
    set_protocol(rig, "SASL_PLAINTEXT")
    return rig


def set_protocol(rig: HandlerRig, protocol: str) -> None:
    for handler in rig.handlers:
        assert handler is not None
        handler.apply_endpoints([Endpoint("L", "127.0.0.1", 9092, "127.0.0.1", 9092, protocol)])


def set_rules(rig: HandlerRig, *allowed: tuple[Principal, Operation, ResourceType, str]) -> None:
    for handler in rig.handlers:
        assert handler is not None
        parts_of(handler).services.authorizer = Rules(*allowed)


def principal_fields(who: Principal) -> dict[str, str]:
    return {"principal_type": who.type, "principal_name": who.name}


def test_describe_shows_own_and_describable_tokens(rig: HandlerRig) -> None:
    set_rules(rig)
    ids = {who.name: ask(rig, who, CREATE)["token_id"] for who in (ALICE, BOB, CARL)}

    def shown(**more: Any) -> list[str]:
        tokens = ask(rig, ALICE, DESCRIBE, **more)["tokens"]
        return [name for name, token_id in ids.items() if token_id in {each["token_id"] for each in tokens}]

    assert shown() == ["alice"]
    set_rules(rig, (ALICE, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, ids["bob"]))
    assert shown() == ["alice", "bob"]
    set_rules(rig, (ALICE, Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:carl"))
    assert shown() == ["alice", "carl"]
    assert shown(owners=[principal_fields(CARL), principal_fields(BOB)]) == ["carl"]
    assert shown(owners=[]) == []
