"""The records of `__transaction_state`, byte for byte as Kafka 4.3 writes them, so that its tools read them.

    key    version int16 = 0 | transactional id string
    value  version int16 | producer id int64 | epoch int16 | timeout ms int32 | state int8
           | nullable array of (topic string, array of partition int32) | updated ms int64 | started ms int64
           1: flexible; tagged fields 0 previous producer id int64, 1 next producer id int64, 2 client version int16

A null value is a tombstone. The array is null in the state Empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from struct import Struct
from struct import error as StructError
from typing import Final

from kproc.broker.transaction.state import NO_ID, PartitionKey, State, Transaction
from kproc.common.errors import Corrupt, ProtocolError
from kproc.wire.primitives import (
    INT16,
    INT32,
    INT64,
    encode_compact_string,
    encode_string,
    encode_unsigned_varint,
    read_compact_length,
    read_compact_string,
    read_string,
    read_unsigned_varint,
    skip_tagged_fields,
)

PLAIN: Final = 0
FLEXIBLE: Final = 1

_KEY_VERSION: Final = 0
_HEAD: Final = Struct(">hqhib")  # Up to the state.
_TIMES: Final = Struct(">qq")
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_NO_TAGS: Final = b"\0"


class UnknownKey(Exception):
    """The key has a version of a newer broker. Such a record is skipped."""


# ---- writing ----------------------------------------------------------------------------------------------


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id's records."""
    return INT16.pack(_KEY_VERSION) + encode_string(transactional_id)


def encode_value(transaction: Transaction, version: int) -> bytes:
    """Return the value of a record with a transactional id's state. `version` is PLAIN or FLEXIBLE."""
    encoded = bytearray(
        _HEAD.pack(
            version,
            transaction.producer_id,
            transaction.epoch,
            transaction.timeout_ms,
            transaction.state,
        )
    )
    is_flexible = version >= FLEXIBLE
    # As in Kafka's TransactionLog, an id without a transaction has null partitions, not an empty list.
    if transaction.state == State.EMPTY:
        encoded += b"\0" if is_flexible else INT32.pack(-1)
    else:
        topics = [
            (topic, [index for _, index in keys])
            for topic, keys in groupby(sorted(transaction.partitions), key=lambda key: key[0])
        ]
        encode = _encode_flexible if is_flexible else _encode_plain
        encode(encoded, topics)
    encoded += _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    if is_flexible:
        _encode_tags(encoded, transaction)
    return bytes(encoded)


def _encode_plain(encoded: bytearray, topics: list[tuple[str, list[int]]]) -> None:
    encoded += INT32.pack(len(topics))
    for topic, indexes in topics:
        encoded += encode_string(topic)
        encoded += INT32.pack(len(indexes))
        for index in indexes:
            encoded += INT32.pack(index)


def _encode_flexible(encoded: bytearray, topics: list[tuple[str, list[int]]]) -> None:
    encoded += encode_unsigned_varint(len(topics) + 1)
    for topic, indexes in topics:
        encoded += encode_compact_string(topic)
        encoded += encode_unsigned_varint(len(indexes) + 1)
        for index in indexes:
            encoded += INT32.pack(index)
        encoded += _NO_TAGS


def _encode_tags(encoded: bytearray, transaction: Transaction) -> None:
    tags = [
        (_PREVIOUS_ID_TAG, INT64, transaction.previous_producer_id, NO_ID),
        (_NEXT_ID_TAG, INT64, transaction.next_producer_id, NO_ID),
        (_CLIENT_VERSION_TAG, INT16, transaction.client_version, 0),
    ]
    set_tags = [(tag, layout.pack(value)) for tag, layout, value, default in tags if value != default]
    encoded += encode_unsigned_varint(len(set_tags))
    for tag, data in set_tags:
        encoded += encode_unsigned_varint(tag) + encode_unsigned_varint(len(data)) + data


# ---- reading ----------------------------------------------------------------------------------------------


def decode_record(key: bytes | None, value: bytes | None) -> tuple[str, Transaction | None]:
    """Decode a transactional id and its state.

    The state is None for a tombstone. Raises Corrupt for bytes that no version of Kafka writes, and UnknownKey for a
    key version of a newer broker.
    """
    try:
        # Only a foreign program writes a record without a key, because compaction removes such records.
        if key is None:
            raise ProtocolError("a record of __transaction_state has no key")
        (version,) = INT16.unpack_from(key)
        if version != _KEY_VERSION:
            raise UnknownKey(f"the record's key has the unknown version {version}")
        name, _ = read_string(key, INT16.size)
        if name is None:
            raise ProtocolError("the transactional id in the record's key is null")
        return name, None if value is None else _decode_value(value)
    except (ProtocolError, StructError, IndexError, ValueError) as error:
        raise Corrupt(f"cannot decode a record of __transaction_state: {error}") from error


def _decode_value(value: bytes) -> Transaction:
    version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(value)
    if version not in (PLAIN, FLEXIBLE):
        raise ProtocolError(f"the record's value has the unknown version {version}")
    position = _HEAD.size
    partitions, position = (_read_flexible if version else _read_plain)(value, position)
    updated_ms, started_ms = _TIMES.unpack_from(value, position)
    tags = _read_tags(value, position + _TIMES.size) if version else {}
    return Transaction(
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=State(state),
        partitions=frozenset(partitions),
        updated_ms=updated_ms,
        started_ms=started_ms,
        previous_producer_id=tags.get(_PREVIOUS_ID_TAG, NO_ID),
        next_producer_id=tags.get(_NEXT_ID_TAG, NO_ID),
        client_version=tags.get(_CLIENT_VERSION_TAG, 0),
    )


def _checked(count: int, data: bytes, position: int) -> int:
    """Validate the count of an array whose elements have at least one byte each. Return 0 for null."""
    # Without this check a damaged count would cause up to 2^31 iterations.
    if count > len(data) - position or count < -1:
        raise ProtocolError(
            f"an array in the record's value claims {count} entries, but {len(data) - position} bytes remain"
        )
    return max(count, 0)


def _read_plain(value: bytes, position: int) -> tuple[list[PartitionKey], int]:
    keys: list[PartitionKey] = []
    topics = _checked(INT32.unpack_from(value, position)[0], value, position)
    position += INT32.size
    for _ in range(topics):
        topic, position = read_string(value, position)
        count = _checked(INT32.unpack_from(value, position)[0], value, position)
        position += INT32.size
        keys += _keys(topic, value, position, count)
        position += count * INT32.size
    return keys, position


def _read_flexible(value: bytes, position: int) -> tuple[list[PartitionKey], int]:
    keys: list[PartitionKey] = []
    topics, position = read_compact_length(value, position)
    for _ in range(_checked(topics, value, position)):
        topic, position = read_compact_string(value, position)
        count, position = read_compact_length(value, position)
        count = _checked(count, value, position)
        keys += _keys(topic, value, position, count)
        position = skip_tagged_fields(value, position + count * INT32.size)
    return keys, position


def _keys(topic: str | None, value: bytes, position: int, count: int) -> Iterable[PartitionKey]:
    if topic is None:
        raise ProtocolError("a topic name in the record's value is null")
    return [(topic, INT32.unpack_from(value, position + n * INT32.size)[0]) for n in range(count)]


def _read_tags(value: bytes, position: int) -> dict[int, int]:
    """Return the values of the known tagged fields by tag. Skip the tags of a newer broker."""
    tags: dict[int, int] = {}
    count, position = read_unsigned_varint(value, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(value, position)
        size, position = read_unsigned_varint(value, position)
        data = value[position : position + size]
        position += size
        # The value was cut. A missing next producer id would let a later transaction reuse an exhausted
        # epoch.
        if len(data) < size:
            raise ProtocolError(f"tagged field {tag} runs past the end of the record's value")
        if tag in (_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG):
            tags[tag] = int.from_bytes(data, "big", signed=True)
    return tags
