"""The schemas are Kafka's: compared with the JSON definitions that kafka-python ships, and with those of Kafka's jars.

The codec and kio could agree on a mistake; these files are Kafka's own and were read by somebody else.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID
from kproc.wire.schema import Field, Schema
from tests.support import kafka_jars

# kio leaves the default null of these arrays out and takes an empty one. Callers set these fields.
_HEARTBEAT_ARRAYS = {
    "Request": ("ActiveTasks", "StandbyTasks", "WarmupTasks", "ClientTags", "TaskOffsets", "TaskEndOffsets"),
    "Response": ("ActiveTasks", "StandbyTasks", "WarmupTasks", "PartitionsByUserEndpoint"),
}
KNOWN_GAPS = {
    "ListPartitionReassignmentsRequest.Topics default",
    "ConsumerGroupHeartbeatRequest.TopicPartitions default",
    "StreamsGroupDescribeResponse.Groups.Topology.Subtopologies default",
    *(
        f"StreamsGroupHeartbeat{direction}.{name} default"
        for direction, names in _HEARTBEAT_ARRAYS.items()
        for name in names
    ),
}


def definitions_of_kafka_python() -> list[str]:
    kafka = pytest.importorskip("kafka")
    folder = Path(kafka.__file__).parent / "protocol" / "schemas" / "resources"
    return [file.read_text() for file in sorted([*folder.glob("*Request.json"), *folder.glob("*Response.json")])]


def definitions_of_jar(version: str) -> list[str]:
    """Return the definitions in the jar of Kafka's clients, if tests.support.kafka_jars has fetched it."""
    jar = kafka_jars.jars_dir(version) / f"kafka-clients-{version}.jar"
    if not jar.exists():
        pytest.skip(f"{jar} does not exist: KPROC_KAFKA_VERSION={version} python -m tests.support.kafka_jars")
    with ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if re.search(r"/message/\w+(Request|Response)\.json$", name)]
        return [archive.read(name).decode() for name in names]


def parsed(texts: list[str]) -> list[dict[str, Any]]:
    """Return every request and response definition of an API that exists, without comments."""
    loaded = [json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)) for text in texts]
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


def compare(definitions: list[dict[str, Any]]) -> Comparison:
    comparison = Comparison()
    for definition in definitions:
        for version in codec.supported_versions(definition["apiKey"]):
            if is_within(definition["validVersions"], version):
                comparison.message(definition, version)
    assert comparison.differences <= KNOWN_GAPS, sorted(comparison.differences)
    assert comparison.fields > 3_000
    return comparison


def test_schema_fields_equal_kafka_json_in_every_version():
    texts = definitions_of_kafka_python()
    if not texts:
        pytest.skip("this kafka-python has no message definitions")
    compare(parsed(texts))


@pytest.mark.parametrize("kafka_version", ["4.3.0", "4.4.0"])
def test_schema_fields_equal_definitions_of_kafka_jar(kafka_version):
    definitions = parsed(definitions_of_jar(kafka_version))
    compare(definitions)
    for definition in definitions:
        newest = int(definition["validVersions"].rpartition("-")[2])
        assert newest in codec.supported_versions(definition["apiKey"]), definition["name"]
