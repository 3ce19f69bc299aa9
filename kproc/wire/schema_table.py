"""The schemas of every API in every version, from schemas.jsonl beside this file.

One line for each version and direction: [API key, version, direction, [path, is flexible, [field, ...]]]. The file is
read when this module is imported, before the roles are forked. A line is parsed at the first use of its version,
because parsing all of them takes 30 ms. Parsing opens and imports nothing, so a broker without a free descriptor serves
every API.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from kproc.wire.schema import Field, Schema

PATH: Final = Path(__file__).with_name("schemas.jsonl")


def encode_schema(schema: Schema) -> list[Any]:
    """Return a schema as values for JSON. Defaults of type bytes become hexadecimal text."""
    return [
        schema.path,
        schema.is_flexible,
        [
            [
                field.name, field.kind, field.is_array, field.is_nullable, field.tag,
                field.default.hex() if isinstance(field.default, bytes) else field.default,
                None if field.struct is None else encode_schema(field.struct),
            ]
            for field in schema.fields
        ],
    ]  # fmt: skip


def decode_schema(plain: list[Any]) -> Schema:
    """Return the schema that `encode_schema` has encoded as JSON values."""
    path, is_flexible, fields = plain
    return Schema(path, is_flexible, tuple(_decode_field(field) for field in fields))


def _decode_field(plain: list[Any]) -> Field:
    name, kind, is_array, is_nullable, tag, default, struct = plain
    if kind in ("uuid", "bytes") and isinstance(default, str):
        default = bytes.fromhex(default)
    inner = None if struct is None else decode_schema(struct)
    return Field(name, kind, is_array, is_nullable, tag, default, inner)


def _read() -> dict[tuple[int, int, str], bytes]:
    lines = {}
    # The loader also reads from a zip archive, in which a pipeline ships kproc to a Spark cluster.
    for line in globals()["__loader__"].get_data(str(PATH)).splitlines():
        key, version, direction, _ = line[1:].split(b",", 3)
        lines[int(key), int(version), direction[1:-1].decode()] = line
    return lines


_LINES: Final = _read()


def supported_versions(api_key: int) -> range:
    """Return the versions of an API that can be decoded and encoded, an empty range for an unknown API."""
    return _VERSIONS.get(api_key, range(0))


def _find_versions() -> dict[int, range]:
    found: dict[int, list[int]] = {}
    for key, version, direction in _LINES:
        if direction == "request":
            found.setdefault(key, []).append(version)
    return {key: range(min(versions), max(versions) + 1) for key, versions in found.items()}


_VERSIONS: Final = _find_versions()


def find_schema(api_key: int, version: int, direction: str) -> Schema | None:
    """Return the schema of one version, or None if it does not exist."""
    line = _LINES.get((int(api_key), version, direction))
    return None if line is None else decode_schema(orjson.loads(line)[3])
