"""DescribeQuorum: this node is the quorum."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import Fields, RawClient
from tests.support.topics import fresh_name


def node_id(client: RawClient) -> int:
    return int(client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"])


# -- quorum, features, transactions, client telemetry ----------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_names_this_node(client: RawClient, version: int) -> None:
    def describe(topic: str) -> Fields:
        topics = [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]
        return client.call(ApiKey.DESCRIBE_QUORUM, version, {"topics": topics})

    answer = describe("__cluster_metadata")
    (quorum,) = answer["topics"][0]["partitions"]
    here = node_id(client)
    assert (answer["error_code"], quorum["error_code"], quorum["leader_id"]) == (0, 0, here)
    (voter,) = quorum["current_voters"]
    assert (voter["replica_id"], quorum["observers"]) == (here, [])
    assert 0 < voter["log_end_offset"] <= quorum["high_watermark"]
    if version == 2:
        assert [(node["node_id"], len(node["listeners"])) for node in answer["nodes"]] == [(here, 1)]
    (other,) = describe(fresh_name("absent"))["topics"][0]["partitions"]
    assert other["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
