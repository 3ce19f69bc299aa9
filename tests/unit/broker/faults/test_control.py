"""Fault rules that a broker rejects, with the reason, and the counts of those that it has."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import FaultRule, KeepFault, ListFaults
from kproc.broker.faults.control import FaultControl, InvalidRule, validate
from kproc.broker.faults.rule_files import RuleFiles
from kproc.broker.faults.schedule import Schedule
from tests.support.cases import in_one_test


@pytest.fixture(scope="module", autouse=True)
def every_api() -> None:
    load_all()


@in_one_test(
    ("rule", "reason"),
    [
        ({"action": "close", "apis": ["Prodduce"]}, "unknown API 'Prodduce'"),
        ({"action": "fail", "apis": ["Produce"], "error": "NO_SUCH"}, "unknown error 'NO_SUCH'"),
        ({"action": "fail", "apis": ["Produce"], "error": "NONE"}, "unknown error 'NONE'"),
        ({"action": "fail", "error": "NOT_LEADER_OR_FOLLOWER"}, "needs an API"),
        ({"action": "close", "error": "NOT_LEADER_OR_FOLLOWER"}, "only for the action fail"),
        ({"action": "delay"}, "delay needs a time of 1 to 3,600,000 ms, not 0"),
        (
            {"action": "close", "ms": 5},
            "a time in ms is only for the actions delay, delay-answer, throttle, not for close",
        ),
        ({"action": "throttle", "ms": 3_600_001}, "not 3600001"),
        ({"action": "advertise", "apis": ["ApiVersions"]}, "needs at least one"),
        ({"action": "advertise", "apis": ["Fetch"], "ranges": {"Produce": (0, 3)}}, "ApiVersions"),
        ({"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Produce": (5, 3)}}, "5-3 is empty"),
        ({"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Fetch": (0, 32768)}}, "32768 exceeds"),
        ({"action": "close", "versions": (7, 3)}, "versions: the version range 7-3 is empty"),
        ({"action": "close", "times": 0}, "times 0 never acts"),
        (
            {"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Nothing": None}},
            "unknown API 'Nothing'",
        ),
        ({"action": "close", "free_bytes": 1}, "free_bytes is only for the action fill-disk"),
        ({"action": "fill-disk", "used_bytes": 1}, "the broker sets used_bytes"),
        ({"action": "fill-disk", "topic": "t"}, "fills the disk for all topics"),
        ({"action": "fail-write", "apis": ["Produce"], "topic": "t"}, "about files, not requests"),
        ({"action": "fail-sync", "client": "c", "topic": "t"}, "about files, not requests"),
        ({"action": "fail-sync"}, r"fail-sync needs a topic, or \* for all"),
        ({"action": "fail-write", "topic": "t", "error": "UNKNOWN"}, "unknown error 'UNKNOWN'.*such as EIO"),
        ({"action": "fail-write", "topic": "t", "ms": 5}, "a time in ms is only for"),
        (
            {"action": "fail", "apis": ["Heartbeat"], "topic": "t", "error": "UNKNOWN_MEMBER_ID"},
            "requests of Heartbeat have no topic.*: match by group, client, user, versions",
        ),
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
        {"action": "fill-disk", "free_bytes": 10},
        {"action": "fail-write", "topic": "*", "error": "EROFS", "times": 1, "partition": 3},
        {"action": "delay", "ms": 1},
        {"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Produce": (3, 7), "Fetch": None}},
    ],
)
def test_rule_that_can_act_is_accepted(rule: dict[str, Any]) -> None:
    validate(FaultRule(**rule))


def test_hits_are_counted_on_from_the_last_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests read the hits every few ms, and each draw costs time."""
    drawn: list[int] = []
    draws = Schedule._draws_of

    def counted(self: Schedule, block: int) -> list[bool]:
        drawn.append(block)
        return draws(self, block)

    monkeypatch.setattr(Schedule, "_draws_of", counted)
    owner = SimpleNamespace(purgatory=None)
    services: Any = SimpleNamespace(config=SimpleNamespace(log_dirs=str(tmp_path)), owner=owner)
    control = FaultControl(services, lambda on_done: on_done())
    files = RuleFiles(str(tmp_path))
    rule_id = files.add(FaultRule(action="close", probability=0.5), 1)
    counter = files.counter(rule_id)
    readings: list[dict[str, Any]] = []
    for _ in range(3):
        for _ in range(1024):
            counter.next()
        control.respond(None, ListFaults(), lambda answer: readings.extend(answer.result["rules"]))  # type: ignore[arg-type]
    counter.close()
    assert drawn == [0, 1, 2]
    assert [each["matches"] for each in readings] == [1024, 2048, 3072]
    control.discard_all_but(())
    control.respond(None, ListFaults(), lambda answer: readings.extend(answer.result["rules"]))  # type: ignore[arg-type]
    assert readings[-1]["hits"] == readings[-2]["hits"], "a schedule that was discarded counts again"
    assert drawn == [0, 1, 2] * 2


def test_full_disk_is_a_retriable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that exists no more is not: somebody must send another request."""
    owner = SimpleNamespace(purgatory=None)
    services: Any = SimpleNamespace(config=SimpleNamespace(log_dirs=str(tmp_path)), owner=owner)
    control = FaultControl(services, lambda on_done: on_done())
    answers: list[OwnAnswer] = []
    control.respond(None, KeepFault(id=7), answers.append)  # type: ignore[arg-type]

    def full(_files: RuleFiles) -> dict[int, FaultRule]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RuleFiles, "read", full)
    control.respond(None, KeepFault(id=7), answers.append)  # type: ignore[arg-type]
    assert answers == [
        OwnAnswer(error="fault rule 7 does not exist; kproc fault list shows all"),
        OwnAnswer(
            error="the fault rules cannot be stored: [Errno 28] No space left on device", is_retriable=True
        ),
    ]
