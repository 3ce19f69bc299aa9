"""compression.type and the checks of single records: what the broker makes of a batch before it stores it.

Held against Apache Kafka 4.3 with --bootstrap.
"""

from __future__ import annotations

import struct
import time

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import crc_of, encode_batch, parse_header
from kproc.wire.records import Record
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient, batch, decode_records, split_batches
from tests.support.topics import fresh_name

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RECORDS = 20


def made(client: RawClient, **configs: str) -> str:
    name = fresh_name("codec")
    client.create_topic(name, configs={key.replace("_", "."): value for key, value in configs.items()})
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def some_records(at_ms: int) -> list[Record]:
    return [
        Record(b"k%d" % number, b"v%d" % number * 50, at_ms + 7 * number, [("h", b"x"), ("n", None)])
        for number in range(RECORDS)
    ]


@pytest.mark.parametrize("target", [*CODECS, "producer"])
def test_compression_type_of_topic_recompresses_batches(
    client: RawClient, target: str
) -> None:
    name, at_ms = made(client, compression_type=target), now_ms()
    records = some_records(at_ms)
    for number, codec in enumerate(CODECS.values()):
        sent = encode_batch(
            records, codec=codec, producer_id=900, producer_epoch=3, base_sequence=RECORDS * number
        )
        row = client.produce(name, bytes(sent))
        assert (row["error_code"], row["base_offset"]) == (0, RECORDS * number)
    stored = split_batches(client.fetch(name, 0)["records"])
    assert len(stored) == len(CODECS)
    for number, (codec, one) in enumerate(zip(CODECS.values(), stored, strict=True)):
        header = parse_header(one)
        assert header.codec == CODECS.get(target, codec)
        assert (header.base_offset, header.last_offset_delta) == (RECORDS * number, RECORDS - 1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
            900,
            3,
            RECORDS * number,
        )
        assert (header.base_timestamp, header.max_timestamp) == (at_ms, at_ms + 7 * (RECORDS - 1))
        assert crc_of(one) == header.crc
        found = [record._replace(offset=-1) for record in decode_records(one)]
        assert found == records


def test_retry_of_a_recompressed_batch_is_stored_once(client: RawClient) -> None:
    name = made(client, compression_type="zstd")
    sent = bytes(
        encode_batch([Record(b"k", b"v", 1)], codec=1, producer_id=901, producer_epoch=0, base_sequence=0)
    )
    assert [client.produce(name, sent)["base_offset"] for _ in range(2)] == [0, 0]
    assert client.end_offset(name) == 1


def test_log_append_time_with_recompression(client: RawClient) -> None:
    name = made(client, compression_type="lz4", message_timestamp_type="LogAppendTime")
    row = client.produce(name, bytes(encode_batch(some_records(5), codec=4)))
    (stored,) = split_batches(client.fetch(name, 0)["records"])
    header = parse_header(stored)
    assert (header.codec, header.is_log_append_time) == (CODECS["lz4"], True)
    assert header.max_timestamp == row["log_append_time"] > 5
    assert crc_of(stored) == header.crc


def test_compression_level_of_topic_applies(client: RawClient) -> None:
    value = b"".join(b"%d," % (number * 7_919 % 100_003) for number in range(20_000))
    sizes = []
    for level in ("1", "19"):
        name = made(client, compression_type="zstd", compression_zstd_level=level)
        assert client.produce(name, batch(value))["error_code"] == 0
        sizes.append(len(client.fetch(name, 0)["records"]))
    assert sizes[1] < sizes[0] < len(value)


def test_recompressed_batch_above_limit_is_rejected(client: RawClient) -> None:
    name = made(client, compression_type="uncompressed", max_message_bytes="1000")
    row = client.produce(name, batch(b"v" * 5_000, codec=4))
    assert row["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(name, batch(b"v", codec=4))["error_code"] == 0


def test_corrupt_records_are_found_if_batch_is_recompressed(client: RawClient, broker: BrokerUnderTest) -> None:
    name = made(client, compression_type="gzip")
    damaged = bytearray(batch(b"v" * 100, codec=4))
    damaged[70:80] = bytes(10)
    damaged[17:21] = struct.pack(">I", crc_of(damaged))
    codes = [ErrorCode.CORRUPT_MESSAGE]
    if broker.pid is None:
        codes = [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE]
    assert client.produce(name, bytes(damaged))["error_code"] in codes
    few = bytearray(encode_batch([Record(b"k", b"v", 1), Record(b"k", b"v", 1)]))
    few[23:27], few[57:61] = struct.pack(">i", 2), struct.pack(">i", 3)  # It claims a third one.
    few[17:21] = struct.pack(">I", crc_of(few))
    assert client.produce(name, bytes(few))["error_code"] == ErrorCode.INVALID_RECORD
    assert client.end_offset(name) == 0


@pytest.mark.parametrize("codec", [0, 4])
def test_compacted_topic_rejects_records_without_key(
    client: RawClient, broker: BrokerUnderTest, codec: int
) -> None:
    name = made(client, cleanup_policy="compact")
    mixed = [Record(b"k", b"v", 1), Record(None, b"v", 1)]
    row = client.produce(name, bytes(encode_batch(mixed, codec=codec)))
    assert row["error_code"] == ErrorCode.INVALID_RECORD
    assert "Compacted topic cannot accept message without key" in row["error_message"]
    bad = [(each["batch_index"], each["batch_index_error_message"]) for each in row["record_errors"]]
    if broker.pid is not None:  # Kafka names the topic's partition, too.
        assert bad == [(1, "Compacted topic cannot accept message without key.")]
    assert [number for number, _ in bad] == [1]
    assert client.end_offset(name) == 0
    tombstone = [Record(b"k", None, 1), Record(b"", b"empty key", 1)]
    assert client.produce(name, bytes(encode_batch(tombstone, codec=codec)))["error_code"] == 0
    assert client.end_offset(name) == 2


@pytest.mark.parametrize("codec", [0, 4])
def test_every_record_timestamp_is_validated(client: RawClient, codec: int) -> None:
    name, at_ms = made(client, message_timestamp_before_max_ms="60000"), now_ms()
    for offsets_ms, code in (
        ((0, -3_600_000), ErrorCode.INVALID_TIMESTAMP),
        ((0, 36_000_000), ErrorCode.INVALID_TIMESTAMP),
        ((-10_000, 0), ErrorCode.NONE),
    ):
        records = [Record(b"k", b"v", at_ms + offset) for offset in offsets_ms]
        assert client.produce(name, bytes(encode_batch(records, codec=codec)))["error_code"] == code


def test_min_insync_replicas_above_replica_count_is_ignored(client: RawClient) -> None:
    # Kafka since 3.7 (apache/kafka#14594): the effective minimum is at most the number of replicas.
    name = made(client, min_insync_replicas="3")
    assert [client.produce(name, batch(b"v"), acks=acks)["error_code"] for acks in (-1, 1)] == [0, 0]
