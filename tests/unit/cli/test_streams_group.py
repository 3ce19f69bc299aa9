"""Streams groups in `kproc group describe`: tasks, source partitions, waits, missing topics (KIP-1071)."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli.streams_group import from_streams, print_missing_topics, print_streams_members
from kproc.wire.header import ApiKey


class TopicsOnly:
    """A client of a broker with these topics: name -> number of partitions."""

    def __init__(self, **counts: int) -> None:
        self._counts = counts

    def call_latest(self, key: ApiKey, fields: dict[str, Any]) -> dict[str, Any]:
        assert key is ApiKey.METADATA
        names = [topic["name"] for topic in fields["topics"]]
        return {
            "topics": [
                {
                    "name": name,
                    "error_code": 0 if name in self._counts else 3,
                    "partitions": [{}] * self._counts.get(name, 0),
                }
                for name in names
            ]
        }


def assignment(*active: int, standby: tuple[int, ...] = ()) -> dict[str, Any]:
    def rows(numbers: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"subtopology_id": "0", "partitions": list(numbers)}] if numbers else []

    return {"active_tasks": rows(active), "standby_tasks": rows(standby), "warmup_tasks": []}


def member(member_id: str, epoch: int, owned: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "instance_id": None,
        "client_id": "c",
        "client_host": "/127.0.0.1",
        "member_epoch": epoch,
        "process_id": f"process-{member_id}",
        "assignment": owned,
        "target_assignment": target,
    }


ROW: dict[str, Any] = {
    "group_id": "g",
    "error_code": 0,
    "error_message": None,
    "group_state": "Reconciling",
    "group_epoch": 3,
    "assignment_epoch": 3,
    "assignor_name": "sticky",
    "topology": {
        "epoch": 0,
        "subtopologies": [
            {
                "subtopology_id": "0",
                "source_topics": ["in", "small"],
                "repartition_source_topics": [],
                "state_changelog_topics": [{"name": "log"}],
            }
        ],
    },
    "members": [
        member("a", 2, assignment(0, 1), assignment(0)),
        member("b", 3, assignment(standby=(0,)), assignment(1, standby=(0,))),
    ],
}


def test_member_reads_the_source_partitions_of_its_active_tasks() -> None:
    group = from_streams(TopicsOnly(**{"in": 2, "small": 1, "log": 2}), ROW)
    assert group["missing_topics"] == []
    assert group["members"][0]["assignment"] == [("in", 0), ("in", 1), ("small", 0)]
    assert group["members"][1]["tasks"] == {"active": [], "standby": ["0_0"], "warmup": []}
    assert group["members"][1]["waits_for"] == [{"partition": "0_1", "members": ["a"]}]
    assert group["members"][0]["waits_for"] == []


def test_missing_topics_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    group = from_streams(TopicsOnly(small=1), {**ROW, "group_state": "NotReady"})
    assert group["missing_topics"] == ["in", "log"]
    print_missing_topics(group)
    assert capsys.readouterr().out == (
        "The application has no tasks, because these topics do not exist: in, log\n"
    )


def test_members_are_shown_with_the_numbers_of_their_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    print_streams_members(from_streams(TopicsOnly(**{"in": 2, "small": 1, "log": 2}), ROW)["members"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:6] == ["MEMBER", "EPOCH", "ACTIVE", "STANDBY", "WARMUP", "TARGET"]
    assert lines[1][:7] == ["a", "2", "2", "0", "0", "1", "process-a"]
    assert lines[2][:6] == ["b", "3", "0", "1", "0", "2"]
