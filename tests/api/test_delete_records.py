"""DeleteRecords: deleted records are gone, and compacted topics reject it."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name

# -- DeleteRecords -----------------------------------------------------------------------------------------


def delete_records(
    client: RawClient, name: str, *wanted: tuple[int, int], version: int = 2
) -> dict[int, Any]:
    rows = [{"partition_index": index, "offset": offset} for index, offset in wanted]
    fields = {"topics": [{"name": name, "partitions": rows}], "timeout": 5_000}
    (topic,) = client.call(ApiKey.DELETE_RECORDS, version, fields)["topics"]
    return {row["partition_index"]: (row["error_code"], row["low_watermark"]) for row in topic["partitions"]}


@pytest.mark.parametrize("version", range(3))
def test_delete_records_moves_the_log_start_offset(client: RawClient, three: str, version: int) -> None:
    assert delete_records(client, three, (0, 3), (1, -1), (2, 1), (9, 0), version=version) == {
        0: (ErrorCode.NONE, 3),
        1: (ErrorCode.NONE, 0),
        2: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        9: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }
    assert client.list_offset(three, -2)["offset"] == 3
    assert client.fetch(three, 0)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch(three, 3)["log_start_offset"] == 3
    assert delete_records(client, three, (0, 1)) == {0: (ErrorCode.NONE, 3)}, "it never goes back"
    assert delete_records(client, three, (0, -1)) == {0: (ErrorCode.NONE, 5)}
    assert client.produce(three, batch(b"after"))["base_offset"] == 5


def test_delete_records_of_compacted_topic_is_rejected(client: RawClient) -> None:
    for policy, code in (("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE)):
        name = fresh_name("compacted")
        client.create_topic(name, configs={"cleanup.policy": policy})
        client.produce(name, batch(b"v"))
        assert delete_records(client, name, (0, 1))[0][0] == code
