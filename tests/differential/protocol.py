"""Requests and answers as dicts. The codec is written apart from kproc's own, so that it can judge it.

The schemas are kproc's table, which has every version of Kafka 4.4. Its own test compares it with the definitions in
Kafka's jars (tests/wire/test_schema_against_kafka_json.py), so nothing here needs a second table.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from kproc.wire.header import ApiKey, request_header_version, response_header_version
from kproc.wire.schema import FIXED_CODES, Field, Schema
from kproc.wire.schema_table import find_schema
from tests.differential.symbols import WireId

BARE = "bare_token"
"""In the place of an API: bytes with their length in front, and an answer of that kind."""
KEYS = {key.name.lower(): int(key) for key in ApiKey} | {BARE: -1}
API_NAMES = {key: name for name, key in KEYS.items()}
CLIENT_ID = b"diff"
_API_VERSIONS = 18
_STRUCTS = {kind: struct.Struct(">" + code) for kind, code in FIXED_CODES.items()}


# -- variable-length integers


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_unsigned_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return value, at


def varint(value: int) -> bytes:
    """Zigzag, as in records."""
    return unsigned_varint((value << 1 ^ value >> 63) & 2**64 - 1)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_unsigned_varint(data, at)
    return value >> 1 ^ -(value & 1), at


# -- structs


def encode(schema: Schema, values: dict[str, Any]) -> bytes:
    """`values` by field names; what is missing has its default."""
    flexible = schema.is_flexible
    out = bytearray()
    tagged: dict[int, bytes] = {}
    for field in schema.fields:
        if field.tag is None:
            out += _encode_field(field, values.get(field.name, field.default), flexible)
        elif field.name in values:
            tagged[field.tag] = _encode_field(field, values[field.name], flexible)
    if flexible:
        out += unsigned_varint(len(tagged))
        for tag, data in sorted(tagged.items()):
            out += unsigned_varint(tag) + unsigned_varint(len(data)) + data
    return bytes(out)


def _count(count: int, flexible: bool) -> bytes:
    return unsigned_varint(count + 1) if flexible else struct.pack(">i", count)


def _encode_field(field: Field, value: Any, flexible: bool) -> bytes:
    if field.is_array:
        if value is None:
            return _count(-1, flexible)
        return _count(len(value), flexible) + b"".join(_encode_one(field, each, flexible) for each in value)
    if field.struct and field.is_nullable:
        return b"\xff" if value is None else b"\1" + _encode_one(field, value, flexible)
    return _encode_one(field, value, flexible)


def _encode_one(field: Field, value: Any, flexible: bool) -> bytes:
    if field.struct:
        return encode(field.struct, value or {})
    if field.kind in _STRUCTS:
        return _STRUCTS[field.kind].pack(value or (bytes(16) if field.kind == "uuid" else 0))
    data = value.encode() if isinstance(value, str) else value
    size = -1 if data is None else len(data)
    if flexible or field.kind != "string":
        return _count(size, flexible) + (data or b"")
    return struct.pack(">h", size) + (data or b"")


def decode(schema: Schema, data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """The values by field names, and where they end."""
    flexible = schema.is_flexible
    values: dict[str, Any] = {}
    for field in schema.fields:
        if field.tag is None:
            values[field.name], at = _decode_field(field, data, at, flexible)
    if not flexible:
        return values, at
    count, at = read_unsigned_varint(data, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(data, at)
        size, at = read_unsigned_varint(data, at)
        known = next((field for field in schema.fields if field.tag == tag), None)
        if known is None:
            values[f"tag{tag}"] = data[at : at + size]
        else:
            values[known.name] = _decode_field(known, data, at, flexible)[0]
        at += size
    return values, at


def _decode_count(data: bytes, at: int, flexible: bool, is_short: bool = False) -> tuple[int, int]:
    if flexible:
        count, at = read_unsigned_varint(data, at)
        return count - 1, at
    if is_short:
        return struct.unpack_from(">h", data, at)[0], at + 2
    return struct.unpack_from(">i", data, at)[0], at + 4


def _decode_field(field: Field, data: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    if not field.is_array:
        if field.struct and field.is_nullable:
            return (None, at + 1) if data[at] == 255 else _decode_one(field, data, at + 1, flexible)
        return _decode_one(field, data, at, flexible)
    count, at = _decode_count(data, at, flexible)
    if count < 0:
        return None, at
    items = []
    for _ in range(count):
        item, at = _decode_one(field, data, at, flexible)
        items.append(item)
    return items, at


def _decode_one(field: Field, data: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    if field.struct:
        return decode(field.struct, data, at)
    if field.kind in _STRUCTS:
        (value,) = _STRUCTS[field.kind].unpack_from(data, at)
        return (WireId(value) if field.kind == "uuid" else value), at + _STRUCTS[field.kind].size
    size, at = _decode_count(data, at, flexible, field.kind == "string")
    if size < 0:
        return None, at
    raw = data[at : at + size]
    if len(raw) != size:
        raise ValueError(f"{field.name} of {size} bytes, {len(raw)} are there")
    return raw.decode() if field.kind == "string" else raw, at + size


# -- frames


@cache
def _schema(key: int, version: int, direction: str) -> Schema:
    found = find_schema(key, version, direction)
    assert found is not None, f"no schema of {API_NAMES[key]} v{version}"
    return found


def request_frame(api: str, version: int, body: dict[str, Any]) -> bytes:
    """The whole frame."""
    if api == BARE:
        return struct.pack(">i", len(body["auth_bytes"])) + bytes(body["auth_bytes"])
    key = KEYS[api]
    header = struct.pack(">hhih4s", key, version, 7, len(CLIENT_ID), CLIENT_ID)
    if request_header_version(key, version) == 2:
        header += b"\0"
    data = header + encode(_schema(key, version, "request"), body)
    return struct.pack(">i", len(data)) + data


def read_answer(api: str, version: int, frame: bytes) -> dict[str, Any]:
    """An answer without its length; what cannot be read is told as one that no broker gives."""
    if api == BARE:
        return {"auth_bytes": frame}
    key = KEYS[api]
    try:
        at = 4
        if response_header_version(key, version):
            _, at = decode(Schema("", is_flexible=True, fields=()), frame, at)
        values, end = decode(_schema(key, version, "response"), frame, at)
    except (ValueError, IndexError, struct.error) as problem:
        if key == _API_VERSIONS:  # An unknown version is answered with version 0.
            return decode(_schema(key, 0, "response"), frame, 4)[0] | {"in version": 0}
        return {"unreadable": repr(problem)[:60], "bytes": frame.hex()[:200]}
    return values if end == len(frame) else {"trailing bytes": len(frame) - end}
