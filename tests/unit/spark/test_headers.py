"""The column of headers: keys and values of each record, nulls, keys that are not UTF-8, and damaged lengths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kproc.spark.headers import header_array

TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Lengths are zigzag varints: 2 is one byte, 1 is null.
A_IS_B, C_IS_NULL = b"\x02a\x02b", b"\x02c\x01"
LONG = b"\x80\x02" + 128 * b"k" + b"\x00"


def column(*records: tuple[bytes, int]) -> list[object]:
    """Return the column of records, each given by the bytes of its headers and their number."""
    raw = b"".join(headers for headers, _ in records) + bytes(12)  # As binary_array requires.
    ends = np.cumsum([len(headers) for headers, _ in records])
    counts = np.array([count for _, count in records])
    starts = ends - np.array([len(headers) for headers, _ in records])
    return header_array(raw, starts, counts, ends, TYPE).to_pylist()


def test_records_have_their_own_headers_or_null() -> None:
    shown = column((A_IS_B + C_IS_NULL, 2), (b"", 0), (LONG, 1))
    assert shown == [
        [{"key": "a", "value": b"b"}, {"key": "c", "value": None}],
        None,
        [{"key": 128 * "k", "value": b""}],
    ]
    assert column((b"", 0), (b"", 0)) == [None, None]


def test_header_key_that_is_not_utf8_has_replacements() -> None:
    assert column((b"\x02\xff\x02b", 1)) == [[{"key": "\ufffd", "value": b"b"}]]


def test_headers_that_do_not_fill_their_record_are_rejected() -> None:
    for headers, count, text in (
        (b"\x01\x02b", 1, "no key"),
        (A_IS_B, 2, "past the end"),
        (b"\x02a\x7eb", 1, "past the end"),
        (A_IS_B + b"x", 1, "1 bytes before"),
    ):
        with pytest.raises(ValueError, match=text):
            column((headers, count))
