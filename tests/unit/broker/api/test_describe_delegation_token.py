"""DescribeDelegationToken shows own tokens and those that the client may describe."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.security.acl import Operation, ResourceType
from tests.support.delegation_tokens import (
    ALICE,
    BOB,
    CARL,
    CREATE,
    DESCRIBE,
    Start,
    ask,
    principal_fields,
    set_rules,
    with_key,
)
from tests.support.handler_rig import HandlerRig


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    return with_key(start, {"delegation.token.secret.key": "the key of the tokens"})


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
