"""CreateTopics in every version, and the longest name."""

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


def test_create_topic_with_longest_name(client: RawClient) -> None:
    name = fresh_name().ljust(249, "x")
    client.create_topic(name)
    assert client.produce(name, batch(b"x"))["error_code"] == ErrorCode.NONE
