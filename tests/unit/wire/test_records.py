"""Records in all codecs: round trips, other writers' bytes, damage, and bounds on what they grow to."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import record_batch
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.compression import Compression
from kproc.wire.primitives import encode_varint
from kproc.wire.record_batch import Record, check_batch, decode_records, encode_batch
from kproc.wire.records import decode_records as decode_raw
from kproc.wire.records import encode_records, walk_records
from tests.support.budget import example_count
from tests.support.cases import in_one_test
from tests.support.record_outcomes import outcome

CODECS = list(Compression)


nullable = st.one_of(st.none(), st.binary(max_size=70), st.integers(126, 300).map(lambda n: b"v" * n))
records = st.lists(
    st.builds(
        Record,
        nullable,
        nullable,
        st.integers(0, 2**45),
        st.lists(st.tuples(st.text(max_size=9), nullable), max_size=3),
        st.just(-1),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=example_count(60), deadline=None)
@given(records, st.sampled_from(CODECS), st.integers(0, 2**62))
def test_records_survive_the_round_trip_in_every_codec(given_records, codec, base_offset):
    batch = encode_batch(given_records, codec=codec, base_offset=base_offset)
    assert check_batch(batch).codec == codec
    got = decode_records(memoryview(batch))
    assert [record._replace(offset=-1, headers=list(record.headers)) for record in got] == [
        record._replace(headers=list(record.headers)) for record in given_records
    ]
    assert [record.offset for record in got] == list(range(base_offset, base_offset + len(got)))


def test_offsets_with_gaps_as_compaction_leaves_them_are_kept():
    batch = encode_batch([Record(b"a", b"1", offset=12), Record(b"b", b"2", offset=17)], base_offset=10)
    assert [record.offset for record in decode_records(batch)] == [12, 17]
    assert record_batch.parse_header(batch).last_offset == 17


def test_kafka_pythons_batches_are_read_and_ours_by_it():
    builder_of = pytest.importorskip("kafka.record.default_records")
    for codec in CODECS:
        builder = builder_of.DefaultRecordBatchBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=False,
            producer_id=5,
            producer_epoch=1,
            base_sequence=0,
            batch_size=1 << 20,
        )
        for offset in range(30):
            builder.append(offset, 1_000 + offset, b"k%d" % offset, b"v" * 100, [("h", b"x")])
        theirs = bytes(builder.build())
        assert check_batch(theirs).codec == codec
        ours = encode_batch(
            [Record(b"k%d" % n, b"v" * 100, 1_000 + n, (("h", b"x"),)) for n in range(30)],
            codec=codec,
            producer_id=5,
            producer_epoch=1,
            base_sequence=0,
            leader_epoch=0,
        )
        assert decode_records(theirs) == decode_records(ours)
        if codec == Compression.NONE:
            assert bytes(ours) == theirs
        read = builder_of.DefaultRecordBatch(bytes(ours))
        assert read.validate_crc()
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read] == [
            (n, 1_000 + n, b"k%d" % n, b"v" * 100, [("h", b"x")]) for n in range(30)
        ]


def test_mutated_records_are_invalid_or_decode():
    rng = random.Random(1)
    batch = encode_batch([Record(b"key", b"v" * 100, 5 + n, [("h", b"x"), ("n", None)]) for n in range(5)])
    good = bytes(batch[HEADER_BYTES:])
    refused = 0
    for _ in range(3_000):
        raw = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        if rng.random() < 0.2:
            del raw[rng.randrange(len(raw)) :]
        code = outcome(lambda raw=raw: decode_raw(bytes(raw), 5, 0, 0))
        assert code in (None, ErrorCode.INVALID_RECORD)
        refused += code is not None
    assert refused > 500


@in_one_test(
    ("raw", "count", "why"),
    [
        (b"", 1, "1 records in 0 bytes"),
        (bytes(100), 2**31 - 1, "2147483647 records in 100 bytes"),
        (bytes(100), -1, "-1 records"),
        (b"\x0c\0\0\0\1\1\0" + b"x" * 7, 1, "7 bytes follow"),
        (b"\x0c\0\0\0\1\1\0" * 2, 2, "record at offset 0 follows 0"),
        (b"\x0e\0\0\0\1\1\0\0", 1, "end at byte 7, but by its length it ends at byte 8"),
        (b"\x0c\0\0\0\1\1\x02", 1, "1 headers"),
        (b"\x10\0\0\0\1\1\x02\x01\x01", 1, "header key"),
        (b"\x01\0\0\0\1\1\0", 1, "past the end"),
    ],
)
def test_records_that_contradict_themselves_are_refused(raw, count, why):
    with pytest.raises(KafkaError, match=why):
        decode_raw(raw, count, 0, 0)


@in_one_test(
    ("base", "delta", "stands_for"),
    [
        (-2, -(2**63), 2**63 - 2),
        (2**63 - 1, 1, -(2**63)),
        (2**63 - 1, 2**63 - 1, -2),
        (-(2**63), -(2**63), 0),
        (0, 2**63 - 1, 2**63 - 1),
        (5, 2**67, 5),  # Ten bytes of a varint can say more than 64 bits.
        (5, 2**63, 5),
    ],
)
def test_timestamps_beyond_64_bits_wrap_as_in_java(base, delta, stands_for):
    (record,) = decode_raw(encode_records([(delta, 0, Record(None, b""))]), 1, base, 0)
    assert record.timestamp_ms == stands_for


@pytest.mark.parametrize(("records", "headers_each"), [(1, 1001), (11, 100)])
def test_endless_headers_are_rejected_before_filling_memory(records, headers_each, monkeypatch):
    monkeypatch.setattr("kproc.wire.records.HEADER_COUNT_MAX", 1000)
    raw = b""
    for offset in range(records):
        body = (
            b"\0\0" + encode_varint(offset) + b"\1\1" + encode_varint(headers_each) + bytes(2 * headers_each)
        )
        raw += encode_varint(len(body)) + body
    with pytest.raises(KafkaError, match="more than 1000 headers") as refused:
        decode_raw(raw, records, 0, 0)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_a_batch_that_is_cut_or_grows_too_large_is_refused():
    batch = encode_batch([Record(b"k", bytes(100_000))], codec=4)
    with pytest.raises(KafkaError, match="is cut at"):
        decode_records(batch[:-1])
    with pytest.raises(KafkaError, match="more than 50000 bytes"):
        decode_records(batch, limit_bytes=50_000)


def test_header_key_that_is_not_utf8_is_decoded_with_replacement() -> None:
    """Kafka's brokers store such keys, and its clients show U+FFFD."""
    fields = b"\0\0\0\1\1\2\2\xff\1"
    [record] = walk_records(encode_varint(len(fields)) + fields, 1, 0, 0)
    assert record.headers == [("\ufffd", None)]
