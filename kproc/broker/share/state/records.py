"""The records of `__share_group_state`, byte for byte as Kafka 4.4 writes them, so that its tools read them.

    key    type int16 | group string | topic id uuid | partition int32        not flexible
    value  version int16, which is 0 | fields of the schemas below             flexible

| type | record | value |
|---:|---|---|
| 0 | ShareSnapshot | the whole state of a share partition; without a value, the share partition is deleted |
| 1 | ShareUpdate | the epoch of the snapshot that it builds on, and the changed batches |

The topic is not compacted, because an update does not replace earlier ones. The coordinator deletes the records below
the oldest snapshot that it needs.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from kproc.broker.coordinator.record_codec import reject_field, struct_array, value_schema
from kproc.broker.share.state.messages import NO_COUNT, SharePartitionKey, StateBatch
from kproc.common.errors import Corrupt, ProtocolError
from kproc.wire.primitives import INT16, encode_string, read_string
from kproc.wire.schema import Field, Reader, Schema, reader_of
from kproc.wire.schema_writer import Writer, writer_of


class ShareStateRecordType(IntEnum):
    """The types of the records' keys."""

    SNAPSHOT = 0
    UPDATE = 1


class Snapshot(msgspec.Struct, frozen=True):
    """Value of record type 0, and the state of a share partition in memory, to which later updates were applied."""

    snapshot_epoch: int  # The number of earlier snapshots of the share partition.
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    created_ms: int  # The time of the last snapshot that was written because of a request.
    # Later than `created_ms` if the snapshot was repeated, because the share partition was cold.
    written_ms: int
    batches: tuple[StateBatch, ...] = ()


class Update(msgspec.Struct, frozen=True):
    """Value of record type 1: the changed batches, and the present values of the other fields."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...] = ()


ShareRecordValue = Snapshot | Update


class UnknownRecord(Exception):
    """The record's key has a type that only a newer broker knows. The record is skipped."""


# ---- schemas, in the order of Kafka's message definitions --------------------------------------------------


_BATCH: Final = value_schema(
    "batches",
    Field("first", "int64"),
    Field("last", "int64"),
    Field("state", "int8"),
    Field("delivery_count", "int16"),
)
# KIP-1226 added this field to version 0 as a tagged field.
_COUNT: Final = Field("delivery_complete_count", "int32", tag=0, default=NO_COUNT)
_SCHEMAS: Final[dict[ShareStateRecordType, Schema]] = {
    ShareStateRecordType.SNAPSHOT: value_schema(
        "Snapshot",
        Field("snapshot_epoch", "int32"),
        Field("state_epoch", "int32"),
        Field("leader_epoch", "int32"),
        Field("start_offset", "int64"),
        _COUNT,
        Field("created_ms", "int64"),
        Field("written_ms", "int64"),
        struct_array("batches", _BATCH),
    ),
    ShareStateRecordType.UPDATE: value_schema(
        "Update",
        Field("snapshot_epoch", "int32"),
        Field("leader_epoch", "int32"),
        Field("start_offset", "int64"),
        _COUNT,
        struct_array("batches", _BATCH),
    ),
}


_READERS: Final[dict[ShareStateRecordType, Reader]] = {
    each: reader_of(schema) for each, schema in _SCHEMAS.items()
}
_WRITERS: Final[dict[ShareStateRecordType, Writer]] = {
    each: writer_of(schema, reject_field) for each, schema in _SCHEMAS.items()
}
_VERSION: Final = 0
_TYPES: Final = frozenset(map(int, ShareStateRecordType))
_PLACE: Final = Struct(">16si")  # In a record's key: topic id, partition.


# ---- writing -----------------------------------------------------------------------------------------------


def encode_share_key(record_type: ShareStateRecordType, key: SharePartitionKey) -> bytes:
    """Return the key of a share partition's records of one type."""
    place = _PLACE.pack(key.topic_id, key.partition)
    return INT16.pack(record_type) + encode_string(key.group_id) + place


def encode_share_record(key: SharePartitionKey, value: ShareRecordValue) -> tuple[bytes, bytes]:
    """Return the bytes of a record's key and value."""
    record_type = ShareStateRecordType.UPDATE if isinstance(value, Update) else ShareStateRecordType.SNAPSHOT
    fields = msgspec.structs.asdict(value)
    fields["batches"] = [msgspec.structs.asdict(each) for each in value.batches]
    encoded = bytearray(INT16.pack(_VERSION))
    _WRITERS[record_type](encoded, fields)
    return encode_share_key(record_type, key), bytes(encoded)


def encode_tombstone(key: SharePartitionKey) -> tuple[bytes, None]:
    """Return the record that deletes a share partition's state."""
    return encode_share_key(ShareStateRecordType.SNAPSHOT, key), None


# ---- reading -----------------------------------------------------------------------------------------------


def base_key_of(key: bytes) -> bytes | None:
    """Return the key of the snapshot on which an update builds. None if the key is not an update's."""
    if key[: INT16.size] == _UPDATE_PREFIX:
        return _SNAPSHOT_PREFIX + key[INT16.size :]
    return None


_SNAPSHOT_PREFIX: Final = INT16.pack(ShareStateRecordType.SNAPSHOT)
_UPDATE_PREFIX: Final = INT16.pack(ShareStateRecordType.UPDATE)


def decode_share_record(
    key: bytes | None, value: bytes | None
) -> tuple[SharePartitionKey, ShareRecordValue | None]:
    """Decode a record. The value is None for a tombstone.

    Raises Corrupt for bytes that no version of Kafka writes, and UnknownRecord.
    """
    try:
        if key is None:
            raise ProtocolError("a record of __share_group_state has no key")
        (number,) = INT16.unpack_from(key)
        # After a downgrade the log can have records of a newer Kafka. They must not prevent the load.
        if number not in _TYPES:
            raise UnknownRecord(f"the record's key has the unknown type {number}")
        record_type = ShareStateRecordType(number)
        share_key = _read_key(key)
        if value is None:
            return share_key, None
        (version,) = INT16.unpack_from(value)
        # The layout of another version is unknown. If the record were skipped, the state would be wrong.
        if version != _VERSION:
            raise ProtocolError(f"the record's value has the unknown version {version}")
        fields, _position = _READERS[record_type](value, INT16.size)
        fields["batches"] = tuple(StateBatch(**each) for each in fields["batches"])
        made = Update(**fields) if record_type is ShareStateRecordType.UPDATE else Snapshot(**fields)
        return share_key, made
    except (ProtocolError, StructError, IndexError, UnicodeDecodeError) as error:
        raise Corrupt(f"cannot decode a record of __share_group_state: {error}") from error


def _read_key(key: bytes) -> SharePartitionKey:
    group_id, position = read_string(key, INT16.size)
    if group_id is None:
        raise ProtocolError("the group id in the record's key is null")
    topic_id, partition = _PLACE.unpack_from(key, position)
    if position + _PLACE.size != len(key):
        raise ProtocolError(
            f"{len(key) - position - _PLACE.size} surplus bytes at the end of the record's key"
        )
    return SharePartitionKey(group_id, topic_id, partition)
