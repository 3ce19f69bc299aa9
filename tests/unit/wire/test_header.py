"""Request and response headers."""

from __future__ import annotations

import struct

import pytest

from kproc.common.errors import ProtocolError
from kproc.wire.header import (
    ApiKey,
    RequestHeader,
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
)
from tests.support.cases import in_one_test


@pytest.mark.parametrize("version", [8, 9])
def test_request_headers_survive_the_round_trip_at_any_offset(version):
    head = encode_request_header(ApiKey.PRODUCE, version, -7, "kliënt")
    header, position = parse_request_header(b"....." + head + b"body", 5)
    assert header == RequestHeader(ApiKey.PRODUCE, version, -7, "kliënt")
    assert position == 5 + len(head)
    # The client id keeps its int16 length in header 2; only the tags are new.
    assert len(head) == 10 + len("kliënt".encode()) + (version == 9)


def test_a_null_client_id_is_an_empty_one_as_in_kafka():
    header, position = parse_request_header(encode_request_header(ApiKey.FETCH, 4, 1, None))
    assert (header.client_id, position) == ("", 10)


def test_a_version_newer_than_we_know_still_has_header_2():
    head = struct.pack(">hhih", 18, 99, 5, -1) + b"\0"
    header, position = parse_request_header(head + b"whatever the body is")
    assert (header.api_version, header.correlation_id, position) == (99, 5, len(head))


def test_negative_version_is_parsed_for_api_versions_answer():
    header, position = parse_request_header(struct.pack(">hhih", 18, -1, 5, -1))
    assert (header.api_version, position) == (-1, 10)


@in_one_test(
    ("data", "why"),
    [
        (b"", "too short"),
        (struct.pack(">hhi", 3, 1, 1), "too short"),
        (struct.pack(">hhih", 4, 1, 1, -1), "unknown API key 4"),
        (struct.pack(">hhih", -1, 1, 1, -1), "unknown API key -1"),
        (struct.pack(">hhih", 3, 1, 1, 5) + b"four", "past the end"),
        (struct.pack(">hhih", 3, 1, 1, -2), "client id has the length -2"),
        (struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe", "UTF-8"),
        (struct.pack(">hhih", 3, 12, 1, -1), "past the end"),
    ],
)
def test_bad_headers_are_refused(data, why):
    with pytest.raises(ProtocolError, match=why):
        parse_request_header(data)


def test_response_header_version_excepts_api_versions():
    assert encode_response_header(ApiKey.METADATA, 8, 3) == b"\0\0\0\3"
    assert encode_response_header(ApiKey.METADATA, 9, 3) == b"\0\0\0\3\0"
    assert encode_response_header(ApiKey.API_VERSIONS, 4, 3) == b"\0\0\0\3"
    assert parse_response_header(ApiKey.METADATA, 9, b"\0\0\0\3\0rest") == (3, 5)
    assert parse_response_header(ApiKey.METADATA, 8, b"--\0\0\0\3rest", 2) == (3, 6)
    with pytest.raises(ProtocolError, match="too short"):
        parse_response_header(ApiKey.METADATA, 8, b"\0\0")
