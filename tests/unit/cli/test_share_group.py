"""`kproc group` for share groups: description, list, move and deletion against a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from kproc.broker.calls.own_operations import PARTITIONS_MAX
from kproc.cli import group_description, group_list, group_seek, groups, share_records
from kproc.cli.common import Failure, Format
from kproc.cli.group_list import GroupOrder
from kproc.cli.offsets import FoundOffset
from kproc.cli.positions import Positions
from kproc.client import ClientError
from kproc.client.own_operations import OperationFields
from kproc.common.errors import ErrorCode
from kproc.common.reading import LATEST
from kproc.wire.header import ApiKey


class ScriptedClient:
    """Group g is a share group of two members that share t-0. It begins at offset 3 and lacks 4 records.

    It has a dead letter topic of two partitions, with 3 records each. `counts` are its records in flight, or the error
    of a broker that does not count them.
    """

    address = "broker:9092"

    def __init__(self) -> None:
        self.members = ["a", "b"]
        self.error = 0
        self.altered: Mapping[str, Any] = {}
        self.timeout_ms = 0
        self.letter_topic: str | None = "dlq.t"
        self.configs_error = 0
        counts = {"in_flight": 3, "acquired": 1, "deliveries": [[1, 2], [4, 1]]}
        self.counts: ClientError | list[dict[str, Any]] = [{"topic": "t", "partition": 0, **counts}]

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *_problem: object) -> None:
        pass

    def operate(self, op: str, **arguments: Any) -> OperationFields:
        assert (op, arguments) == ("share-records", {"group": "g", "partitions": [("t", 0), ("t", 1)]})
        if isinstance(self.counts, ClientError):
            raise self.counts
        return OperationFields(partitions=[OperationFields(row) for row in self.counts])

    def _describe_configs(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        configs = [{"name": "errors.deadletterqueue.topic.name", "value": self.letter_topic or ""}]
        return {"results": [{"resource_name": "g", "error_code": self.configs_error, "configs": configs}]}

    def _metadata(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        partitions = [{"partition_index": 0}, {"partition_index": 1}]
        topics = [{"name": row["name"], "error_code": self.error, "partitions": partitions} for row in fields["topics"]]
        return {"topics": topics}

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {ApiKey.SHARE_GROUP_DESCRIBE: (1, 1)}

    def call_latest(self, api_key: ApiKey, fields: Mapping[str, Any], newest: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self, f"_{api_key.name.lower()}")(fields)
        return answer

    def _find_coordinator(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"error_code": 0}

    def _list_groups(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        row = {"group_id": "g", "group_state": "Stable", "group_type": "share", "protocol_type": "share"}
        return {"error_code": 0, "groups": [row]}

    def _describe_groups(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        row = {"error_code": int(ErrorCode.GROUP_ID_NOT_FOUND), "group_id": "g", "group_state": "Dead"}
        return {"groups": [{**row, "protocol_type": "", "protocol_data": "", "members": []}]}

    def _share_group_describe(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        members = [
            {
                "member_id": each,
                "rack_id": None,
                "member_epoch": 4,
                "client_id": "c",
                "client_host": "/h",
                "subscribed_topic_names": ["t"],
                "assignment": {"topic_partitions": [{"topic_name": "t", "partitions": [0]}]},
            }
            for each in self.members
        ]
        group = {
            "error_code": self.error,
            "error_message": None,
            "group_id": "g",
            "group_state": "Stable" if members else "Empty",
            "group_epoch": 4,
            "assignment_epoch": 4,
            "assignor_name": "simple",
            "members": members,
        }
        return {"groups": [group]}

    def _describe_share_group_offsets(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        rows = [
            {"partition_index": 0, "start_offset": 3, "lag": 4},
            {"partition_index": 1, "start_offset": -1, "lag": -1},
        ]
        topics = [{"topic_name": "t", "partitions": rows}]
        return {"groups": [{"group_id": "g", "error_code": 0, "error_message": None, "topics": topics}]}

    def _alter_share_group_offsets(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.altered = fields
        if self.members:
            return {"error_code": int(ErrorCode.NON_EMPTY_GROUP), "error_message": None, "responses": []}
        row = {"partition_index": 0, "error_code": self.error, "error_message": "no such"}
        responses = [{"topic_name": "t", "partitions": [row]}]
        return {"error_code": 0, "error_message": None, "responses": responses}


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    scripted = ScriptedClient()

    @contextmanager
    def connect(_bootstrap: str) -> Iterator[ScriptedClient]:
        yield scripted

    for module in (groups, group_list, group_seek):
        monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(share_records, "connect_locally", lambda client, _bootstrap: client)
    monkeypatch.setattr(
        share_records,
        "find_offsets",
        lambda _client, asked, _errors: {
            partition: FoundOffset(9 if timestamp == LATEST else 6, -1) for partition, timestamp in asked.items()
        },
    )
    for module in (groups, group_list):
        monkeypatch.setattr(
            module, "find_offsets", lambda _client, asked, _errors: dict.fromkeys(asked, FoundOffset(9, -1))
        )
    return scripted


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_description_has_start_offsets_and_members(capsys: pytest.CaptureFixture[str]) -> None:
    groups.describe(["g"], "b", Format.TABLE)
    assert shown(capsys) == [
        "group g type share state Stable group epoch 4 assignment epoch 4 members 2 lag 4 dead letters 6 in dlq.t",
        "TOPIC PARTITION START LAG IN FLIGHT ACQUIRED DELIVERIES MEMBERS",
        "t 0 3 4 3 1 1:2 4:1 2",
        "t 1 - - - - - 0",
        "",
        "MEMBER EPOCH PARTITIONS SUBSCRIPTION CLIENT HOST",
        "a 4 1 t c /h",
        "b 4 1 t c /h",
    ]


def test_description_as_json_names_the_members(capsys: pytest.CaptureFixture[str]) -> None:
    groups.describe(["g"], "b", Format.JSON)
    text = capsys.readouterr().out
    for expected in (
        '"start_offset": 3',
        '"lag": 4',
        '"in_flight": 3',
        '"acquired": 1',
        '"deliveries": {"1": 2, "4": 1}',
        '"in_flight": null',
        '"dead_letter_topic": "dlq.t"',
        '"dead_letters": 6',
        '"assignment": ["t-0"]',
        '"members": ["a", "b"]',
    ):
        assert expected.replace(" ", "") in "".join(text.split())


def test_request_for_counts_has_the_partitions_that_fit() -> None:
    assert share_records.PARTITIONS_AT_ONCE == PARTITIONS_MAX


def test_broker_elsewhere_counts_no_records_in_flight(
    monkeypatch: pytest.MonkeyPatch, client: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(share_records, "connect_locally", lambda _client, _bootstrap: None)
    client.letter_topic = None
    groups.describe(["g"], "b", Format.TABLE)
    assert shown(capsys)[:2] == [
        "group g type share state Stable group epoch 4 assignment epoch 4 members 2 lag 4",
        "TOPIC PARTITION START LAG MEMBERS",
    ]


def test_counts_that_are_not_shown_have_a_reason(
    client: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.counts = ClientError("it may not do that")
    client.letter_topic, client.configs_error = None, int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    groups.describe(["g"], "b", Format.TABLE)
    printed = capsys.readouterr()
    assert "IN FLIGHT" not in printed.out
    assert printed.err.splitlines() == [
        "kproc: not shown: records in flight: it may not do that",
        "kproc: not shown: dead letters of g: no right on the group; see kproc acl check (GROUP_AUTHORIZATION_FAILED)",
    ]


def test_dead_letter_topic_that_does_not_exist_has_no_count(
    client: ScriptedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        ScriptedClient,
        "_metadata",
        lambda _self, fields: {
            "topics": [{"name": row["name"], "error_code": 3, "partitions": []} for row in fields["topics"]]
        },
    )
    groups.describe(["g"], "b", Format.TABLE)
    printed = capsys.readouterr()
    assert " ".join(printed.out.splitlines()[0].split()).endswith("lag 4 dead letters - in dlq.t")
    assert printed.err == (
        "kproc: not shown: number of dead letters in dlq.t: "
        "the topic or partition does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n"
    )


def test_list_has_members_and_lag(capsys: pytest.CaptureFixture[str]) -> None:
    group_list.list_groups("b", Format.TABLE, GroupOrder.NAME, None)
    assert shown(capsys)[1] == "g Stable 2 4 - share share"


def test_seek_alters_start_offsets(
    client: ScriptedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        group_seek,
        "find_positions",
        lambda _client, _topic, _numbers, _where, _errors: Positions({0: 0}, {0: 9}, {0: 7}, []),
    )
    with pytest.raises(Failure, match="group g has members"):
        group_seek.seek("g", "7", execute=True)
    client.members = []
    group_seek.seek("g", "7", execute=True)
    assert client.altered["topics"] == [
        {"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 7}]}
    ]
    assert shown(capsys) == ["TOPIC PARTITION START NEW", "t 0 3 7"]
    client.error = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(Failure, match="t-0: unknown topic"):
        group_seek.alter_start_offsets(client, "g", [{"topic": "t", "partition": 0, "new": 1}])  # type: ignore[arg-type]


def test_deletion_counts_partitions(client: ScriptedClient) -> None:
    with pytest.raises(Failure, match="has members"):
        groups._deletions(client, "b", ["g"])  # type: ignore[arg-type]
    client.members = []
    assert groups._deletions(client, "b", ["g"]) == [  # type: ignore[arg-type]
        {"group": "g", "result": "would delete", "offsets": 2}
    ]


def test_error_of_the_description_is_kept(client: ScriptedClient) -> None:
    client.error = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    found = group_description.call_describe_groups(client, ["g"])  # type: ignore[arg-type]
    assert found["g"]["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
