"""Requests and answers as dicts, by kio's schemas. Written apart from kproc's own codec, so that it can judge it."""

from __future__ import annotations

import dataclasses
import struct
import typing
from functools import cache
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map

from tests.differential.symbols import WireId

BARE = "bare_token"
"""In the place of an API: bytes with their length in front, and an answer of that kind."""
KEYS = {name: key for key, name in api_key_map.items()} | {BARE: -1}
CLIENT_ID = b"diff"
_API_VERSIONS = 18
_NUMBERS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "float64": "d", "bool": "?",
    "timedelta_i32": "i", "timedelta_i64": "q", "datetime_i64": "q", "error_code": "h", "uuid": "16s",
}  # fmt: skip
_STRUCTS = {kind: struct.Struct(">" + code) for kind, code in _NUMBERS.items()}


class Field(NamedTuple):
    """One field of an entity; `entity` is that of a nested struct."""

    name: str
    kind: str
    entity: Any
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """A type without its None, and whether it had one."""
    options = typing.get_args(hint)
    if type(None) not in options:
        return hint, False
    return next(option for option in options if option is not type(None)), True


@cache
def fields_of(entity: Any) -> tuple[Field, ...]:
    """An entity's fields in the wire's order."""
    return tuple(_field(each) for each in dataclasses.fields(entity))


def _field(field: Any) -> Field:
    hint, is_nullable = _unwrap(field.type)
    kind = field.metadata.get("kafka_type", "struct")
    is_array = typing.get_origin(hint) is tuple
    entity = None
    if kind == "struct":
        entity = _unwrap(typing.get_args(hint)[0])[0] if is_array else hint
    default: Any = field.default
    if hasattr(default, "total_seconds"):
        default = int(default.total_seconds() * 1000)
    elif kind == "uuid" and not is_array:
        default = bytes(16)
    elif not isinstance(default, (int, str, float)):
        if is_array:
            default = []
        elif is_nullable or kind in ("struct", "records"):
            default = None
        else:
            default = {"string": "", "bytes": b""}.get(kind, 0)
    return Field(field.name, kind, entity, is_array, is_nullable, field.metadata.get("tag"), default)


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


# -- entities


def encode(entity: Any, values: dict[str, Any]) -> bytes:
    """`values` by field names; what is missing has its default."""
    flexible = entity.__flexible__
    out = bytearray()
    tagged: dict[int, bytes] = {}
    for field in fields_of(entity):
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
    if field.entity and field.is_nullable:
        return b"\xff" if value is None else b"\1" + _encode_one(field, value, flexible)
    return _encode_one(field, value, flexible)


def _encode_one(field: Field, value: Any, flexible: bool) -> bytes:
    if field.entity:
        return encode(field.entity, value or {})
    if field.kind in _STRUCTS:
        return _STRUCTS[field.kind].pack(value or (bytes(16) if field.kind == "uuid" else 0))
    data = value.encode() if isinstance(value, str) else value
    size = -1 if data is None else len(data)
    if flexible or field.kind != "string":
        return _count(size, flexible) + (data or b"")
    return struct.pack(">h", size) + (data or b"")


def decode(entity: Any, data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """The values by field names, and where they end."""
    flexible = entity.__flexible__
    values: dict[str, Any] = {}
    fields = fields_of(entity)
    for field in fields:
        if field.tag is None:
            values[field.name], at = _decode_field(field, data, at, flexible)
    if not flexible:
        return values, at
    count, at = read_unsigned_varint(data, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(data, at)
        size, at = read_unsigned_varint(data, at)
        known = next((field for field in fields if field.tag == tag), None)
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
        if field.entity and field.is_nullable:
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
    if field.entity:
        return decode(field.entity, data, at)
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
def _request_entity(key: int, version: int) -> Any:
    return load_request_schema(key, version)


@cache
def _response_entity(key: int, version: int) -> Any:
    return load_response_schema(key, version)


def request_frame(api: str, version: int, body: dict[str, Any]) -> bytes:
    """The whole frame."""
    if api == BARE:
        return struct.pack(">i", len(body["auth_bytes"])) + bytes(body["auth_bytes"])
    entity = _request_entity(KEYS[api], version)
    header = struct.pack(">hhih4s", KEYS[api], version, 7, len(CLIENT_ID), CLIENT_ID)
    if entity.__header_schema__.__flexible__:
        header += b"\0"
    data = header + encode(entity, body)
    return struct.pack(">i", len(data)) + data


def read_answer(api: str, version: int, frame: bytes) -> dict[str, Any]:
    """An answer without its length; what cannot be read is told as one that no broker gives."""
    if api == BARE:
        return {"auth_bytes": frame}
    entity = _response_entity(KEYS[api], version)
    try:
        _, at = decode(entity.__header_schema__, frame, 0)
        values, end = decode(entity, frame, at)
    except (ValueError, IndexError, struct.error) as problem:
        if KEYS[api] == _API_VERSIONS:  # An unknown version is answered with version 0.
            return decode(_response_entity(_API_VERSIONS, 0), frame, 4)[0] | {"in version": 0}
        return {"unreadable": repr(problem)[:60], "bytes": frame.hex()[:200]}
    return values if end == len(frame) else {"trailing bytes": len(frame) - end}
