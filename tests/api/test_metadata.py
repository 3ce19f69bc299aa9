"""Metadata in every version, and automatic creation of topics."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import NO_TOPIC_ID, Fields, RawClient
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

VERSIONS = range(14)


def ask(client: RawClient, version: int, names: list[str] | None, *, create: bool = False) -> Fields:
    topics = None if names is None else [{"name": name, "topic_id": NO_TOPIC_ID} for name in names]
    return client.call(ApiKey.METADATA, version, {"topics": topics, "allow_auto_topic_creation": create})


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_lists_broker_and_partitions_in_every_version(
    broker: BrokerUnderTest, client: RawClient, version: int
) -> None:
    name = fresh_name()
    topic_id = client.create_topic(name, partitions=3)
    answer = ask(client, version, [name])
    assert [f"{row['host']}:{row['port']}" for row in answer["brokers"]] == [broker.bootstrap]
    node_id = answer["brokers"][0]["node_id"]
    row = answer["topics"][0]
    assert (row["error_code"], row["name"]) == (ErrorCode.NONE, name)
    assert sorted(part["partition_index"] for part in row["partitions"]) == [0, 1, 2]
    for part in row["partitions"]:
        assert part["error_code"] == ErrorCode.NONE
        assert (part["leader_id"], part["replica_nodes"], part["isr_nodes"]) == (
            node_id,
            [node_id],
            [node_id],
        )
    if version >= 1:
        assert answer["controller_id"] == node_id
    if version >= 2:
        assert answer["cluster_id"]
    if version >= 7:
        assert all(part["leader_epoch"] >= 0 for part in row["partitions"])
    if version >= 10:
        assert bytes(row["topic_id"]) == topic_id


@pytest.mark.parametrize("version", [0, 3, 4, 9, 13])
def test_metadata_creates_unknown_topic_if_client_allows(client: RawClient, version: int) -> None:
    name = fresh_name("auto")

    def exists() -> bool:
        row = ask(client, version, [name], create=True)["topics"][0]
        retriable = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
        assert row["error_code"] in retriable, row
        return row["error_code"] == ErrorCode.NONE and len(row["partitions"]) == 1

    wait_until(exists, what="auto-created")


def test_describe_cluster_agrees_with_metadata(broker: BrokerUnderTest, client: RawClient) -> None:
    metadata = ask(client, 12, [])
    for version in (0, 1, 2):
        answer = client.call(ApiKey.DESCRIBE_CLUSTER, version, {"endpoint_type": 1})
        assert answer["error_code"] == ErrorCode.NONE
        assert answer["cluster_id"] == metadata["cluster_id"]
        assert answer["controller_id"] == metadata["controller_id"]
        assert [f"{row['host']}:{row['port']}" for row in answer["brokers"]] == [broker.bootstrap]
