"""DescribeLogDirs: the sizes of logs."""

from __future__ import annotations

import pytest

from kproc.wire.header import ApiKey
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name


@pytest.fixture
def three(client: RawClient) -> str:
    """A topic of three partitions, with five records in the first."""
    name = fresh_name("admin")
    client.create_topic(name, partitions=3)
    for number in range(5):
        assert client.produce(name, batch(b"%d" % number))["error_code"] == 0
    return name


# -- DescribeLogDirs, AlterReplicaLogDirs ------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs_returns_log_sizes(client: RawClient, three: str, version: int) -> None:
    record_bytes = len(client.fetch(three, 0)["records"])
    fields = {"topics": [{"topic": three, "partitions": [0, 1, 9]}, {"topic": "absent", "partitions": [0]}]}
    answer = client.call(ApiKey.DESCRIBE_LOG_DIRS, version, fields)
    (directory,) = answer["results"]
    assert directory["error_code"] == 0
    assert directory["log_dir"].startswith("/")
    (topic,) = directory["topics"]
    assert topic["name"] == three
    rows = {row["partition_index"]: row["partition_size"] for row in topic["partitions"]}
    assert rows == {0: record_bytes, 1: 0}
    if version >= 4:
        assert 0 < directory["usable_bytes"] < directory["total_bytes"]
    everything = client.call(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": None})["results"][0]["topics"]
    assert three in [row["name"] for row in everything]
