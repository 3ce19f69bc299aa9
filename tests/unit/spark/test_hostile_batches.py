"""The decoder and batches that a hostile client has stored: bounded like the broker, with the batch's offset."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

import numpy as np

from kproc.common.errors import ErrorCode, KafkaError
from kproc.spark import walk
from kproc.spark.decode import ARROW_TYPES, Decoder
from kproc.wire.compression import compress
from kproc.wire.record_batch import LOG_APPEND_TIME
from tests.support import hostile
from tests.support.cases import in_one_test

COLUMN_SETS = [["value"], ["headers"], ["timestamp", "offset"], list(ARROW_TYPES)]


def rows(batch: memoryview, columns: list[str]) -> int:
    decoder = Decoder(columns, "t", 3)
    return sum(each.num_rows for each in [*decoder.feed(bytes(batch) + bytes(16)), *decoder.flush()])


def refusal(batch: memoryview, columns: list[str]) -> str:
    with pytest.raises(KafkaError) as refused:
        rows(batch, columns)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    return str(refused.value)


@pytest.mark.parametrize("columns", COLUMN_SETS)
def test_decode_of_too_many_headers_is_refused(monkeypatch: pytest.MonkeyPatch, columns: list[str]) -> None:
    """20 million empty headers, 3.8 kB as zstd, once took 111 s and 1.7 GB."""
    monkeypatch.setattr(walk, "HEADER_COUNT_MAX", 1000)
    monkeypatch.setattr("kproc.wire.records.HEADER_COUNT_MAX", 1000)
    for count in (1000, 1001):
        batch = hostile.sealed(compress(4, hostile.empty_headers(count)), codec=4)
        if count == 1000:
            assert rows(batch, columns) == 1
        else:
            assert "more than" in refusal(batch, columns)


def test_decode_adds_up_headers_of_all_records_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "HEADER_COUNT_MAX", 1000)
    data = np.array([600, 0, 400, 600, 400, 1], np.int64)
    assert not walk._has_too_many_headers(data, np.array([3, 0, 2, 1]))
    assert walk._has_too_many_headers(data, np.array([3, 0, 3]))


@in_one_test("columns", COLUMN_SETS)
@in_one_test(
    "payload",
    [
        hostile.long_timestamp(11),
        hostile.long_timestamp(127 << 10),
        hostile.record(b"\0\0" + b"\x80" * 5 + b"\0\1\1\0"),
        hostile.record(b"\0\0\0" + b"\x81" * 5 + b"\0\1\0"),
        b"\xff" * 100,
    ],
)
def test_decode_of_long_varints_is_refused(columns: list[str], payload: bytes) -> None:
    refusal(hostile.sealed(payload), columns)


@pytest.mark.parametrize("codec", [0, 4])
def test_decode_of_claimed_count_allocates_nothing(codec: int) -> None:
    payload = compress(codec, hostile.EMPTY_RECORD)
    assert "2147483647 records" in refusal(hostile.sealed(payload, codec=codec, count=2**31 - 1), ["value"])
    begins, ends = np.array([0]), np.array([7])
    wanted = walk.WantedFields(timestamp=True, offset=True, key=True, value=True, headers=True)
    assert walk.find_fields(hostile.EMPTY_RECORD + walk.PADDING, begins, ends, np.array([2**31 - 1]), wanted) is None


@pytest.mark.parametrize("codec", range(1, 5))
def test_decode_of_bomb_is_refused(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproc.wire.compression.INFLATED_BYTES_FREE", 10_000)
    monkeypatch.setattr("kproc.wire.compression.INFLATION_RATIO_MAX", 10)
    assert rows(hostile.bomb(codec, 9_000), ["value"]) == 1
    assert "decompress to more than" in refusal(hostile.bomb(codec, 300_000), ["value"])


def test_decode_of_count_above_the_offsets_is_refused() -> None:
    payload = hostile.empty_records(3)
    refusal(hostile.sealed(payload, count=3, last_offset_delta=1, codec=LOG_APPEND_TIME), ["value"])
