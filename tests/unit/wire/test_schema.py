"""Readers made from schemas: bounds of arrays and tagged fields."""

from __future__ import annotations

import pytest

from kproc.common.errors import ProtocolError
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from kproc.wire.hot import decode_fetch
from kproc.wire.primitives import ELEMENTS_MAX, TAGS_MAX, encode_unsigned_varint
from kproc.wire.schema import reader_of


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


def test_fetch_with_too_many_elements_is_refused() -> None:
    head = codec.encode_request(ApiKey.FETCH, 4, 1, "c", {"topics": []})[4:]
    body = head[parse_request_header(head)[1] :][:-4] + (ELEMENTS_MAX + 1).to_bytes(4) + bytes(ELEMENTS_MAX + 1)
    with pytest.raises(ProtocolError, match="1000001 elements; the limit is 1000000"):
        decode_fetch(4, memoryview(body))
