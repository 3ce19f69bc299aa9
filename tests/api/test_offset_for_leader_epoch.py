"""OffsetForLeaderEpoch returns the end of an epoch."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient

# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch_returns_end_of_epoch(client: RawClient, three: str, version: int) -> None:
    epoch = client.describe_topic(three)["partitions"][0]["leader_epoch"]
    wanted = [(0, -1, epoch), (1, -1, epoch + 5), (0, epoch + 9, epoch), (77, -1, 0)]
    rows = [
        {"partition": index, "current_leader_epoch": current, "leader_epoch": asked}
        for index, current, asked in wanted
    ]
    fields = {"replica_id": -1, "topics": [{"topic": three, "partitions": rows}]}
    (topic,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, fields)["topics"]
    found = [(row["partition"], row["error_code"], row["end_offset"]) for row in topic["partitions"]]
    assert found == [
        (0, ErrorCode.NONE, 5),
        (1, ErrorCode.NONE, -1),
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH, -1),
        (77, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
