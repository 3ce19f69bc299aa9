"""CommandClient: answers to kproc's own operations that have values of other types."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli.answers import CommandClient
from kproc.client import Client, ClientError
from kproc.client.own_operations import OperationFields


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, OperationFields]:
    """The answers of the broker, by operation."""
    found: dict[str, OperationFields] = {}
    monkeypatch.setattr(Client, "operate", lambda _self, op, **_arguments: found[op])
    return found


def test_value_of_another_type_is_one_error(answers: dict[str, OperationFields]) -> None:
    client = object.__new__(CommandClient)
    line = OperationFields(time_ms=1, topics=["t"], error="")
    wrong: list[tuple[str, Any, str]] = [
        ("time_ms", "1", r"Expected `int`, got `str` - at `\$\.lines\[0\]\.time_ms`"),
        ("time_ms", 10**18, r"Expected `int` <= 253402300799999"),
        ("topics", "t", "Expected `array`, got `str`"),
        ("topics", [5], "Expected `str`, got `int`"),
        ("error", None, "Expected `str`, got `null`"),
    ]
    for name, value, reason in wrong:
        answers["monitor"] = OperationFields(lines=[OperationFields({**line, name: value})])
        with pytest.raises(ClientError, match=rf"^the broker's answer to 'monitor' has a wrong value: {reason}"):
            client.operate("monitor", watch="w")


def test_missing_and_unknown_fields_are_left_to_their_readers(answers: dict[str, OperationFields]) -> None:
    """A broker of another version has other fields."""
    answers["status"] = OperationFields(since_5_0={}, processes=[OperationFields(role="handler")])
    answers["ping"] = OperationFields(anything=1)
    client = object.__new__(CommandClient)
    status = client.operate("status")
    assert status is answers["status"]
    with pytest.raises(ClientError, match="no field 'pid'"):
        status["processes"][0]["pid"]
    assert client.operate("ping") == {"anything": 1}
