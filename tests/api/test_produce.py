"""Produce: every version, every acks, every refusal; a refused batch leaves no trace in the log."""

from __future__ import annotations

import struct

import pytest

from kproc.common.clock import SystemClock
from kproc.common.errors import ErrorCode
from kproc.wire.batch_header import MAGIC_AT
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL, encode_batch
from kproc.wire.records import Record
from tests.support.broker import BrokerUnderTest
from tests.support.raw import Closed, RawClient, batch, produce_fields, values_of
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

Log = tuple[str, bytes]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_returns_base_offset_in_every_version(
    client: RawClient, log: Log, version: int, acks: int
) -> None:
    name, topic_id = log
    for base in (0, 2, 4):
        row = client.produce(name, batch(b"a", b"b"), acks=acks, version=version, topic_id=topic_id)
        assert (row["error_code"], row["base_offset"]) == (ErrorCode.NONE, base), row
        assert row.get("log_start_offset", 0) == 0
    assert values_of(client.fetch(name, 0)["records"]) == [(n, b"ab"[n % 2 : n % 2 + 1]) for n in range(6)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_removed_produce_versions_close_the_connection(
    client: RawClient, log: Log, version: int
) -> None:
    # What kio no longer encodes: acks, timeout, one topic, one partition.
    name = log[0].encode()
    records = batch(b"x")
    body = (
        struct.pack(">hiih", 1, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    )
    header = struct.pack(">hhih", ApiKey.PRODUCE, version, 1, 1) + b"c"
    client.send_bytes(struct.pack(">i", len(header) + len(body)) + header + body)
    assert client.is_closed_by_broker()


@pytest.mark.every_transport
def test_produce_acks_0_has_no_response(client: RawClient, log: Log) -> None:
    name, _ = log
    for number in range(5):
        client.send(ApiKey.PRODUCE, 9, produce_fields([(name, b"", [(0, batch(b"%d" % number))])], acks=0))
    assert client.end_offset(name) == 5, "the next answer on the connection is of the next request"
    assert [value for _, value in values_of(client.fetch(name, 0)["records"])] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


@pytest.mark.every_transport
def test_produce_acks_0_with_error_closes_connection(client: RawClient) -> None:
    # The client waits for no answer: closing is the only way to tell it.
    client.send(ApiKey.PRODUCE, 9, produce_fields([(fresh_name("absent"), b"", [(0, batch(b"x"))])], acks=0))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_produce_with_invalid_acks_is_rejected(client: RawClient, log: Log, acks: int) -> None:
    assert client.produce(log[0], batch(b"x"), acks=acks)["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.end_offset(log[0]) == 0


def test_unknown_topic_and_partition_are_told(client: RawClient, log: Log) -> None:
    name, topic_id = log
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce(fresh_name("absent"), batch(b"x"))["error_code"] == unknown
    assert client.produce(name, batch(b"x"), partition=1)["error_code"] == unknown
    assert client.produce(name, batch(b"x"), partition=-1)["error_code"] == unknown
    assert (
        client.produce(name, batch(b"x"), version=13, topic_id=topic_id, partition=7)["error_code"] == unknown
    )
    row = client.produce("", batch(b"x"), version=13, topic_id=bytes(range(16)))
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def corrupt_last_byte(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


@pytest.mark.parametrize("version", [3, 9, 12])
def test_produce_with_bad_crc_is_rejected(client: RawClient, log: Log, version: int) -> None:
    row = client.produce(log[0], corrupt_last_byte(batch(b"good bytes")), version=version)
    assert row["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert row["base_offset"] == -1
    assert client.end_offset(log[0]) == 0
    assert client.produce(log[0], batch(b"after"))["base_offset"] == 0


def test_produce_of_two_batches_in_a_partition_is_rejected(client: RawClient, log: Log) -> None:
    assert client.produce(log[0], batch(b"a") + batch(b"b"))["error_code"] == ErrorCode.INVALID_RECORD
    assert client.end_offset(log[0]) == 0


def test_produce_of_old_message_format_is_rejected(client: RawClient, log: Log) -> None:
    # Magic 1: offset, size, crc, magic, attributes, timestamp, null key, value.
    message = struct.pack(">IbbqiI", 0, 1, 0, 1_700_000_000_000, -1, 1) + b"v"
    row = client.produce(log[0], struct.pack(">qi", 0, len(message)) + message, version=9)
    assert row["error_code"] == ErrorCode.INVALID_RECORD
    assert client.end_offset(log[0]) == 0


def test_batch_above_max_message_bytes_is_rejected(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    assert client.produce(name, batch(bytes(2000)))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(name, batch(bytes(500)))["error_code"] == ErrorCode.NONE
    assert client.end_offset(name) == 1


@pytest.mark.parametrize("codec", Compression)
def test_compressed_batch_is_stored_unchanged(client: RawClient, log: Log, codec: Compression) -> None:
    values = [b"value %d " % number * 20 for number in range(50)]
    sent = batch(*values, codec=codec)
    assert client.produce(log[0], sent)["error_code"] == ErrorCode.NONE
    records = client.fetch(log[0], 0)["records"]
    assert [value for _, value in values_of(records)] == values
    assert bytes(records)[21:] == sent[21:], "everything from the attributes on is as sent"


def test_produce_of_zstd_before_version_7_is_rejected(client: RawClient, log: Log) -> None:
    data = bytearray(batch(b"x" * 100, codec=Compression.ZSTD))
    assert client.produce(log[0], bytes(data), version=6)["error_code"] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(log[0], bytes(data[:-1]), version=6)["error_code"] == ErrorCode.INVALID_RECORD
    # An older format has other bytes where the codec of version 2 stands, so its error is that of the format.
    data[MAGIC_AT] = 1
    assert client.produce(log[0], bytes(data), version=6)["error_code"] == ErrorCode.INVALID_RECORD


def test_produce_partitions_succeed_and_fail_independently(client: RawClient) -> None:
    one, two = fresh_name(), fresh_name()
    client.create_topic(one, partitions=3)
    client.create_topic(two)
    topics = [
        (
            one,
            b"",
            [(0, batch(b"0")), (1, corrupt_last_byte(batch(b"1"))), (2, batch(b"2", b"3")), (9, batch(b"9"))],
        ),
        (two, b"", [(0, batch(b"t"))]),
        (fresh_name("absent"), b"", [(0, batch(b"n"))]),
    ]
    answer = client.call(ApiKey.PRODUCE, 9, produce_fields(topics))
    codes = {
        (row["name"], part["index"]): part["error_code"]
        for row in answer["responses"]
        for part in row["partition_responses"]
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {
        (one, 0): ErrorCode.NONE,
        (one, 1): ErrorCode.CORRUPT_MESSAGE,
        (one, 2): ErrorCode.NONE,
        (one, 9): unknown,
        (two, 0): ErrorCode.NONE,
        (topics[2][0], 0): unknown,
    }
    assert [client.end_offset(one, partition=index) for index in range(3)] == [1, 0, 2]


@pytest.mark.parametrize("version", [3, 8, 9])
def test_transactional_batch_without_id_rejects_whole_request(client: RawClient, version: int) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=2)
    refused = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
    row = client.produce(name, batch(b"x", flags=TRANSACTIONAL), version=version)
    assert (row["error_code"], row["base_offset"], row.get("log_start_offset", -1)) == refused
    partitions = [(0, batch(b"plain")), (1, batch(b"x", flags=TRANSACTIONAL))]
    topics = [(name, b"", partitions), (fresh_name("absent"), b"", [(0, batch(b"n"))])]
    answer = client.call(ApiKey.PRODUCE, version, produce_fields(topics, acks=7))
    for topic in answer["responses"]:
        for part in topic["partition_responses"]:
            assert (part["error_code"], part["base_offset"], part.get("log_start_offset", -1)) == refused
    assert [client.end_offset(name, partition=index) for index in (0, 1)] == [0, 0]


def test_transactional_batch_without_id_in_fast_path_is_rejected(client: RawClient, log: Log) -> None:
    name, _ = log
    for _ in range(3):
        assert client.produce(name, batch(b"x"), version=9)["error_code"] == ErrorCode.NONE
    row = client.produce(name, batch(b"x", flags=TRANSACTIONAL), version=9)
    refused = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
    assert (row["error_code"], row["base_offset"], row["log_start_offset"]) == refused
    assert client.end_offset(name) == 3


def test_log_append_time_is_stamped_and_returned(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, configs={"message.timestamp.type": "LogAppendTime"})
    row = client.produce(name, batch(b"x", timestamp_ms=1_000_000))
    assert row["log_append_time"] > 1_700_000_000_000
    found = client.list_offset(name, row["log_append_time"])
    assert (found["offset"], found["timestamp"]) == (0, row["log_append_time"])


def test_create_time_returns_log_append_time_minus_1(client: RawClient, log: Log) -> None:
    assert client.produce(log[0], batch(b"x"))["log_append_time"] in (-1, None)


def test_timestamp_too_far_ahead_is_rejected(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, configs={"message.timestamp.after.max.ms": "1000"})
    row = client.produce(name, batch(b"x", timestamp_ms=4_000_000_000_000))
    assert row["error_code"] == ErrorCode.INVALID_TIMESTAMP
    assert client.end_offset(name) == 0


@pytest.mark.parametrize("version", [8, 9, 13])
def test_timestamp_too_far_ahead_lists_record_errors(client: RawClient, version: int) -> None:
    name = fresh_name("late")
    topic_id = client.create_topic(name, configs={"message.timestamp.after.max.ms": "3600000"})
    at_ms = SystemClock().wall_ms()
    times = [at_ms, at_ms + 7_200_000, at_ms, at_ms + 7_200_000]
    records = bytes(encode_batch([Record(b"k", b"v", time_ms) for time_ms in times]))
    row = client.produce(name, records, version=version, topic_id=topic_id)
    assert row["error_code"] == ErrorCode.INVALID_TIMESTAMP
    assert row["error_message"] == "One or more records have been rejected due to invalid timestamp"
    assert [each["batch_index"] for each in row["record_errors"]] == [1, 3]
    assert all("is out of range" in each["batch_index_error_message"] for each in row["record_errors"])
    assert client.end_offset(name) == 0


def test_produce_checks_topic_before_acks(client: RawClient) -> None:
    row = client.produce(fresh_name("none"), batch(b"x"), acks=2)
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_rejected_batch_response_has_no_log_start_offset(client: RawClient, log: Log) -> None:
    row = client.produce(log[0], corrupt_last_byte(batch(b"x")))
    assert (row["error_code"], row["log_start_offset"]) == (ErrorCode.CORRUPT_MESSAGE, -1)
    row = client.produce(log[0], bytes(batch(b"x")) * 2)
    assert (row["error_code"], row["log_start_offset"]) == (ErrorCode.INVALID_RECORD, -1)


def test_produce_checks_batch_format_before_acks(client: RawClient, log: Log) -> None:
    def code(records: bytes, version: int = 8) -> int:
        return int(client.produce(log[0], records, acks=2, version=version)["error_code"])

    assert code(bytes(batch(b"x")) * 2) == ErrorCode.INVALID_RECORD
    assert code(b"") == ErrorCode.INVALID_RECORD
    zstd = bytes(batch(b"x" * 100, codec=Compression.ZSTD))
    assert code(zstd, 6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code(zstd + bytes(batch(b"x")), 6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "the codec comes first"
    assert code(zstd[:-1], 6) == ErrorCode.INVALID_RECORD, "an incomplete batch has no codec"
    assert code(zstd, 7) == code(corrupt_last_byte(batch(b"x"))) == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.every_transport
def test_batch_of_10_mb_passes_through_the_arena(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, configs={"max.message.bytes": "20000000"})
    values = [bytes([number]) * 1_000_000 for number in range(10)]
    assert client.produce(name, batch(*values))["error_code"] == ErrorCode.NONE
    assert [value for _, value in values_of(client.fetch(name, 0)["records"])] == values


@pytest.mark.every_transport
def test_disconnect_after_acks_0_loses_nothing(broker: BrokerUnderTest, client: RawClient, log: Log) -> None:
    with RawClient(broker.bootstrap) as other:
        for number in range(10):
            other.send(
                ApiKey.PRODUCE, 9, produce_fields([(log[0], b"", [(0, batch(b"%d" % number))])], acks=0)
            )
    wait_until(lambda: client.end_offset(log[0]) == 10, what="the tenth record")
    assert [value for _, value in values_of(client.fetch(log[0], 0)["records"])] == [
        b"%d" % n for n in range(10)
    ]


@pytest.mark.every_transport
def test_rejected_request_does_not_disturb_other_connections(
    broker: BrokerUnderTest, client: RawClient, log: Log
) -> None:
    with RawClient(broker.bootstrap) as other:
        other.send_bytes(b"\x7f\xff\xff\xff")
        with pytest.raises(Closed):
            other.receive_frame()
    assert client.produce(log[0], batch(b"x"))["error_code"] == ErrorCode.NONE


@pytest.mark.every_transport
def test_produce_fast_path_follows_topic_deletion_and_recreation(client: RawClient, log: Log) -> None:
    # The fast path skips decoding and lookup: what it leads to must end with the topic.
    for offset in range(3):
        assert client.produce(log[0], batch(b"old"), version=9)["base_offset"] == offset
    client.delete_topic(log[0])
    assert (
        client.produce(log[0], batch(b"gone"), version=9)["error_code"]
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    client.create_topic(log[0])
    for offset in range(3):
        assert client.produce(log[0], batch(b"new"), version=9)["base_offset"] == offset
