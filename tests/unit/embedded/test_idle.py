"""wait_until_idle: the reasons in its timeline, from answers of a broker that is not there."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.client.errors import ConnectionLost
from kproc.common.clock import ManualClock
from kproc.embedded import idle
from kproc.embedded.idle import wait_until_idle
from kproc.wire.header import ApiKey


class ScriptedClient:
    """A connection to a broker that syncs, ends a transaction and compacts."""

    def __init__(self) -> None:
        self.count = -1  # Of observations.
        self.clock = ManualClock()

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def api_versions(self) -> set[ApiKey]:
        return {ApiKey.LIST_TRANSACTIONS}

    def operate(self, operation: str) -> dict[str, Any]:
        if operation == "topics":
            self.count += 1
            self.clock.advance_ms(100)
        cleaner = {"role": "cleaner", "index": 0, "state": "hung"}
        activity = {"checks_retention": self.count > 1, "compacts": True} if self.count else None
        return {
            "status": {"processes": [cleaner], "transactions": {}},
            "topics": {"long_polls": 1, "syncing": 2, "silent": [], "cleaner": activity},
            "clients": {
                "clients": [
                    {"client_id": "kproc-embedded", "address": "::1", "inflight": 1},
                    {"client_id": "shop", "address": "::1", "inflight": 2},
                ],
                "silent": [3],
            },
        }[operation]

    def call_latest(self, _key: ApiKey, _fields: dict[str, Any]) -> dict[str, Any]:
        row = {"transactional_id": "id", "transaction_state": "PrepareCommit"}
        return {"error_code": 0, "transaction_states": [row]}


def test_timeline_has_each_reason_and_each_change_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScriptedClient()
    monkeypatch.setattr(idle, "_clock", client.clock)
    with pytest.raises(TimeoutError) as failure:
        wait_until_idle(lambda: client, 0.25)  # type: ignore[arg-type,return-value]
    first, *changes = str(failure.value).split("\n")
    assert first == "the broker is not idle within 0.25 s:"
    reasons = (
        "cleaner 0 is hung; 2 requests in progress, 1 of them long polls, of clients: shop; syncs of 2 logs; {}; "
        "roles with these indexes do not answer: [3]; transaction id is in PrepareCommit"
    )
    cleaner = (
        "the cleaner does not answer",
        "the cleaner compacts logs",
        "the cleaner checks the retention of logs; the cleaner compacts logs",
    )
    assert len(changes) == len(cleaner)
    for change, text in zip(changes, cleaner, strict=True):
        assert change.endswith(reasons.format(text))


def test_error_of_a_connection_is_a_reason() -> None:
    def connect() -> Any:
        raise ConnectionLost("the broker has closed the connection")

    with pytest.raises(TimeoutError, match=r"s  the broker has closed the connection$"):
        wait_until_idle(connect, 0)
