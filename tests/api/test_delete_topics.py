"""DeleteTopics in every version, and a topic that is created again."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import NO_TOPIC_ID, RawClient, batch, values_of
from tests.support.topics import fresh_name
from tests.support.wait import wait_until


def delete(client: RawClient, name: str, *, version: int = 6) -> int:
    fields = {"topics": [{"name": name, "topic_id": NO_TOPIC_ID}], "topic_names": [name], "timeout": 10_000}
    row = client.call(ApiKey.DELETE_TOPICS, version, fields)["responses"][0]
    assert row["name"] == name
    return int(row["error_code"])


def shown_code(client: RawClient, name: str) -> int:
    return int(client.describe_topic(name)["error_code"])


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_in_every_version(client: RawClient, version: int) -> None:
    name = fresh_name()
    client.create_topic(name)
    assert delete(client, name, version=version) == ErrorCode.NONE
    wait_until(
        lambda: shown_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what="gone from Metadata"
    )


@pytest.mark.every_transport
def test_recreated_topic_is_empty_and_has_another_id(client: RawClient) -> None:
    name = fresh_name()
    old = client.create_topic(name)
    client.produce(name, batch(b"old", b"older"))
    delete(client, name)
    wait_until(lambda: shown_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what="gone")
    new = client.create_topic(name)
    assert new != old
    assert client.end_offset(name) == 0
    assert client.produce(name, batch(b"new"))["base_offset"] == 0
    assert values_of(client.fetch(name, 0)["records"]) == [(0, b"new")]
    assert client.fetch("", 0, version=13, topic_id=old)["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert (
        client.produce("", batch(b"x"), version=13, topic_id=old)["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    )
