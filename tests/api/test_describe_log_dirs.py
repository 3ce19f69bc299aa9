"""DescribeLogDirs: the sizes of logs."""

from __future__ import annotations

import pytest

from kproc.wire.header import ApiKey
from tests.support.raw import RawClient

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
