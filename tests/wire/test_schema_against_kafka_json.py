"""kio's schema, as codec.py reads it, is Kafka's: compared with the JSON definitions kafka-python ships.

The codec and kio could agree on a mistake; these files are Kafka's own and were read by somebody else.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID
from kproc.wire.schema import Field, Schema

# kio leaves the default of this one field out; only our own client could ever notice.
KNOWN_GAPS = {"ListPartitionReassignmentsRequest.Topics default"}


def definitions() -> list[dict[str, Any]]:
    """Every request and response definition."""
    kafka = pytest.importorskip("kafka")
    folder = Path(kafka.__file__).parent / "protocol" / "schemas" / "resources"
    files = sorted([*folder.glob("*Request.json"), *folder.glob("*Response.json")])
    if not files:
        pytest.skip("this kafka-python has no message definitions")
    loaded = [json.loads(re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.MULTILINE)) for file in files]
    return [definition for definition in loaded if definition.get("apiKey") in set(ApiKey)]


def is_within(versions: str | None, version: int) -> bool:
    if not versions or versions == "none":
        return False
    lowest, _, highest = versions.partition("-")
    if lowest.endswith("+"):
        return version >= int(lowest[:-1])
    return int(lowest) <= version <= int(highest or lowest)


def expected_default(declared: Any, kind: str, *, is_nullable: bool) -> Any:
    if kind in ("string", "bytes"):
        if declared == "null" or (declared is None and is_nullable):
            return None
        return declared if declared is not None else {"string": "", "bytes": b""}[kind]
    if kind == "bool":
        return str(declared).lower() == "true"
    if kind == "uuid":
        return ZERO_UUID
    return int(str(declared), 0) if declared not in (None, "") else 0


class Comparison:
    """Collects what differs, so that a failure shows all of it."""

    def __init__(self) -> None:
        self.differences: set[str] = set()
        self.fields = 0

    def message(self, definition: dict[str, Any], version: int) -> None:
        structs = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
        schema = codec.schema_of(definition["apiKey"], version, definition["type"])
        if schema.is_flexible != is_within(definition["flexibleVersions"], version):
            self.differences.add(f"{definition['name']} v{version} flexible")
        self.struct(definition["fields"], schema, structs, definition["name"], version)

    def struct(
        self, fields: list[dict[str, Any]], schema: Schema, structs: Any, path: str, version: int
    ) -> None:
        present = [field for field in fields if is_within(field.get("versions"), version)]
        tags = {field["tag"]: field for field in present if is_within(field.get("taggedVersions"), version)}
        plain = [field for field in present if field not in tags.values()]
        ours = [field for field in schema.fields if field.tag is None]
        our_tags = {field.tag: field for field in schema.fields if field.tag is not None}
        if len(plain) != len(ours) or tags.keys() != our_tags.keys():
            self.differences.add(f"{path} v{version} fields")
            return
        pairs = [*zip(plain, ours, strict=True), *((field, our_tags[tag]) for tag, field in tags.items())]
        for declared, field in pairs:
            self.field(declared, field, structs, f"{path}.{declared['name']}", version)

    def field(self, declared: dict[str, Any], field: Field, structs: Any, path: str, version: int) -> None:
        self.fields += 1
        kafka_type = declared["type"].removeprefix("[]")
        is_struct = kafka_type[0].isupper()
        kind = "struct" if is_struct else "bytes" if kafka_type == "records" else kafka_type
        is_array = declared["type"].startswith("[]")
        is_nullable = is_within(declared.get("nullableVersions"), version)
        if (kind, is_array) != (field.kind, field.is_array):
            self.differences.add(f"{path} type")
        if (kind in ("string", "bytes", "struct") or is_array) and is_nullable != field.is_nullable:
            self.differences.add(f"{path} v{version} nullable")
        default = declared.get("default")
        if is_array or is_struct:
            same = (default == "null") == (field.default is None)
        else:
            same = field.default == expected_default(default, kind, is_nullable=is_nullable)
        if not same:
            self.differences.add(f"{path} default")
        if is_struct:
            assert field.struct is not None
            self.struct(declared.get("fields") or structs[kafka_type], field.struct, structs, path, version)


def test_schema_fields_equal_kafka_json_in_every_version():
    comparison = Comparison()
    for definition in definitions():
        for version in codec.supported_versions(definition["apiKey"]):
            if is_within(definition["validVersions"], version):
                comparison.message(definition, version)
    assert comparison.differences <= KNOWN_GAPS, sorted(comparison.differences)
    assert comparison.fields > 3_000
