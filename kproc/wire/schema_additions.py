"""Versions of messages that the package kio lacks: the ones that Apache Kafka 4.4 added.

Each version is written as the changes from the version before it. schema_source.py merges them into schemas.jsonl.
A test compares them with the definitions in Kafka's own jar. Remove a row when kio has its version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID
from kproc.wire.schema import Field, Schema

# Path of a field in the previous version -> the fields that replace it. None stands for the old field itself: (None,
# field) inserts a field after it, and () removes it.
Changes = Mapping[str, tuple[Field | None, ...]]

_UNCHANGED: Final[Changes] = {}


def _plain(name: str, kind: str, default: Any) -> Field:
    return Field(name, kind, is_array=False, is_nullable=False, tag=None, default=default)


def _text(name: str) -> Field:
    return _plain(name, "string", "")


def _nullable_text(name: str) -> Field:
    return Field(name, "string", is_array=False, is_nullable=True, tag=None, default=None)


def _texts(name: str) -> Field:
    return Field(name, "string", is_array=True, is_nullable=False, tag=None, default=[])


def _struct(name: str, *fields: Field) -> Field:
    return replace(_plain(name, "struct", {}), struct=Schema("", is_flexible=True, fields=fields))


def _structs(name: str, *fields: Field) -> Field:
    return replace(_struct(name, *fields), is_array=True, default=[])


# As in kio, a topic id is nullable: None is encoded as the zero UUID.
_TOPIC_ID: Final = Field("topic_id", "uuid", is_array=False, is_nullable=True, tag=None, default=ZERO_UUID)
_NODE: Final = (
    _text("name"),
    _plain("node_type", "int8", 0),
    _texts("source_topics"),
    _nullable_text("sink_topic"),
    _texts("stores"),
    _texts("successors"),
)
_TOPOLOGY: Final = _struct(
    "topology_description",
    _structs("subtopologies", _text("subtopology_id"), _structs("nodes", *_NODE)),
    _structs("global_stores", _struct("source", *_NODE), _struct("processor", *_NODE)),
)

# (API key, version) -> (changes of the request, changes of the response) from the previous version.
CHANGED: Final[Mapping[tuple[ApiKey, int], tuple[Changes, Changes]]] = {
    # KIP-1242: ApiVersions v5 has the cluster and node id of the broker that the client wants to reach.
    (ApiKey.API_VERSIONS, 5): (
        {
            "client_software_version": (
                None,
                _nullable_text("cluster_id"),
                _plain("node_id", "int32", -1),
            )
        },
        _UNCHANGED,
    ),
    # KIP-1319: TxnOffsetCommit v6 has topic ids instead of names.
    (ApiKey.TXN_OFFSET_COMMIT, 6): (
        {
            "generation_id": (_plain("generation_id_or_member_epoch", "int32", -1),),
            "topics.name": (_TOPIC_ID,),
        },
        {"topics.name": (_TOPIC_ID,)},
    ),
    (ApiKey.DELETE_GROUPS, 3): (
        _UNCHANGED,
        {"results.error_code": (None, _nullable_text("error_message"))},
    ),
    # StreamsGroupHeartbeat v1 has an acceptable recovery lag of 64 bits, and can request a description of the topology
    # (KIP-1331).
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1): (
        _UNCHANGED,
        {
            "acceptable_recovery_lag": (),
            "task_offset_interval": (None, _plain("acceptable_recovery_lag", "int64", -1)),
            "warmup_tasks": (None, _plain("topology_description_required", "bool", False)),
        },
    ),
    # StreamsGroupDescribe v1 has descriptions of topologies (KIP-1331) and the assignor (KIP-1357).
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1): (
        {"include_authorized_operations": (None, _plain("include_topology_description", "bool", False))},
        {
            "groups.authorized_operations": (
                None,
                replace(_TOPOLOGY, is_nullable=True, default=None),
                _plain("topology_description_status", "int8", 0),
                _nullable_text("assignor_name"),
            )
        },
    ),
}

# The fields of a response that only says if the request has failed.
_FAILURE: Final = (
    _plain("throttle_time", "int32", 0),
    _plain("error_code", "int16", 0),
    _nullable_text("error_message"),
)
# New APIs that kio lacks, all in version 0: (fields of the request, fields of the response).
NEW: Final[Mapping[ApiKey, tuple[tuple[Field, ...], tuple[Field, ...]]]] = {
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (
        (_text("group_id"), _text("member_id"), _plain("topology_epoch", "int32", 0), _TOPOLOGY),
        _FAILURE,
    ),
    ApiKey.UNREGISTER_CONTROLLER: ((_plain("controller_id", "int32", 0),), _FAILURE),
}


def added_schemas(key: ApiKey, newest: tuple[Schema, Schema] | None) -> Iterator[tuple[int, str, Schema]]:
    """Yield (version, direction, schema) of the versions that kio lacks.

    newest: (request schema, response schema) of kio's newest version, or None for an API that kio lacks.
    """
    if newest is None:
        for direction, fields in zip(("request", "response"), NEW.get(key, ()), strict=False):
            yield (
                0,
                direction,
                _placed(Schema("", is_flexible=True, fields=fields), f"{key.name} {direction} v0"),
            )
        return
    for (changed, version), changes in CHANGED.items():
        if changed != key:
            continue
        for direction, before, change in zip(("request", "response"), newest, changes, strict=True):
            schema = _placed(_changed(before, change), f"{key.name} {direction} v{version}")
            yield version, direction, schema


def _changed(schema: Schema, changes: Changes, prefix: str = "") -> Schema:
    fields: list[Field] = []
    for field in schema.fields:
        path = f"{prefix}{field.name}"
        if field.struct is not None:
            field = replace(field, struct=_changed(field.struct, changes, f"{path}."))
        fields += [field if each is None else each for each in changes.get(path, (None,))]
    return replace(schema, fields=tuple(fields))


def _placed(schema: Schema, path: str) -> Schema:
    """Return the schema with `path` as its path for error messages, and paths below it for all nested structs."""
    fields = tuple(
        field
        if field.struct is None
        else replace(field, struct=_placed(field.struct, f"{path}.{field.name}"))
        for field in schema.fields
    )
    return Schema(path, schema.is_flexible, fields)
