"""Bits of the operations that a user may do on topics and the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.security.acl import Operation
from kproc.cli.failure import Failure
from kproc.cli.rights import require_on_cluster, topics_without_right
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
