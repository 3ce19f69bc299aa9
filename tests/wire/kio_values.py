"""Random messages, each as kio's entity and as the plain dict that codec.py speaks.

Walks kio's dataclasses itself, so that a misreading of the schema in codec.py cannot hide in the expectation.
"""

from __future__ import annotations

import dataclasses
import datetime
import random
import uuid
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from kproc.wire.schema_source import supported_versions

EVERY_MESSAGE = [
    (api_key, version, direction)
    for api_key in sorted(api_key_map)
    for version in supported_versions(api_key)
    for direction in ("request", "response")
]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
WORDS = ("", "a", "orders", "日本語-тема", "x" * 130, "y" * 1000)
INTEGERS = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
}


def entity_type(api_key: int, version: int, direction: str) -> type:
    load = load_request_schema if direction == "request" else load_response_schema
    return load(api_key, version)


def random_message(entity: type, rng: random.Random) -> tuple[Any, dict[str, Any]]:
    """(entity, the same as plain values)."""
    values: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        values[field.name], plain[field.name] = _random_field(field, rng)
    return entity(**values), plain


def _inner(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is UnionType:
        return next(arm for arm in get_args(annotation) if arm is not NoneType), True
    return annotation, False


def _random_field(field: dataclasses.Field[Any], rng: random.Random) -> tuple[Any, Any]:
    annotation, is_nullable = _inner(field.type)
    kafka_type = field.metadata.get("kafka_type")
    is_tagged = "tag" in field.metadata
    if get_origin(annotation) is tuple:
        if is_nullable and rng.random() < 0.2:
            return None, None
        item_type, _ = _inner(get_args(annotation)[0])
        items = [_random_value(item_type, kafka_type, False, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        return tuple(item[0] for item in items), [item[1] for item in items]
    # kio cannot write a tagged null: for it, a null is the absence of the tag.
    is_default = is_tagged and rng.random() < 0.3
    if is_default and field.default is None and kafka_type == "string":
        return None, None
    return _random_value(annotation, kafka_type, is_nullable and not is_tagged, rng)


def _random_value(annotation: Any, kafka_type: str | None, is_nullable: bool, rng: random.Random) -> Any:
    if kafka_type is None:
        if is_nullable and rng.random() < 0.3:
            return None, None
        return random_message(annotation, rng)
    match kafka_type:
        case "bool":
            value = rng.random() < 0.5
            return value, value
        case "uint16":
            value = rng.choice((0, 1, 65535))
            return value, value
        case "float64":
            value = rng.choice((0.0, -1.5, 1e300))
            return value, value
        case "error_code":
            code = rng.choice(list(ErrorCode))
            return code, int(code)
        case "timedelta_i32" | "timedelta_i64":
            milliseconds = rng.choice((0, -1, 1, 30_000, 2**31 - 1))
            return datetime.timedelta(milliseconds=milliseconds), milliseconds
        case "datetime_i64":
            milliseconds = rng.choice((0, 1, 1_700_000_000_123))
            if is_nullable and rng.random() < 0.3:
                return None, -1
            return EPOCH + datetime.timedelta(milliseconds=milliseconds), milliseconds
        case "uuid":
            raw = rng.choice((bytes(16), rng.randbytes(16)))
            return (uuid.UUID(bytes=raw) if any(raw) else None), raw
    if is_nullable and rng.random() < 0.3:
        return None, None
    if kafka_type == "string":
        text = rng.choice(WORDS)
        return text, text
    if kafka_type in ("bytes", "records"):
        raw = rng.randbytes(rng.choice((0, 1, 127, 128, 20_000)))
        return raw, raw
    bits = INTEGERS[kafka_type]
    value = rng.choice((0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.getrandbits(bits - 1)))
    return value, value
