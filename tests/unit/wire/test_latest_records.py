"""The last record of each key, found in runs of records of one shape, beside a plain walk over all records."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.common.errors import KafkaError
from kproc.wire.latest_records import LatestRecords, offset_delta_of
from kproc.wire.records import Record, decode_records, encode_records
from tests.support.bytecodes import count_bytecodes

Rows = dict[bytes | None, tuple[int, bytes | None]]


def encoded(records: Sequence[Record]) -> bytes:
    return encode_records((0, record.offset, record) for record in records)


def walked(raw: bytes, count: int) -> Rows:
    return {record.key: (record.offset, record.value) for record in decode_records(raw, count, 0, 0)}


def found(latest: LatestRecords, raw: bytes, count: int) -> Rows:
    return {key: (offset_delta_of(row), row[2]) for key, row in latest.of(raw, count).items()}


# Few lengths, so that records of other shapes have the same length; values can look like records.
keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"k1", b"k2", b"key" * 30, b"\x00\x00\x02\x01"]))
values = st.one_of(
    st.none(), st.sampled_from([b"", b"v", b"w", b"va", b"\x0e\0\0\0\2k\2v\0" * 2, b"long" * 40])
)
groups = st.tuples(keys, values, st.integers(1, 90), st.integers(1, 3), st.booleans())


@given(st.lists(groups, max_size=8), st.integers(0, 9_000))
def test_latest_records_equal_those_of_a_plain_walk(
    shapes: list[tuple[bytes | None, bytes | None, int, int, bool]], first: int
) -> None:
    """Runs, gaps as compaction leaves them, nulls, headers, and offset deltas of one to three bytes."""
    records: list[Record] = []
    offset = first
    for key, value, count, step, has_headers in shapes:
        for number in range(count):
            headers = [("h", b"1")] if has_headers and number % 7 == 3 else []
            variant = key if key is None or number % 3 else key[:-1] + b"z"
            records.append(Record(variant, value, 0, headers, offset))
            offset += step
    raw, count = encoded(records), len(records)
    latest = LatestRecords()
    for _ in range(3):  # The shapes are learnt, then used.
        assert found(latest, raw, count) == walked(raw, count)


@pytest.mark.long
def test_latest_records_of_damaged_bytes_raise_kafka_error() -> None:
    """Every cut, and changed bytes: an error, or what the bytes say; no other exception."""
    records = [Record(b"key%d" % (number % 5), b"v" * (number % 3), 0, (), number) for number in range(300)]
    raw, count = encoded(records), len(records)
    latest = LatestRecords()
    latest.of(raw, count)
    for size in range(0, len(raw), 23):
        with pytest.raises(KafkaError):
            latest.of(raw[:size], count)
    for wrong in (count - 1, count + 1, -1, 1 << 30):
        with pytest.raises(KafkaError):
            latest.of(raw, wrong)
    rng = random.Random(1)
    for _ in range(600):
        damaged = bytearray(raw)
        damaged[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            latest.of(bytes(damaged), count)
        except KafkaError:
            continue


def test_run_of_records_costs_few_bytecodes_each() -> None:
    records = [Record(b"group-topic-%04d" % number, b"v" * 42, 0, (), number) for number in range(1_000)]
    raw = encoded(records)
    latest = LatestRecords()
    for _ in range(5):
        latest.of(raw, 1_000)
    assert count_bytecodes(lambda: latest.of(raw, 1_000), unless_in=__file__) < 1_000


@pytest.mark.long
def test_learnt_shapes_are_bounded() -> None:
    """A log with records of every length compiles a bounded count of patterns."""
    latest = LatestRecords()
    for size in range(300):
        raw = encoded([Record(b"k", b"v" * size, 0, (), number) for number in range(210)])
        latest.of(raw, 210)
    assert latest._compiled <= 256
