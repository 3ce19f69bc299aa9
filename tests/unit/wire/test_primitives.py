"""Varints, strings and tagged fields at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.common.errors import ProtocolError
from kproc.wire import primitives as wire
from tests.support.cases import in_one_test


@in_one_test(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16_383, "ff7f"),
        (2**31 - 1, "ffffffff07"),
    ],
)
def test_unsigned_varints_are_the_documented_bytes(value, encoded):
    assert wire.encode_unsigned_varint(value).hex() == encoded
    assert wire.read_unsigned_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@in_one_test(("value", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001")])
def test_signed_varints_are_zig_zag_coded(value, encoded):
    assert wire.encode_varint(value).hex() == encoded
    assert wire.read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_survive_the_round_trip(value):
    encoded = b"x" + wire.encode_varint(value) + b"y"
    raw, position = wire.read_unsigned_varlong(encoded, 1)
    assert (raw >> 1 ^ -(raw & 1), position) == (value, len(encoded) - 1)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_survive_the_round_trip(value):
    encoded = wire.encode_varint(value)
    assert wire.read_varint(memoryview(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_a_varint_that_is_cut_off_is_refused(data):
    with pytest.raises(ProtocolError, match="past the end"):
        wire.read_unsigned_varint(data, 0)


def test_a_varint_that_never_ends_is_refused():
    with pytest.raises(ProtocolError, match="too long"):
        wire.read_unsigned_varint(b"\xff" * 5 + b"\x01", 0)
    with pytest.raises(ProtocolError, match="too long"):
        wire.read_unsigned_varlong(b"\xff" * 10 + b"\x01", 0)


def test_a_negative_number_has_no_unsigned_varint():
    with pytest.raises(ValueError, match="negative"):
        wire.encode_unsigned_varint(-1)


def test_tagged_fields_are_skipped_and_cut_ones_refused():
    tags = b"\x02" + b"\x05\x03abc" + b"\xe8\x07\x00"
    assert wire.skip_tagged_fields(b"xx" + tags + b"rest", 2) == 2 + len(tags)
    assert wire.skip_tags(tags, 0) == len(tags)
    assert wire.skip_tags(b"\0", 0) == 1
    for end in range(len(tags)):
        with pytest.raises(ProtocolError):
            wire.skip_tagged_fields(tags[:end], 0)


@in_one_test("text", ["", "orders", "тема", "x" * 126, "x" * 127, "x" * 32_767])
def test_strings_survive_the_round_trip_in_both_encodings(text):
    legacy, compact = wire.encode_string(text), wire.encode_compact_string(text)
    assert wire.read_string(legacy, 0) == (text, len(legacy))
    assert wire.read_compact_string(memoryview(compact), 0) == (text, len(compact))


def test_null_strings_are_none():
    assert wire.read_string(b"\xff\xff", 0) == (None, 2)
    assert wire.read_compact_string(b"\0", 0) == (None, 1)


def test_strings_that_are_too_long_are_refused_on_both_ways():
    for encode in (wire.encode_string, wire.encode_compact_string):
        with pytest.raises(ValueError, match="too long"):
            encode("x" * 32_768)
    with pytest.raises(ProtocolError):
        wire.read_string(b"\x00\x05abcd", 0)
    with pytest.raises(ProtocolError):
        wire.read_string(b"\xff\xfeabcd", 0)
    with pytest.raises(ProtocolError, match="string of 5 bytes, but at most 4 remain or are allowed"):
        wire.read_compact_string(b"\x06abcd", 0)
    with pytest.raises(ProtocolError, match="string of 32768 bytes, but at most 32767 remain or are allowed"):
        wire.read_compact_string(wire.encode_unsigned_varint(32_769) + b"x" * 32_768, 0)
