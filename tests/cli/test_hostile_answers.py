"""Commands at a program that answers kproc's own operations with values of other types: one line, no traceback."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from kproc.broker.config.listeners import split_address
from kproc.client import Client
from kproc.client.own_operations import OperationFields
from tests.support.broker import BrokerUnderTest
from tests.support.command_line import Kproc

pytestmark = pytest.mark.long

RULE = {"action": "fail", "apis": ["Produce"], "error": "UNKNOWN_SERVER_ERROR", "versions": [1, 2], "topic": "t",
        "ranges": {"Fetch": [1, 2]}, "times": 3, "probability": 0.5, "ms": 5}  # fmt: skip
RULES = {"rules": [{"id": 1, "matches": 2, "hits": 1, "rule": RULE}]}
# Answers that the shared broker does not give, because it has no fault rules and its time cannot move.
MADE_UP: dict[str, Any] = {
    "list-faults": RULES,
    "remove-fault": RULES,
    "add-fault": RULES["rules"][0],
    "keep-fault": {},
    "move-time": {"now_ms": 1_800_000_000_000, "lead_ms": 3_600_000, "is_frozen": True},
    "rebalance": {"moves": [{"from": 0, "to": 1, "connections": 2}]},
    "scale": {"is_done": True, "counts": {"processors": 1, "handlers": 2},
              "steps": [{"what": "handlers", "from": 1, "to": 2, "took_ms": 7}]},
    "kill-client": {"is_killed": True},
}  # fmt: skip
COMMANDS = {
    "monitor --count 1": ("monitor",),
    "clients --interval 0.1": ("clients",),
    "status --apis": ("status",),
    "topic list --interval 0.1": ("topics", "logs"),
    "fault list": ("list-faults",),
    "fault remove --all": ("list-faults", "remove-fault"),
    "fault add close --api Produce": ("add-fault",),
    "time advance 1h": ("move-time",),
    "rebalance": ("rebalance",),
    "scale --handlers 2": ("scale",),
    "kill-client x": ("kill-client",),
}
# In the place of a list or object, and of any other value. The number is no date.
WRONG_CONTAINERS = ("x", [5], {"x": 5})
WRONG_VALUES = ("x", None, 10**18)
_KEYS_MAX = 4  # Of the 80 counters of a role, a few stand for all.


def places(value: Any) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield (path, values to put there) of each value in an answer. The first row stands for all."""
    if isinstance(value, dict):
        keys = value if "counters" in value or len(value) < 30 else islice(value, _KEYS_MAX)
    else:
        keys = range(min(1, len(value))) if isinstance(value, list) else ()
    for key in keys:
        yield (key,), WRONG_CONTAINERS if isinstance(value[key], dict | list) else WRONG_VALUES
        yield from (((key, *path), values) for path, values in places(value[key]))


def replaced(answer: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of an answer with another value at a place."""
    changed = copy.deepcopy(answer)
    *way, last = path
    place = changed
    for key in way:
        place = place[key]
    place[last] = value
    return as_answer(changed)


def as_answer(value: Any) -> Any:
    if isinstance(value, dict):
        return OperationFields({key: as_answer(each) for key, each in value.items()})
    return [as_answer(each) for each in value] if isinstance(value, list) else value


def real_answers(broker: BrokerUnderTest) -> dict[str, Any]:
    with Client.connect(*split_address(broker.bootstrap)) as client:
        client.operate("monitor", watch="hostile")
        client.api_versions()
        return {
            "monitor": client.operate("monitor", watch="hostile"),
            **{op: client.operate(op) for op in ("status", "clients", "topics", "logs")},
        }


def test_wrong_values_in_answers_are_reported_in_one_line(
    broker: BrokerUnderTest, filled: str, kproc: Kproc, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {op: as_answer(answer) for op, answer in {**MADE_UP, **real_answers(broker)}.items()}
    current: dict[str, Any] = {"ping": OperationFields()}
    monkeypatch.setattr(Client, "operate", lambda _self, op, **_arguments: current[op])
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    for command, operations in COMMANDS.items():
        current.update(copy.deepcopy(answers))
        assert kproc(command).returncode == 0, command
        rejected = 0
        for op in operations:
            for path, values in places(answers[op]):
                for value in values:
                    current.update(copy.deepcopy(answers))
                    current[op] = replaced(answers[op], path, value)
                    done = kproc(command)
                    told = (command, path, value, done.stderr)
                    assert done.returncode in (0, 1), told
                    rejected += "has a wrong value: " in done.stderr
                    if done.returncode:
                        assert done.stderr.startswith("kproc: "), told
                        assert done.stderr.count("\n") == 1, told
        assert rejected > 0, command
