"""DescribeProducers: the idempotent producers of a partition, and errors of each partition."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.raw import RawClient

# -- DescribeProducers -------------------------------------------------------------------------------------


def test_describe_topic_partitions_error_codes(client: RawClient, three: str) -> None:
    wanted = [{"name": name, "partition_indexes": [9]} for name in (three, "..")]
    known, bad = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": wanted})["topics"]
    (row,) = known["partitions"]
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert row["error_message"] == "This server does not host this topic-partition."
    (row,) = bad["partitions"]
    assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert row["error_message"] == "Topic name is invalid: '..' is not allowed"


def test_describe_producers_lists_idempotent_producers(client: RawClient, three: str) -> None:
    records = encode_batch([Record(b"k", b"v", 7)], producer_id=91, producer_epoch=2, base_sequence=0)
    assert client.produce(three, bytes(records), partition=2)["error_code"] == 0
    fields = {"topics": [{"name": three, "partition_indexes": [2, 0, 9]}]}
    (topic,) = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, fields)["topics"]
    rows = {row["partition_index"]: row for row in topic["partitions"]}
    (producer,) = rows[2]["active_producers"]
    assert producer == {
        "producer_id": 91,
        "producer_epoch": 2,
        "last_sequence": 0,
        "last_timestamp": 7,
        "coordinator_epoch": -1,
        "current_txn_start_offset": -1,
    }
    assert (rows[0]["error_code"], rows[0]["active_producers"]) == (0, [])
    assert rows[9]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
