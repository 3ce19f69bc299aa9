"""The records of `__consumer_offsets`, byte for byte as Kafka 4.3 writes them, so that its tools read them.

    key    type int16 | fields
             1  group string | topic string | partition int32     an offset of a group (0: the same, before 0.9)
             2  group string                                       a group of the classic protocol
    value  version int16 | fields; a null value is a tombstone

    OffsetCommitValue    v0, v2, v3  offset int64 | leader epoch int32 (v3) | metadata string | committed int64
                         v1          the same without an epoch, and | expires int64
                         v4          v3, flexible; tagged field 0 is the topic's id
    GroupMetadataValue   v0-3        protocol type string | generation int32 | protocol, leader nullable string
                                     | state since int64 (v2) | count int32 | members
                         v4          v3, flexible
      member             member id string | instance id nullable string (v3) | client id, client host string
                         | rebalance timeout int32 (v1) | session timeout int32 | subscription, assignment bytes

As in Kafka 4.3, offsets are written as version 4, or 1 if the client has set an expiry time; groups are written as
version 3. Key types above 2 belong to other group protocols (KIP-848, 932, 1071): decode_record returns an
UnknownGroupRecord for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from kproc.common.errors import Corrupt, ProtocolError
from kproc.wire.primitives import (
    INT16,
    INT32,
    INT64,
    ZERO_UUID,
    encode_compact_string,
    encode_string,
    read_compact_length,
    read_compact_string,
    read_string,
    read_unsigned_varint,
    skip_tagged_fields,
)

NO_EXPIRY: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1

# The versions of the keys in __consumer_offsets: OffsetCommitKey has 0 and 1, GroupMetadataKey has 2.
_LEGACY_OFFSET: Final = 0
_OFFSET: Final = 1
_GROUP: Final = 2
_VALUE_VERSION_MAX: Final = 4
_FLEXIBLE_SINCE: Final = 4
_OFFSET_VALUE: Final = 4
_OFFSET_VALUE_WITH_EXPIRY: Final = 1
_GROUP_VALUE: Final = 3
_TOPIC_ID_TAG: Final = 0
_OFFSET_AND_EPOCH: Final = Struct(">hqi")
# The start of the tagged fields of an offset's value: 1 field, tag 0, 16 bytes. The topic id follows.
_TOPIC_ID_HEAD: Final = bytes((1, _TOPIC_ID_TAG, len(ZERO_UUID)))
_NO_TAGS: Final = b"\0"
# The rebalance and the session timeout of a member, and the length of its subscription.
_TIMEOUTS_AND_LENGTH: Final = Struct(">iii")
# Layout of a value of version 4 with a topic id and without metadata, the most frequent one.
_USUAL_OFFSET_VALUE: Final = Struct(">hqiBq3s16s")

ReadString = Callable[[bytes, int], tuple[str | None, int]]


class OffsetKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key of a committed offset: the group and the partition (OffsetCommitKey)."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """The offset that a group committed for one partition. After its record was appended, only a load changes it."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY  # Only clients before OffsetCommit v5 can set it.
    topic_id: bytes = ZERO_UUID  # Zero in records from before Kafka 4.1.
    record_offset: int = -1  # The offset of its record in the log. It is not part of the record.


class MemberSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a classic group as of the last completed rebalance (MemberMetadata in Kafka's GroupMetadataValue)."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes  # The member's metadata for the chosen protocol.
    assignment: bytes


class GroupSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A classic group as of the last completed rebalance. protocol_type is "" if the group only stores offsets."""

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    current_state_timestamp_ms: int  # Wall clock. -1 in values of version 0 and 1, which lack it.
    members: tuple[MemberSnapshot, ...]


class UnknownGroupRecord(msgspec.Struct, frozen=True, gc=False):
    """A record whose key type this broker does not know: of a newer Kafka, or of another group protocol."""

    key_type: int


# The key of a group of the classic protocol is its id.
Decoded = tuple[OffsetKey, CommittedOffset | None] | tuple[str, GroupSnapshot | None] | UnknownGroupRecord


# ---- writing ----------------------------------------------------------------------------------------------


def encode_offset_key(key: OffsetKey) -> bytes:
    """Return the key of an offset's record."""
    return (
        INT16.pack(_OFFSET)
        + encode_string(key.group_id)
        + encode_string(key.topic)
        + INT32.pack(key.partition)
    )


def encode_offset_value(value: CommittedOffset) -> bytes:
    """Return the value of an offset's record."""
    # Only version 1 of the value has an expiry (OffsetCommitValue).
    if value.expire_timestamp_ms != NO_EXPIRY:
        return (
            INT16.pack(_OFFSET_VALUE_WITH_EXPIRY)
            + INT64.pack(value.offset)
            + encode_string(value.metadata)
            + INT64.pack(value.commit_timestamp_ms)
            + INT64.pack(value.expire_timestamp_ms)
        )
    return (
        _OFFSET_AND_EPOCH.pack(_OFFSET_VALUE, value.offset, value.leader_epoch)
        + encode_compact_string(value.metadata)
        + INT64.pack(value.commit_timestamp_ms)
        + (_NO_TAGS if value.topic_id == ZERO_UUID else _TOPIC_ID_HEAD + value.topic_id)
    )


def encode_group_key(group_id: str) -> bytes:
    """Return the key of a group's record."""
    return INT16.pack(_GROUP) + encode_string(group_id)


# Version 3 and not 4, because tools before Kafka 4 cannot read the flexible version, and it has no further field.
def encode_group_value(group: GroupSnapshot) -> bytes:
    """Return the value of a group's record."""
    encoded = bytearray(INT16.pack(_GROUP_VALUE))
    encoded += encode_string(group.protocol_type)
    encoded += INT32.pack(group.generation)
    encoded += _nullable_string(group.protocol_name)
    encoded += _nullable_string(group.leader)
    encoded += INT64.pack(group.current_state_timestamp_ms)
    encoded += INT32.pack(len(group.members))
    for member in group.members:
        encoded += encode_string(member.member_id)
        encoded += _nullable_string(member.group_instance_id)
        encoded += encode_string(member.client_id)
        encoded += encode_string(member.client_host)
        subscription, assignment = member.subscription, member.assignment
        encoded += _TIMEOUTS_AND_LENGTH.pack(
            member.rebalance_timeout_ms, member.session_timeout_ms, len(subscription)
        )
        encoded += subscription
        encoded += INT32.pack(len(assignment))
        encoded += assignment
    return bytes(encoded)


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else encode_string(text)


# ---- reading ----------------------------------------------------------------------------------------------


def decode_record(key: bytes | None, value: bytes | None) -> Decoded:
    """Decode the key and the value of a record. Raises Corrupt for bytes that no version of Kafka writes."""
    try:
        # Only a foreign program writes a record without a key, because compaction removes such records.
        if key is None:
            raise ProtocolError("a record of __consumer_offsets has no key")
        (key_type,) = INT16.unpack_from(key)
        # Kafka before 0.9 wrote keys of version 0. Their layout is the same, and Kafka's decoder accepts both.
        if key_type in (_OFFSET, _LEGACY_OFFSET):
            return _read_offset_key(key), None if value is None else _read_offset_value(value)
        if key_type == _GROUP:
            group_id, _ = _string(read_string, key, INT16.size)
            return group_id, None if value is None else _read_group_value(group_id, value)
        return UnknownGroupRecord(key_type)
    except (ProtocolError, StructError, IndexError, UnicodeDecodeError) as error:
        raise Corrupt(f"cannot decode a record of __consumer_offsets: {error}") from error


def _read_offset_key(key: bytes) -> OffsetKey:
    group_id, topic = _read_names(key[: -INT32.size])
    return OffsetKey(group_id, topic, INT32.unpack_from(key, len(key) - INT32.size)[0])


# The keys of a group's partitions follow one another. Only a few are cached, because a name can be 32 kB long.
@lru_cache(maxsize=16)
def _read_names(names: bytes) -> tuple[str, str]:
    """Return (group, topic) of an offset's key. `names`: the key without its last field, the partition."""
    group_id, position = _string(read_string, names, INT16.size)
    topic, position = _string(read_string, names, position)
    if position != len(names):
        raise ProtocolError(
            f"{len(names) - position} unexpected bytes between topic and partition in the key of a committed offset"
        )
    return group_id, topic


def _read_offset_value(value: bytes) -> CommittedOffset:
    if len(value) == _USUAL_OFFSET_VALUE.size:
        version, offset, epoch, metadata_length, committed, tags, topic_id = _USUAL_OFFSET_VALUE.unpack(value)
        if version == _OFFSET_VALUE and metadata_length == 1 and tags == _TOPIC_ID_HEAD:
            return CommittedOffset(
                offset=offset, leader_epoch=epoch, commit_timestamp_ms=committed, topic_id=topic_id
            )
    version = _value_version(value)
    (offset,) = INT64.unpack_from(value, INT16.size)
    position = INT16.size + INT64.size
    epoch, expires, topic_id = NO_EPOCH, NO_EXPIRY, ZERO_UUID
    if version >= 3:
        (epoch,) = INT32.unpack_from(value, position)
        position += INT32.size
    metadata, position = _string(_string_reader(version), value, position)
    (committed,) = INT64.unpack_from(value, position)
    position += INT64.size
    if version == _OFFSET_VALUE_WITH_EXPIRY:
        (expires,) = INT64.unpack_from(value, position)
    elif version >= _FLEXIBLE_SINCE:
        topic_id = _read_topic_id(value, position)
    return CommittedOffset(
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_timestamp_ms=committed,
        expire_timestamp_ms=expires,
        topic_id=topic_id,
    )


def _read_topic_id(value: bytes, position: int) -> bytes:
    """Return tagged field 0 of a flexible value. Other fields are of a newer Kafka and are skipped."""
    count, position = read_unsigned_varint(value, position)
    topic_id = ZERO_UUID
    for _ in range(count):
        tag, position = read_unsigned_varint(value, position)
        size, position = read_unsigned_varint(value, position)
        data = value[position : position + size]
        position += size
        # KIP-482 lets a reader skip tagged fields that it does not know. A known one with another size is damage.
        if len(data) < size or (tag == _TOPIC_ID_TAG and size != len(ZERO_UUID)):
            raise ProtocolError(
                f"tagged field {tag} in the value of a committed offset has a wrong length of {size} bytes"
            )
        if tag == _TOPIC_ID_TAG:
            topic_id = data
    return topic_id


def _read_group_value(group_id: str, value: bytes) -> GroupSnapshot:
    version = _value_version(value)
    read = _string_reader(version)
    protocol_type, position = _string(read, value, INT16.size)
    (generation,) = INT32.unpack_from(value, position)
    protocol, position = read(value, position + INT32.size)
    leader, position = read(value, position)
    since = NO_TIME
    if version >= 2:
        (since,) = INT64.unpack_from(value, position)
        position += INT64.size
    count, position = _read_length(value, position, version)
    members: list[MemberSnapshot] = []
    for _ in range(count):
        member, position = _read_member(value, position, version)
        members.append(member)
    return GroupSnapshot(
        group_id=group_id,
        protocol_type=protocol_type,
        generation=generation,
        protocol_name=protocol,
        leader=leader,
        current_state_timestamp_ms=since,
        members=tuple(members),
    )


def _read_member(value: bytes, position: int, version: int) -> tuple[MemberSnapshot, int]:
    read = _string_reader(version)
    member_id, position = _string(read, value, position)
    instance_id = None
    if version >= 3:
        instance_id, position = read(value, position)
    client_id, position = _string(read, value, position)
    client_host, position = _string(read, value, position)
    rebalance_timeout_ms = None
    if version >= 1:
        (rebalance_timeout_ms,) = INT32.unpack_from(value, position)
        position += INT32.size
    (session_timeout_ms,) = INT32.unpack_from(value, position)
    position += INT32.size
    subscription, position = _read_bytes(value, position, version)
    assignment, position = _read_bytes(value, position, version)
    if version >= _FLEXIBLE_SINCE:
        position = skip_tagged_fields(value, position)
    member = MemberSnapshot(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # Before version 1 the session timeout is also the rebalance timeout (KIP-62).
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )
    return member, position


def _value_version(value: bytes) -> int:
    version: int = INT16.unpack_from(value)[0]
    # KIP-915 lets Kafka read a newer flexible value and skip its fields. Rejecting it here is safe: the coordinator
    # does not load half a state.
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise ProtocolError(
            f"the record's value has version {version}, but the newest known version is {_VALUE_VERSION_MAX}"
        )
    return version


def _string_reader(version: int) -> ReadString:
    return read_compact_string if version >= _FLEXIBLE_SINCE else read_string


def _string(read: ReadString, data: bytes, position: int) -> tuple[str, int]:
    """Read a string that must not be null."""
    text, position = read(data, position)
    if text is None:
        raise ProtocolError("a string of the record is null, but its field is not nullable")
    return text, position


def _read_length(data: bytes, position: int, version: int) -> tuple[int, int]:
    if version >= _FLEXIBLE_SINCE:
        length, position = read_compact_length(data, position)
    else:
        (length,) = INT32.unpack_from(data, position)
        position += INT32.size
    # Check a length before it is used: a slice beyond the end would silently be shorter.
    if not 0 <= length <= len(data) - position:
        raise ProtocolError(
            f"a field of the value has a length of {length} bytes, but {len(data) - position} bytes remain"
        )
    return length, position


def _read_bytes(data: bytes, position: int, version: int) -> tuple[bytes, int]:
    length, position = _read_length(data, position, version)
    return data[position : position + length], position + length
