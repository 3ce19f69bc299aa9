"""Readers made from schemas: bounds of arrays and tagged fields."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ProtocolError
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from kproc.wire.hot import decode_fetch
from kproc.wire.primitives import ELEMENTS_MAX, STRING_BYTES_MAX, TAGS_MAX, encode_unsigned_varint
from kproc.wire.schema import Field, Schema, reader_of


def test_struct_with_too_many_tagged_fields_is_refused() -> None:
    """Millions of empty tagged fields are valid, and would be skipped one by one."""
    for count in (TAGS_MAX, TAGS_MAX + 1):
        tags = codec.encode_request(ApiKey.DESCRIBE_GROUPS, 5, 1, "c", {"groups": []})[4:]
        body = tags[parse_request_header(tags)[1] :][:-1] + bytes([count]) + b"\x07\x00" * count
        if count == TAGS_MAX:
            assert codec.decode_request(ApiKey.DESCRIBE_GROUPS, 5, body)["groups"] == []
        else:
            with pytest.raises(ProtocolError, match="tagged fields"):
                codec.decode_request(ApiKey.DESCRIBE_GROUPS, 5, body)


def test_array_with_too_many_elements_is_refused() -> None:
    """The bytes of a request could hold them. No row is read before the count is rejected."""
    read = reader_of(codec.schema_of(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, "request"))

    def body_with(count: int) -> bytes:
        numbers = encode_unsigned_varint(count + 1) + bytes(4 * count)
        return bytes(4) + b"\2" + b"\2t" + numbers + b"\0\0"

    fields, _ = read(body_with(ELEMENTS_MAX), 0)
    assert len(fields["topics"][0]["partition_indexes"]) == ELEMENTS_MAX
    with pytest.raises(ProtocolError, match="1000001 elements; the limit is 1000000"):
        read(body_with(ELEMENTS_MAX + 1), 0)


def _read_one(field: Field, body: bytes) -> Any:
    """Read a flexible struct of one field and check that all bytes were read."""
    fields, end = reader_of(Schema("m", True, (field,)))(body, 0)
    assert end == len(body)
    return fields["f"]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 200, STRING_BYTES_MAX])
def test_compact_strings_are_read_and_truncated_ones_refused(size: int) -> None:
    text = "é" * (size // 2) + "x" * (size % 2)
    body = encode_unsigned_varint(size + 1) + text.encode()
    field = Field("f", "string")
    assert _read_one(field, body + b"\0") == text
    if size:
        # Nothing may follow: a byte behind the string would otherwise stand for the missing one.
        with pytest.raises(ProtocolError, match=f"m.f: string of {size} bytes, but at most {size - 1} remain"):
            reader_of(Schema("m", True, (field,)))(body[:-1], 0)


@pytest.mark.parametrize("field", [Field("f", "string"), Field("f", "int32", is_array=True)])
def test_null_is_read_only_where_the_schema_allows_it(field: Field) -> None:
    nullable = Field("f", field.kind, is_array=field.is_array, is_nullable=True)
    assert _read_one(nullable, b"\0\0") is None
    with pytest.raises(ProtocolError, match="must not be null"):
        _read_one(field, b"\0\0")


def test_legacy_array_may_begin_with_a_zero_byte() -> None:
    """Only in flexible versions does one zero byte mean null. Here it is part of a count of four bytes."""
    field = Field("f", "int8", is_array=True, is_nullable=True)
    read = reader_of(Schema("m", False, (field,)))
    assert read(b"\0\0\0\2\1\2", 0) == ({"f": [1, 2]}, 6)
    assert read(b"\xff\xff\xff\xff", 0) == ({"f": None}, 4)


def test_fetch_with_too_many_elements_is_refused() -> None:
    head = codec.encode_request(ApiKey.FETCH, 4, 1, "c", {"topics": []})[4:]
    body = head[parse_request_header(head)[1] :][:-4] + (ELEMENTS_MAX + 1).to_bytes(4) + bytes(ELEMENTS_MAX + 1)
    with pytest.raises(ProtocolError, match="1000001 elements; the limit is 1000000"):
        decode_fetch(4, memoryview(body))
