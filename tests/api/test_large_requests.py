"""Requests with thousands of rows, on every transport: one answer with all rows, and others are answered meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient, batch
from tests.support.topics import TopicFactory

pytestmark = pytest.mark.every_transport

ROWS = 5_000


def partitions(topic: str) -> dict[str, Any]:
    rows = [{"partition_index": at, "offset": 0} for at in range(ROWS)]
    return {"topics": [{"name": topic, "partitions": rows}], "timeout": 10_000}


def test_large_request_returns_every_row_in_order(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic()
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
        large = client.send(ApiKey.DELETE_RECORDS, 1, partitions(name))
        behind = client.send(ApiKey.API_VERSIONS, 0, {})
        assert other.produce(name, batch(b"x"))["error_code"] == 0
        correlation_id, answer = client.receive(ApiKey.DELETE_RECORDS, 1)
        assert correlation_id == large
        (row,) = answer["topics"]
        assert [each["partition_index"] for each in row["partitions"]] == list(range(ROWS))
        assert client.receive(ApiKey.API_VERSIONS, 0)[0] == behind


def test_large_offset_commit_stores_every_offset(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    """A commit of 500 rows of one partition is three writes; the last row counts."""
    name = topic()
    with RawClient(broker.bootstrap) as client:
        group = f"large-{name}"
        client.call(ApiKey.FIND_COORDINATOR, 1, {"key": group, "key_type": 0})
        rows = [{"partition_index": 0, "committed_offset": at, "committed_metadata": ""} for at in range(500)]
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": name, "partitions": rows}],
        }
        codes = {14, 15, 16}
        while codes & {14, 15, 16}:  # The coordinator is being loaded.
            answer = client.call(ApiKey.OFFSET_COMMIT, 7, fields)
            codes = {each["error_code"] for each in answer["topics"][0]["partitions"]}
        assert codes == {0}
        asked = {"group_id": group, "topics": [{"name": name, "partition_indexes": [0]}]}
        fetched = client.call(ApiKey.OFFSET_FETCH, 5, asked)
        assert fetched["topics"][0]["partitions"][0]["committed_offset"] == 499


def test_disconnect_ends_its_large_request(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic()
    with RawClient(broker.bootstrap) as client:
        client.send(ApiKey.DELETE_RECORDS, 1, partitions(name))
    with RawClient(broker.bootstrap) as client:
        assert client.produce(name, batch(b"x"))["error_code"] == 0
