"""AlterUserScramCredentials: too many users are rejected before a key is derived."""

from __future__ import annotations

import pytest

from kproc.broker.api import load_all
from kproc.broker.peers import controller_call
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker

load_all()

MAX = 12


def test_keys_of_too_many_users_are_not_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_call, "RECORDS_MAX", MAX)
    monkeypatch.setattr("kproc.broker.api.alter_user_scram_credentials.keys_for_password", None)
    user = {"mechanism": 1, "iterations": 4096, "salt": b"s" * 8, "salted_password": b"p" * 32}
    upsertions = [user | {"name": f"u{number}"} for number in range(MAX + 1)]
    answer = Broker().ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=upsertions)
    assert {row["error_code"] for row in answer["results"]} == {int(ErrorCode.POLICY_VIOLATION)}
