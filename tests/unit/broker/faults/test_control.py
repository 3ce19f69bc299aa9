"""Fault rules that a broker rejects, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.faults.control import InvalidRule, validate


@pytest.fixture(scope="module", autouse=True)
def every_api() -> None:
    load_all()


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"action": "close", "apis": ["Prodduce"]}, "unknown API 'Prodduce'"),
        ({"action": "fail", "apis": ["Produce"], "error": "NO_SUCH"}, "unknown error 'NO_SUCH'"),
        ({"action": "fail", "apis": ["Produce"], "error": "NONE"}, "unknown error 'NONE'"),
        ({"action": "fail", "error": "NOT_LEADER_OR_FOLLOWER"}, "needs an API"),
        ({"action": "close", "error": "NOT_LEADER_OR_FOLLOWER"}, "only for the action fail"),
        ({"action": "delay"}, "delay takes 1 to 3,600,000 ms, not 0"),
        ({"action": "close", "ms": 5}, "a time is only for the actions delay, delay-answer, throttle, not for close"),
        ({"action": "throttle", "ms": 3_600_001}, "not 3600001"),
        ({"action": "advertise", "apis": ["ApiVersions"]}, "needs one at least"),
        ({"action": "advertise", "apis": ["Fetch"], "ranges": {"Produce": (0, 3)}}, "ApiVersions"),
        ({"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Produce": (5, 3)}}, "5-3 is empty"),
        ({"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Fetch": (0, 32768)}}, "32768 exceeds"),
        ({"action": "close", "versions": (7, 3)}, "versions: the version range 7-3 is empty"),
        ({"action": "close", "times": 0}, "times 0 never acts"),
        ({"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Nothing": None}}, "unknown API 'Nothing'"),
    ],
)
def test_rule_that_cannot_act_is_rejected_with_the_reason(rule: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRule, match=reason):
        validate(FaultRule(**rule))


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "fail", "apis": ["Produce", "Fetch"], "error": "KAFKA_STORAGE_ERROR"},
        {"action": "close"},
        {"action": "delay", "ms": 1},
        {"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Produce": (3, 7), "Fetch": None}},
    ],
)
def test_rule_that_can_act_is_accepted(rule: dict[str, Any]) -> None:
    validate(FaultRule(**rule))
