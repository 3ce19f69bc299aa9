"""Makes schemas.jsonl, the table of every API in every version: `python -m kproc.wire.schema_source`.

The schemas are kio's, and those of schema_additions.py for the versions that kio lacks.

This is a development tool, and no role imports it. kio has a module for each version of each API. If roles used kio
directly, they would import a module at the first request of each version, and an import fails when no descriptor is
free. A test compares the file with kio.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID
from kproc.wire.schema import Field, Schema
from kproc.wire.schema_additions import added_schemas
from kproc.wire.schema_table import PATH, encode_schema


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Make `import name` fail inside the context, as if it were not installed. A loaded module stays usable."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # The import system's own way to say "not there".
    try:
        yield
    finally:
        del sys.modules[name]


# Prevent kio from importing hypothesis (a testing library) if it is installed, which takes 0.1 s and is unused.
with _hidden("hypothesis"):
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.index import api_key_map, schema_name_map
    from kio.static.constants import EntityType

_KINDS: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "records": "bytes",
}
_IMPLICIT_DEFAULTS: Final = {"string": "", "bytes": b"", "uuid": ZERO_UUID, "bool": False, "float64": 0.0}


# ---- kio's entities as schemas ----------------------------------------------------------------------------


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return (the type inside Optional, True), or (the annotation, False) if it is not Optional."""
    if get_origin(annotation) in (UnionType, Union):
        inner = [arm for arm in get_args(annotation) if arm is not NoneType]
        assert len(inner) == 1, annotation
        return inner[0], True
    return annotation, False


def _default(field: dataclasses.Field[Any], kind: str, is_nullable: bool, is_array: bool) -> Any:
    """Return the default of a field as a plain value.

    Differs from Kafka in one point: the default of a nullable string or bytes without a default in the schema is null,
    not empty. Kafka's own handlers always set these fields to null before they respond.
    """
    default = field.default
    if default is dataclasses.MISSING:
        if is_array:
            return []
        if kind in ("string", "bytes") and is_nullable:
            return None
        return {} if kind == "struct" else _IMPLICIT_DEFAULTS.get(kind, 0)
    if default is None and not is_array:
        # kio has the default None for an absent UUID or time, but on the wire these are the zero UUID and -1.
        return {"uuid": ZERO_UUID, "int64": -1}.get(kind)
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if isinstance(default, IntEnum):
        return int(default)
    if dataclasses.is_dataclass(default):
        return {}
    return [] if default == () else default


def _field(field: dataclasses.Field[Any], path: str) -> Field:
    annotation, is_nullable = _without_none(field.type)
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation, _ = _without_none(get_args(annotation)[0])
    is_struct = dataclasses.is_dataclass(annotation) and "kafka_type" not in field.metadata
    kafka_type = "struct" if is_struct else field.metadata["kafka_type"]
    kind = _KINDS.get(kafka_type, kafka_type)
    return Field(
        name=field.name,
        kind=kind,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=_default(field, kind, is_nullable, is_array),
        struct=_schema(annotation, f"{path}.{field.name}") if is_struct else None,
    )


def _schema(entity: Any, path: str) -> Schema:
    return Schema(
        path, entity.__flexible__, tuple(_field(field, path) for field in dataclasses.fields(entity))
    )


def supported_versions(api_key: int) -> range:
    """Return the versions of an API that kio has, an empty range if kio lacks the API."""
    entity_type = EntityType.request
    versions = schema_name_map.get(api_key_map.get(api_key, ""), {})
    present = [version for version, types in versions.items() if entity_type in types]
    return range(min(present), max(present) + 1) if present else range(0)


def make_schemas() -> Iterator[tuple[int, int, str, Schema]]:
    """Yield (API key, version, direction, schema) of every message."""
    for key in ApiKey:
        newest = None
        for version in supported_versions(key):
            request = _schema(load_request_schema(key, version), f"{key.name} request v{version}")
            response = _schema(load_response_schema(key, version), f"{key.name} response v{version}")
            yield int(key), version, "request", request
            yield int(key), version, "response", response
            newest = request, response
        for version, direction, schema in added_schemas(key, newest):
            yield int(key), version, direction, schema


def make_table() -> str:
    """Return the text of schemas.jsonl."""
    return "".join(
        json.dumps([*where, encode_schema(schema)], separators=(",", ":")) + "\n"
        for *where, schema in make_schemas()
    )


if __name__ == "__main__":
    PATH.write_text(make_table())
