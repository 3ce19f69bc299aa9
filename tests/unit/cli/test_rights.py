"""Bits of the operations that a user may do on topics and the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.security.acl import Operation
from kproc.cli import rights
from kproc.cli.failure import Failure
from kproc.cli.rights import groups_without_right, require_on_cluster, topics_without_right
from kproc.wire.header import ApiKey

DELETE_BIT = 1 << Operation.DELETE
UNKNOWN = -(2**31)


def topic(operations: int | None, error_code: int = 0) -> dict[str, Any]:
    return {"name": "t", "error_code": error_code, "topic_authorized_operations": operations}


def test_topics_without_right_skip_unknown_operations() -> None:
    denied = ["t: no right on the topic; see kproc acl check (TOPIC_AUTHORIZATION_FAILED)"]
    assert topics_without_right([topic(~DELETE_BIT & 0xFFFF)], Operation.DELETE) == denied
    assert topics_without_right([topic(0)], Operation.DELETE) == denied
    allowed = [topic(DELETE_BIT), topic(UNKNOWN), topic(None), topic(0, error_code=3)]
    assert topics_without_right(allowed, Operation.DELETE) == []


class Cluster:
    """A client whose broker reports these operations of the cluster."""

    def __init__(self, operations: int) -> None:
        self.operations = operations

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {ApiKey.DESCRIBE_CLUSTER: (0, 1)}

    def call_latest(self, _key: int, fields: dict[str, Any]) -> dict[str, Any]:
        assert fields == {"include_cluster_authorized_operations": True}
        return {"cluster_authorized_operations": self.operations}


def test_missing_right_on_cluster_is_an_error() -> None:
    for operations in (1 << Operation.ALTER, UNKNOWN):
        require_on_cluster(Cluster(operations), Operation.ALTER)  # type: ignore[arg-type]
    with pytest.raises(Failure, match="access denied: this needs ALTER on the cluster"):
        require_on_cluster(Cluster(1 << Operation.DESCRIBE), Operation.ALTER)  # type: ignore[arg-type]


def test_cluster_right_can_be_one_of_several() -> None:
    client: Any = Cluster(1 << Operation.CLUSTER_ACTION)
    require_on_cluster(client, Operation.ALTER, Operation.CLUSTER_ACTION)
    with pytest.raises(Failure, match="this needs ALTER or DELETE on the cluster"):
        require_on_cluster(client, Operation.ALTER, Operation.DELETE)


class Groups:
    """A client whose broker reports these rows of groups."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = rows

    def call_latest(self, _key: int, _fields: dict[str, Any], *, newest: int) -> dict[str, Any]:
        # From v6 on, a group that does not exist is an error, and an error has no operations.
        assert newest == 5
        return {"groups": list(self.rows)}


def test_groups_without_right_note_unknown_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rights, "client_security", object)
    denied = {"group_id": "a", "error_code": 0, "authorized_operations": 0}
    allowed = {"group_id": "b", "error_code": 0, "authorized_operations": DELETE_BIT}
    found = groups_without_right(Groups(denied, allowed), ["a", "b"], Operation.DELETE)  # type: ignore[arg-type]
    assert found == ["a: no right on the group; see kproc acl check (GROUP_AUTHORIZATION_FAILED)"]
    assert capsys.readouterr().err == ""
    for row in ({"error_code": 16}, {"error_code": 0}, {"error_code": 0, "authorized_operations": UNKNOWN}):
        client: Any = Groups({"group_id": "a", **row})
        assert groups_without_right(client, ["a"], Operation.DELETE) == []
        note = "kproc: the dry run did not check whether this user has the right to do it\n"
        assert capsys.readouterr().err == note
