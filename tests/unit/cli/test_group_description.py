"""Descriptions of consumer groups: the members, and which others they wait for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from kproc.cli import groups
from kproc.cli.common import Failure, Format
from kproc.cli.group_description import add_waits
from kproc.cli.offsets import FoundOffset
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

Partitions = list[tuple[str, int]]


def member(member_id: str, epoch: int, assignment: Partitions, target: Partitions) -> dict[str, Any]:
    return {"member_id": member_id, "member_epoch": epoch, "assignment": assignment, "target": target}


def waits(*members: dict[str, Any], assignment_epoch: int = 3) -> dict[str, Any]:
    add_waits(list(members), assignment_epoch)
    return {each["member_id"]: each["waits"] for each in members if each["waits"]}


def test_waits_name_the_owner_of_a_partition() -> None:
    found = waits(
        member("a", 2, [("t", 0), ("t", 1)], [("t", 0)]),
        member("b", 3, [], [("t", 1)]),
        member("c", 2, [], []),
    )
    assert found == {"b": [(("t", 1), ["a"])]}


def test_waits_name_members_behind_for_a_partition_without_owner() -> None:
    a, b, c = member("a", 2, [], []), member("b", 3, [], [("t", 1)]), member("c", 3, [], [])
    assert waits(a, b, c) == {"b": [(("t", 1), ["a"])]}


def test_wait_for_a_free_partition_names_no_member() -> None:
    # The member itself is behind, and a static member that is away owns what its row shows, and nothing else.
    assert waits(member("a", 2, [], [("t", 1)]), member("b", -2, [], [])) == {"a": [(("t", 1), [])]}


def test_member_with_its_target_waits_for_no_member() -> None:
    assert waits(member("a", 3, [("t", 0)], [("t", 0)]), member("b", 2, [], [])) == {}


class ScriptedClient:
    """Group g is a consumer group. Member b, static and away, owns t-1, which is in the target of member a."""

    code = 0

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1)}

    def call_latest(self, api_key: ApiKey, fields: Mapping[str, Any]) -> dict[str, Any]:
        if api_key == ApiKey.DESCRIBE_GROUPS:
            row = {"error_code": int(ErrorCode.GROUP_ID_NOT_FOUND), "group_id": "g", "group_state": "Dead"}
            return {"groups": [{**row, "protocol_type": "", "protocol_data": "", "members": []}]}
        if api_key == ApiKey.CONSUMER_GROUP_DESCRIBE:
            return {"groups": [self._group()]}
        assert api_key == ApiKey.OFFSET_FETCH
        return {"groups": [{"group_id": "g", "error_code": 0, "topics": []}]}

    def _group(self) -> dict[str, Any]:
        return {
            "error_code": self.code,
            "error_message": None,
            "group_id": "g",
            "group_state": "Reconciling",
            "group_epoch": 4,
            "assignment_epoch": 3,
            "assignor_name": "uniform",
            "members": [] if self.code else [_row("a", 3, [0], [0, 1]), _row("b", -2, [1], [])],
        }


def _row(member_id: str, epoch: int, owned: list[int], target: list[int]) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "member_epoch": epoch,
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": "t.*",
        "assignment": _assignment(owned),
        "target_assignment": _assignment(target),
        "member_type": 1,
    }


def _assignment(numbers: list[int]) -> dict[str, Any]:
    return {"topic_partitions": [{"topic_name": "t", "partitions": numbers}] if numbers else []}


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(_bootstrap: str) -> Iterator[ScriptedClient]:
        yield ScriptedClient()

    monkeypatch.setattr(groups, "connect", connect)
    monkeypatch.setattr(
        groups, "find_offsets", lambda _client, asked, _errors: dict.fromkeys(asked, FoundOffset(9, -1))
    )


def test_describe_shows_members_and_waits_of_a_consumer_group(capsys: pytest.CaptureFixture[str]) -> None:
    groups.describe(["g"], "here", Format.TABLE)
    facts, *lines = capsys.readouterr().out.splitlines()
    assert facts == (
        "group g  type consumer  state Reconciling  group epoch 4  assignment epoch 3  assignor uniform  members 2"
        "  lag -"
    )
    assert [line.split() for line in lines[-3:-1]] == [
        ["a", "3", "1", "2", "t,/t.*/", "consumer", "c", "/h", "-"],
        ["b", "away", "1", "0", "t,/t.*/", "consumer", "c", "/h", "-"],
    ]
    assert lines[-1] == "a waits for b (static, away) to give up t-1"


def test_describe_without_commits_has_unknown_lag_as_list_has(capsys: pytest.CaptureFixture[str]) -> None:
    """The topic has 9 records, and the group has committed nothing: it did not read all of them."""
    groups.describe(["g"], "here", Format.JSON)
    (group,) = json.loads(capsys.readouterr().out)
    assert group["lag"] is None
    assert {row["lag"] for row in group["partitions"]} == {None}


def test_describe_reports_the_error_of_a_consumer_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedClient, "code", int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(Failure, match=r"^g: .*TOPIC_AUTHORIZATION_FAILED"):
        groups.describe(["g"], "here", Format.TABLE)
    # The error of DescribeGroups remains if neither request finds the group.
    monkeypatch.setattr(ScriptedClient, "code", int(ErrorCode.GROUP_ID_NOT_FOUND))
    with pytest.raises(Failure, match=r"^g: unknown group$"):
        groups.describe(["g"], "here", Format.TABLE)
