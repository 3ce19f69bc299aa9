"""Arrow columns to record batches: read back by the broker's own decoder, for every codec and every kind of null."""

from __future__ import annotations

import random

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.spark.encode import (  # noqa: E402
    HEADER_TYPE,
    NullHeader,
    RecordEncoder,
    RecordTooLarge,
    RowColumns,
    encode_headers,
    split,
)
from kproc.wire.compression import Compression  # noqa: E402
from kproc.wire.record_batch import check_batch, decode_records  # noqa: E402

PARTITIONS = 5
# Around the borders of one-, two- and three-byte varints.
SIZES = (0, 1, 8, 62, 63, 64, 65, 100, 127, 128, 300, 8_191, 8_192, 9_000)
HEADER_KEYS = ("a", "äö", "x" * 200, "")


def some_bytes(source: random.Random) -> bytes | None:
    return None if source.random() < 0.1 else source.randbytes(source.choice(SIZES))


def some_rows(source: random.Random, count: int, *, keys: bool, headers: bool):
    """Rows, their partitions, and the same as plain tuples."""
    values = [some_bytes(source) for _ in range(count)]
    key_column = [some_bytes(source) if keys else None for _ in range(count)]
    header_column = [
        None
        if not headers or source.random() < 0.3
        else [
            {"key": source.choice(HEADER_KEYS), "value": some_bytes(source)}
            for _ in range(source.choice([0, 1, 2, 70]))
        ]
        for _ in range(count)
    ]
    stamps = [
        1_700_000_000_000 + source.randrange(-(10**6), 10**6) * source.choice([1, 1, 10**5])
        for _ in range(count)
    ]
    partitions = [source.randrange(PARTITIONS) for _ in range(count)]
    rows = RowColumns(
        pa.array(values, pa.binary()),
        pa.array(key_column, pa.binary()) if keys else None,
        pa.array(header_column, pa.list_(HEADER_TYPE)) if headers else None,
        np.array(stamps, np.int64),
    )
    plain = [
        (key, value, stamp, [(each["key"], each["value"]) for each in row_headers or ()])
        for key, value, stamp, row_headers in zip(key_column, values, stamps, header_column, strict=True)
    ]
    return rows, np.array(partitions, np.int32), plain


def read_back(drafts, *, batch_bytes: int) -> dict[int, list]:
    found: dict[int, list] = {}
    for draft in drafts:
        batch = b"".join(draft.stamp(7, 3, 11))
        header = check_batch(batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
        assert header.record_count == draft.count
        assert draft.total_bytes == len(batch)
        assert len(batch) <= batch_bytes or draft.count == 1 or draft.codec
        records = decode_records(batch)
        assert [record.offset for record in records] == list(range(draft.count))
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        found.setdefault(draft.partition, []).extend(
            (record.key, record.value, record.timestamp_ms, list(record.headers)) for record in records
        )
    return found


@pytest.mark.parametrize(
    "codec",
    [
        codec
        if codec in (Compression.NONE, Compression.ZSTD)
        else pytest.param(codec, marks=pytest.mark.long)
        for codec in Compression
    ],
)
@pytest.mark.parametrize(("keys", "headers"), [(True, True), (False, True), (True, False), (False, False)])
def test_encoder_keeps_order_within_partition(
    codec: Compression, keys: bool, headers: bool
) -> None:
    source = random.Random(codec * 4 + keys * 2 + headers)
    for batch_bytes in (1, 16_384, 200_000):
        rows, partitions, plain = some_rows(source, 120, keys=keys, headers=headers)
        skipped = 3  # Spark's columns may be slices of larger ones.
        encoder = RecordEncoder(batch_bytes=batch_bytes, bytes_max=1 << 20, codec=codec)
        drafts = list(encoder.encode(rows.slice(skipped, 120 - skipped), partitions[skipped:]))
        found = read_back(drafts, batch_bytes=batch_bytes)
        for partition in range(PARTITIONS):
            wanted = [row for row, at in zip(plain, partitions, strict=True) if at == partition]
            skipped_here = int((partitions[:skipped] == partition).sum())
            assert found.get(partition, []) == wanted[skipped_here:]


@pytest.mark.long
def test_a_batch_of_200_000_records_has_three_byte_offset_deltas() -> None:
    count = 200_000
    rows = RowColumns(pa.array([b"v"] * count, pa.binary()), None, None, np.zeros(count, np.int64))
    encoder = RecordEncoder(batch_bytes=1 << 26, bytes_max=1 << 26)
    drafts = list(encoder.encode(rows, np.zeros(count, np.int32)))
    records = [record for draft in drafts for record in decode_records(b"".join(draft.stamp(-1, -1, -1)))]
    assert max(draft.count for draft in drafts) > 1 << 14
    assert len(records) == count
    assert {record.value for record in records} == {b"v"}


def test_encoder_makes_no_batch_without_rows() -> None:
    rows = RowColumns(pa.array([], pa.binary()), None, None, np.zeros(0, np.int64))
    encoder = RecordEncoder(batch_bytes=1000, bytes_max=1000)
    assert list(encoder.encode(rows, np.zeros(0, np.int32))) == []


def test_encoder_rejects_record_above_max_request_size() -> None:
    rows = RowColumns(pa.array([b"x", b"y" * 2000], pa.binary()), None, None, np.zeros(2, np.int64))
    encoder = RecordEncoder(batch_bytes=500, bytes_max=1000)
    with pytest.raises(
        RecordTooLarge, match=r"a record of 2021 bytes for partition 4 .*max.request.size \(1000\)"
    ):
        list(encoder.encode(rows, np.array([3, 4], np.int32)))


def test_a_header_without_a_key_is_refused() -> None:
    column = pa.array([[{"key": None, "value": b"v"}]], pa.list_(HEADER_TYPE))
    with pytest.raises(NullHeader, match="null header, or one with a null key"):
        encode_headers(column)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_encoder_splits_batch_in_order(codec: Compression) -> None:
    source = random.Random(5)
    rows, _, plain = some_rows(source, 101, keys=True, headers=True)
    encoder = RecordEncoder(batch_bytes=1 << 24, bytes_max=1 << 24, codec=codec)
    (whole,) = encoder.encode(rows, np.zeros(101, np.int32))
    halves = split(whole)
    assert [half.count for half in halves] == [50, 51]
    assert read_back(halves, batch_bytes=1 << 24)[0] == plain
