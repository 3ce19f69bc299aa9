"""CreateTopics in every version: defaults, errors and validate_only."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import NO_TOPIC_ID, RawClient, batch, create_topics_fields
from tests.support.topics import fresh_name
from tests.support.wait import wait_until


def create(client: RawClient, name: str, *, version: int = 7, **more: Any) -> dict[str, Any]:
    answer = client.call(ApiKey.CREATE_TOPICS, version, create_topics_fields(name, **more))
    return dict(answer["topics"][0])


def shown_code(client: RawClient, name: str) -> int:
    return int(client.describe_topic(name)["error_code"])


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_in_every_version(client: RawClient, version: int) -> None:
    name = fresh_name()
    row = create(client, name, version=version, partitions=3)
    assert (row["name"], row["error_code"]) == (name, ErrorCode.NONE)
    if version >= 5:
        assert (row["num_partitions"], row["replication_factor"]) == (3, 1)
        assert {config["name"] for config in row["configs"]} >= {
            "retention.ms",
            "segment.bytes",
            "max.message.bytes",
        }
    wait_until(lambda: len(client.describe_topic(name)["partitions"]) == 3, what="3 partitions")
    if version >= 7:
        assert client.topic_id(name) == bytes(row["topic_id"]) != NO_TOPIC_ID


@pytest.mark.parametrize("version", [4, 7])
def test_create_topics_minus_1_uses_broker_defaults(client: RawClient, version: int) -> None:
    name = fresh_name()
    assert (
        create(client, name, version=version, partitions=-1, replication=-1)["error_code"] == ErrorCode.NONE
    )
    wait_until(lambda: len(client.describe_topic(name)["partitions"]) == 1, what="one partition")


def test_create_existing_topic_is_rejected(client: RawClient) -> None:
    name = fresh_name()
    assert create(client, name)["error_code"] == ErrorCode.NONE
    row = create(client, name)
    assert row["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS
    assert row["error_message"]


def test_create_topics_with_duplicate_name_is_rejected(client: RawClient) -> None:
    name = fresh_name()
    fields = create_topics_fields(name)
    fields["topics"] *= 2
    answer = client.call(ApiKey.CREATE_TOPICS, 7, fields)
    assert {row["error_code"] for row in answer["topics"]} == {ErrorCode.INVALID_REQUEST}
    assert shown_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"replication": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"no.such.config": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"segment.bytes": "1"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_create_topic_with_invalid_fields_is_rejected(
    client: RawClient, more: dict[str, Any], code: int
) -> None:
    name = fresh_name()
    assert create(client, name, **more)["error_code"] == code
    assert shown_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "with space", "slash/ed"])
def test_create_topic_with_invalid_name_is_rejected(client: RawClient, name: str) -> None:
    assert create(client, name)["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_create_topic_named_cluster_metadata_is_rejected(client: RawClient) -> None:
    assert create(client, "__cluster_metadata")["error_code"] == ErrorCode.INVALID_REQUEST


def test_create_topic_with_colliding_name_is_rejected(client: RawClient) -> None:
    # Metric names replace "." by "_": the two would be one.
    name = fresh_name()
    assert create(client, f"{name}.x")["error_code"] == ErrorCode.NONE
    assert create(client, f"{name}_x")["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_create_topic_with_longest_name(client: RawClient) -> None:
    name = fresh_name().ljust(249, "x")
    client.create_topic(name)
    assert client.produce(name, batch(b"x"))["error_code"] == ErrorCode.NONE


def test_create_topics_validate_only_creates_nothing(client: RawClient) -> None:
    name = fresh_name()
    assert create(client, name, validate_only=True)["error_code"] == ErrorCode.NONE
    assert shown_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
