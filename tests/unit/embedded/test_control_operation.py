"""Operations of the control API: how a function becomes one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kproc.embedded import Broker
from kproc.embedded.control_operation import OPERATIONS, operation


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register an operation for the time of a test."""
    monkeypatch.setitem(OPERATIONS, "add", OPERATIONS["broker/info"])

    @operation("add")
    def add(broker: Broker, *, first: int, second: int = 2) -> dict[str, Any]:
        """Add two numbers.

        Further lines are not in the list.
        """
        return {"sum": first + second, "is_running": broker.is_running}


def test_operation_gets_the_members_of_the_request() -> None:
    called = OPERATIONS["add"]
    assert called.call(Broker(), b'{"first": 1}') == {"sum": 3, "is_running": False}
    assert called.call(Broker(), b'{"first": 1, "second": 5}') == {"sum": 6, "is_running": False}
    assert called.summary == "Add two numbers."


def test_operation_rejects_what_its_annotations_do_not_allow() -> None:
    for body in (b"{}", b'{"first": "1"}', b'{"first": 1, "third": 3}', b"[1]", b""):
        with pytest.raises(msgspec.DecodeError):
            OPERATIONS["add"].call(Broker(), body)
