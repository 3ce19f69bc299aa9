"""Requests of any API with every array filled."""

from __future__ import annotations

import random
from typing import Any

from kproc.wire.schema import Field, Schema


def filled(schema: Schema, source: random.Random) -> dict[str, Any]:
    """A random message with several rows in each array."""
    return {field.name: _value(field, source) for field in schema.fields if field.tag is None}


def _value(field: Field, source: random.Random) -> Any:
    if field.is_array:
        return [_one(field, source) for _ in range(source.randrange(6))]
    return _one(field, source)


def _one(field: Field, source: random.Random) -> Any:
    if field.struct is not None:
        return filled(field.struct, source)
    if field.kind == "string":
        return f"n{source.randrange(10**6)}"
    number = source.randrange(100 if field.kind in ("int8", "int16", "uint16") else 10**6)
    return {"uuid": source.randbytes(16), "bytes": b"b", "bool": True, "float64": 1.5}.get(field.kind, number)
