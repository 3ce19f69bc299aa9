"""Metadata: brokers, topics by name and by id, auto-creation, in every version."""

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


@pytest.mark.parametrize("version", [0, 1, 9, 12, 13])
def test_metadata_with_null_topics_lists_every_topic(client: RawClient, version: int) -> None:
    names = {fresh_name(), fresh_name()}
    for name in names:
        client.create_topic(name)
    # Version 0 has no null array: empty means all there, and none from version 1 on.
    answer = ask(client, version, [] if version == 0 else None)
    assert names <= {row["name"] for row in answer["topics"]}


@pytest.mark.parametrize("version", [1, 9, 13])
def test_metadata_with_no_topics_lists_only_brokers(client: RawClient, version: int) -> None:
    answer = ask(client, version, [])
    assert answer["topics"] == []
    assert len(answer["brokers"]) == 1


def test_metadata_finds_topic_by_id(client: RawClient) -> None:
    name = fresh_name()
    topic_id = client.create_topic(name)
    answer = client.call(ApiKey.METADATA, 12, {"topics": [{"name": None, "topic_id": topic_id}]})
    assert [(row["name"], row["error_code"]) for row in answer["topics"]] == [(name, ErrorCode.NONE)]


def test_metadata_of_unknown_topic_id_fails(client: RawClient) -> None:
    answer = client.call(ApiKey.METADATA, 12, {"topics": [{"name": None, "topic_id": bytes(range(16))}]})
    assert [row["error_code"] for row in answer["topics"]] == [ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize("version", [4, 9, 13])
def test_metadata_does_not_create_topic_if_client_forbids(client: RawClient, version: int) -> None:
    name = fresh_name("absent")
    for _ in range(2):
        row = ask(client, version, [name])["topics"][0]
        assert (row["error_code"], row["partitions"]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


@pytest.mark.parametrize("version", [0, 3, 4, 9, 13])
def test_metadata_creates_unknown_topic_if_client_allows(client: RawClient, version: int) -> None:
    name = fresh_name("auto")

    def exists() -> bool:
        row = ask(client, version, [name], create=True)["topics"][0]
        retriable = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
        assert row["error_code"] in retriable, row
        return row["error_code"] == ErrorCode.NONE and len(row["partitions"]) == 1

    wait_until(exists, what="auto-created")


@pytest.mark.parametrize("name", ["has space", "a" * 250, ".", "..", "slash/ed"])
def test_metadata_of_invalid_topic_name_creates_nothing(client: RawClient, name: str) -> None:
    row = ask(client, 9, [name], create=True)["topics"][0]
    assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_has_a_row_for_each_requested_topic(client: RawClient) -> None:
    known, unknown = fresh_name(), fresh_name("absent")
    client.create_topic(known)
    answer = ask(client, 9, [unknown, known])
    codes = {row["name"]: row["error_code"] for row in answer["topics"]}
    assert codes == {unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, known: ErrorCode.NONE}


def test_describe_cluster_agrees_with_metadata(broker: BrokerUnderTest, client: RawClient) -> None:
    metadata = ask(client, 12, [])
    for version in (0, 1, 2):
        answer = client.call(ApiKey.DESCRIBE_CLUSTER, version, {"endpoint_type": 1})
        assert answer["error_code"] == ErrorCode.NONE
        assert answer["cluster_id"] == metadata["cluster_id"]
        assert answer["controller_id"] == metadata["controller_id"]
        assert [f"{row['host']}:{row['port']}" for row in answer["brokers"]] == [broker.bootstrap]
