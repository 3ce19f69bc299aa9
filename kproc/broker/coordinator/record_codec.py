"""RecordCodec: the bytes of the records of one group protocol in `__consumer_offsets`.

    key    type int16 | group string | name string, in the types that have one        not flexible
    value  version int16, which is 0 | fields of the type's schema                     flexible

A record without a value removes what its key names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from struct import error as StructError
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kproc.common.errors import Corrupt, ProtocolError
from kproc.wire.primitives import INT16, encode_string, read_string
from kproc.wire.schema import Field, Reader, Schema, reader_of
from kproc.wire.schema_writer import Writer, writer_of

T = TypeVar("T", bound=IntEnum)
V = TypeVar("V")

_VERSION: Final = 0


class RecordKey(NamedTuple):
    """The key of a record. `name` is a member's id or a regular expression; empty in records of the whole group."""

    record_type: IntEnum
    group_id: str
    name: str = ""


class RecordCodec(Generic[T, V]):
    """Encodes and decodes the records of one group protocol.

    `types` are the types of its keys, and `named` those whose keys have a name. A type without a schema is not written
    any more; its values are ignored.
    """

    def __init__(
        self,
        types: type[T],
        named: Collection[T],
        schemas: Mapping[T, Schema],
        fields_of: Callable[[V], Mapping[str, Any]],
        value_of: Callable[[T, dict[str, Any]], V],
    ) -> None:
        self._types = types
        self._numbers = frozenset(map(int, types))
        self._named = frozenset(named)
        self._readers: dict[T, Reader] = {each: reader_of(schema) for each, schema in schemas.items()}
        self._writers: dict[T, Writer] = {
            each: writer_of(schema, reject_field) for each, schema in schemas.items()
        }
        self._fields_of = fields_of
        self._value_of = value_of

    def has(self, key: bytes) -> bool:
        """Return True if the key belongs to a record of this codec's group protocol."""
        return len(key) >= INT16.size and INT16.unpack_from(key)[0] in self._numbers

    def encode(self, key: RecordKey, value: V | None) -> tuple[bytes, bytes | None]:
        """Return the bytes of a record's key and value. A value of None makes a tombstone."""
        record_type = self._types(key.record_type)
        encoded_key = INT16.pack(record_type) + encode_string(key.group_id)
        if record_type in self._named:
            encoded_key += encode_string(key.name)
        if value is None:
            return encoded_key, None
        encoded = bytearray(INT16.pack(_VERSION))
        self._writers[record_type](encoded, self._fields_of(value))
        return encoded_key, bytes(encoded)

    def decode(self, key: bytes, value: bytes | None) -> tuple[RecordKey, V | None]:
        """Decode a record for which `has` is True. The value is None for a tombstone or a type without a schema.

        Raises Corrupt for bytes that Kafka does not write.
        """
        try:
            record_type = self._types(INT16.unpack_from(key)[0])
            record_key = self._read_key(record_type, key)
            reader = self._readers.get(record_type)
            # A tombstone, or a record of a type that Kafka no longer writes, whose value has no meaning any more.
            if value is None or reader is None:
                return record_key, None
            (version,) = INT16.unpack_from(value)
            # KIP-915 keeps newer values readable by adding only tagged fields, so a higher version is another layout.
            if version != _VERSION:
                raise ProtocolError(
                    f"the record's value has version {version}, but only version {_VERSION} is known"
                )
            fields, _position = reader(value, INT16.size)
            return record_key, self._value_of(record_type, fields)
        except (ProtocolError, StructError, IndexError, UnicodeDecodeError) as error:
            raise Corrupt(f"cannot decode a record of a group: {error}") from error

    def _read_key(self, record_type: T, key: bytes) -> RecordKey:
        group_id, position = read_string(key, INT16.size)
        name: str | None = ""
        if record_type in self._named:
            name, position = read_string(key, position)
        if group_id is None or name is None:
            raise ProtocolError("the group id, member id or other name in the record's key is null")
        if position != len(key):
            raise ProtocolError(f"{len(key) - position} surplus bytes at the end of the record's key")
        return RecordKey(record_type, group_id, name)


def reject_field(path: str, name: str) -> None:
    """Raise ValueError for a field that the caller gives and the schema lacks, which is a bug of the caller.

    path: the record type, or a struct in it.
    """
    raise ValueError(f"cannot encode {path}: its schema has no field {name}")


# ---- parts of schemas --------------------------------------------------------------------------------------


def value_schema(path: str, *fields: Field) -> Schema:
    """Return the schema of a record's value, or of a struct in it. `path` is its name in error messages."""
    return Schema(path, True, fields)


def struct_array(name: str, struct: Schema, *, is_nullable: bool = False, tag: int | None = None) -> Field:
    """Return a field that is an array of structs."""
    return Field(name, "struct", is_array=True, is_nullable=is_nullable, tag=tag, struct=struct)


def partitions_schema(path: str, *fields: Field) -> Schema:
    """Return the schema of one topic: its id, its partitions and the additional `fields`."""
    return value_schema(path, Field("topic_id", "uuid"), Field("partitions", "int32", is_array=True), *fields)


def partitions_by_topic(partitions: Mapping[bytes, frozenset[int]]) -> list[dict[str, Any]]:
    """Return partitions by topic id as the list of topics that a record of a group has."""
    return [
        {"topic_id": topic_id, "partitions": sorted(numbers)}
        for topic_id, numbers in sorted(partitions.items())
    ]


def partitions_of_topics(topics: Iterable[Mapping[str, Any]]) -> dict[bytes, frozenset[int]]:
    """Return the partitions of a record's list of topics by topic id: the inverse of `partitions_by_topic`."""
    return {topic["topic_id"]: frozenset(topic["partitions"]) for topic in topics}
