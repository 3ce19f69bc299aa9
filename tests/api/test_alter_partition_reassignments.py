"""AlterPartitionReassignments and ListPartitionReassignments: this broker or an error."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


def node_id(client: RawClient) -> int:
    return int(client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"])


@pytest.mark.parametrize("version", [0, 1])
def test_alter_partition_reassignments_only_to_this_broker(
    client: RawClient, three: str, version: int
) -> None:
    here = node_id(client)

    def reassign(name: str, index: int, replicas: list[int] | None) -> tuple[int, str | None]:
        topics = [{"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        answer = client.call(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, {"timeout": 1_000, "topics": topics}
        )
        assert answer["error_code"] == 0
        (row,) = answer["responses"][0]["partitions"]
        return row["error_code"], row["error_message"]

    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(three, 0, [here]) == (0, None)
    assert reassign(three, 0, None) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    assert reassign(three, 0, [here, here + 1]) == (
        refused,
        f"The manual partition assignment includes broker {here + 1}, but no such broker is registered.",
    )
    assert reassign(three, 0, [here, here])[0] == reassign(three, 0, [])[0] == refused
    assert reassign(three, 9, [here]) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Unable to find partition {three}:9.",
    )
    assert reassign("absent", 0, None) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "Unable to find a topic named absent.",
    )
    listed = client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 1_000, "topics": None})
    assert (listed["error_code"], listed["topics"]) == (0, [])
