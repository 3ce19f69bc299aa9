"""Decodes and encodes Produce, versions 3-13, by hand. Records stay views of the request's body.

    request    transactional id nullable string | acks int16 | timeout int32 | topics
    topic      name string, from v13 id uuid | partitions
    partition  index int32 | records nullable bytes
    response   topics | throttle time int32 (v1+, behind the topics, unlike every other API)
    partition  index int32 | error int16 | base offset int64 | log append time int64
               | v5: log start offset int64 | v8: record errors array, error message nullable string

Flexible from v9 (KIP-482), topic ids instead of names from v13 (KIP-516), record errors from v8 (KIP-467). Responses
never have the tagged fields current leader and node endpoints (v10, KIP-951), because there is only one broker.

Nearly every request has one topic with one partition, so this shape has its own decoder and encoder. All other requests
fall back to the general ones. A differential test compares both with codec.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from kproc.common.errors import ProtocolError
from kproc.wire.primitives import (
    INT32,
    encode_compact_string,
    encode_string,
    encode_unsigned_varint,
    read_compact_length,
    read_compact_string,
    read_string,
    read_unsigned_varint,
    shortened,
    skip_tags,
)
from kproc.wire.record_batch import MAGIC, TRANSACTIONAL

PRODUCE_VERSIONS: Final = range(3, 14)
_FLEXIBLE: Final = 9
_TOPIC_IDS: Final = 13

# (index, records). None stands for null records, for which the broker responds with INVALID_RECORD.
PartitionRecords = tuple[int, memoryview | None]
# (index of the record in its batch, reason), for KIP-467
RecordErrors = Sequence[tuple[int, str]]
# (index, error code, base offset, log append time in ms, log start offset, error message, record errors)
PartitionAnswer = tuple[int, int, int, int, int, str | None, RecordErrors]
TopicAnswer = tuple[str | None, bytes | None, Sequence[PartitionAnswer]]


class ProduceTopic(msgspec.Struct, gc=False):
    """One topic of a Produce request: a name up to v12, an id of 16 bytes from v13."""

    name: str | None
    topic_id: bytes | None
    partitions: list[PartitionRecords]


class ProduceRequest(msgspec.Struct, gc=False):
    """A Produce request. Its records are views of the request's body and are valid only as long as the body."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]

    @property
    def is_transactional(self) -> bool:
        """True if the request has a transactional id, or a partition's first batch is transactional."""
        if self.transactional_id is not None:
            return True
        for topic in self.topics:
            for _, records in topic.partitions:
                if (
                    records is not None
                    and len(records) > _ATTRIBUTES_AT
                    and (records[_ATTRIBUTES_AT] & TRANSACTIONAL and records[_MAGIC_AT] == MAGIC)
                ):
                    return True
        return False


_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22  # The low byte of the attributes.
_HEAD: Final = Struct(">hhiih")  # transactional id's length, acks, timeout, topic count, name's length
_FLEXIBLE_HEAD: Final = Struct(">BhiBB")
_ID_HEAD: Final = Struct(">BhiB16sBi")  # ... topic count, id, partition count, index
_PARTITION: Final = Struct(">iii")  # partition count, index, length of the records
_FLEXIBLE_PARTITION: Final = Struct(">Bi")
_ACKS_TIMEOUT: Final = Struct(">hi")


# Limit of topics and partitions of one Produce, which is handled in one step.
PRODUCE_ROWS_MAX: Final = 2_000


def decode_produce(version: int, body: memoryview) -> ProduceRequest:
    """Decode a request without copying its records. Raises ProtocolError if it is malformed."""
    try:
        request = (_decode_one if version < _FLEXIBLE else _decode_one_flexible)(version, body)
    except (StructError, IndexError):
        # The body is shorter than any request with one partition. The general decoder accepts or rejects it.
        request = None
    except UnicodeDecodeError:
        raise ProtocolError("topic name is not UTF-8") from None
    return request if request is not None else _decode_any(version, body)


def _decode_one(version: int, body: memoryview) -> ProduceRequest | None:
    transactional, acks, timeout_ms, topics, name_bytes = _HEAD.unpack_from(body)
    # A transactional id would shift all fields behind it, so such a request takes the general decoder.
    if transactional != -1 or topics != 1 or name_bytes < 0:
        return None
    at = 14 + name_bytes
    partitions, index, length = _PARTITION.unpack_from(body, at)
    start = at + 12
    end = start + length
    # Let the general decoder decide between null records, several partitions, and a malformed request.
    if partitions != 1 or length < 0 or end > len(body):
        return None
    topic = ProduceTopic(str(body[14:at], "utf-8"), None, [(index, body[start:end])])
    return ProduceRequest(None, acks, timeout_ms, [topic])


def _decode_one_in_transaction(version: int, body: memoryview) -> ProduceRequest | None:
    """Decode a request with a transactional id and one partition, or return None for any other shape.

    The fields behind the id are encoded as without one, so `_decode_one_flexible` decodes them. Its view begins with
    the last byte of the id, which takes the place of the null id's byte.
    """
    size = body[0]
    if version < _FLEXIBLE or not 1 < size < 128:
        return None
    request = _decode_one_flexible(version, body[size - 1 :], in_transaction=True)
    if request is not None:
        request.transactional_id = str(body[1:size], "utf-8")
    return request


def _decode_one_flexible(
    version: int, body: memoryview, *, in_transaction: bool = False
) -> ProduceRequest | None:
    if version >= _TOPIC_IDS:
        transactional, acks, timeout_ms, topics, topic_id, partitions, index = _ID_HEAD.unpack_from(body)
        at = name_at = 29
    else:
        transactional, acks, timeout_ms, topics, name_size = _FLEXIBLE_HEAD.unpack_from(body)
        # A length of two bytes shifts the fields. Topic names have at most 249 bytes, so this is rare.
        if not 0 < name_size < 128:
            return None
        name_at = 9
        at = 8 + name_size
        partitions, index = _FLEXIBLE_PARTITION.unpack_from(body, at)
        at += 5
        topic_id = None
    if (transactional != 0 and not in_transaction) or topics != 2 or partitions != 2:
        return None
    size = body[at]
    start = at + 1
    if size > 127:
        size, start = read_unsigned_varint(body, at)
    end = start + size - 1
    # Three zero bytes mean no tagged fields of partition, topic and request. The last index also checks, by an
    # IndexError, that the records end inside the body.
    if size == 0 or body[end] or body[end + 1] or body[end + 2]:
        return None
    name = None if topic_id is not None else str(body[name_at : at - 5], "utf-8")
    return ProduceRequest(None, acks, timeout_ms, [ProduceTopic(name, topic_id, [(index, body[start:end])])])


def _decode_any(version: int, body: memoryview) -> ProduceRequest:
    try:
        request = _decode_one_in_transaction(version, body)
    except (StructError, IndexError, UnicodeDecodeError):
        request = None
    if request is not None:
        return request
    try:
        return _decode_general(version, body)
    except (StructError, IndexError):
        raise ProtocolError("Produce request runs past its end") from None
    except UnicodeDecodeError:
        raise ProtocolError("string is not UTF-8") from None


def _decode_general(version: int, body: memoryview) -> ProduceRequest:
    flexible = version >= _FLEXIBLE
    transactional_id, position = (read_compact_string if flexible else read_string)(body, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    count, position = _count(body, position + _ACKS_TIMEOUT.size, flexible)
    topics = []
    rows = 0
    for _ in range(count):
        topic, position = _decode_topic(version, body, position, flexible)
        topics.append(topic)
        rows += 1 + len(topic.partitions)
        # One Produce is handled in one step, in which no other client of this Handler is served.
        if rows > PRODUCE_ROWS_MAX:
            raise ProtocolError(f"Produce to more than {PRODUCE_ROWS_MAX} topics and partitions")
    if flexible:
        skip_tags(body, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _count(body: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    count, position = _length(body, position, flexible)
    # Every element has at least one byte. The check comes before any allocation, because a client can claim billions.
    if not 0 <= count <= len(body) - position:
        raise ProtocolError(f"array of {count} elements, {len(body) - position} bytes remain")
    return count, position


def _length(body: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        return read_compact_length(body, position)
    return INT32.unpack_from(body, position)[0], position + 4


def _decode_topic(version: int, body: memoryview, position: int, flexible: bool) -> tuple[ProduceTopic, int]:
    name: str | None = None
    topic_id: bytes | None = None
    if version >= _TOPIC_IDS:
        topic_id = bytes(body[position : position + 16])
        position += 16
    else:
        name, position = (read_compact_string if flexible else read_string)(body, position)
        if name is None:
            raise ProtocolError("topic name must not be null")
    count, position = _count(body, position, flexible)
    if count > PRODUCE_ROWS_MAX:
        raise ProtocolError(f"Produce to more than {PRODUCE_ROWS_MAX} topics and partitions")
    partitions: list[PartitionRecords] = []
    for _ in range(count):
        (index,) = INT32.unpack_from(body, position)
        length, position = _length(body, position + 4, flexible)
        # Null records are malformed in Kafka, too, but the error belongs to the partition and not to the connection.
        if length == -1:
            partitions.append((index, None))
        elif 0 <= length <= len(body) - position:
            partitions.append((index, body[position : position + length]))
            position += length
        else:
            raise ProtocolError(f"records of {length} bytes, {len(body) - position} remain")
        if flexible:
            position = skip_tags(body, position)
    if flexible:
        position = skip_tags(body, position)
    return ProduceTopic(name, topic_id, partitions), position


# ---- responses --------------------------------------------------------------------------------------------

_ANSWER: Final = Struct(">ihqq")
_ANSWER_WITH_START: Final = Struct(">ihqqq")
_CORRELATION: Final = Struct(">ii")


def encode_produce_response(
    version: int, correlation_id: int, topics: Sequence[TopicAnswer], throttle_ms: int = 0
) -> bytes:
    """Encode the whole frame of a response, for any number of topics and partitions."""
    flexible = version >= _FLEXIBLE
    frame = bytearray(_CORRELATION.pack(0, correlation_id))
    if flexible:
        frame.append(0)
    frame += encode_unsigned_varint(len(topics) + 1) if flexible else INT32.pack(len(topics))
    for name, topic_id, partitions in topics:
        frame += _encode_topic_key(version, name, topic_id)
        frame += encode_unsigned_varint(len(partitions) + 1) if flexible else INT32.pack(len(partitions))
        for partition in partitions:
            _encode_partition(version, frame, partition)
        if flexible:
            frame.append(0)
    frame += INT32.pack(throttle_ms)
    if flexible:
        frame.append(0)
    frame[0:4] = INT32.pack(len(frame) - 4)
    return bytes(frame)


def _encode_topic_key(version: int, name: str | None, topic_id: bytes | None) -> bytes:
    if version >= _TOPIC_IDS:
        if topic_id is None or len(topic_id) != 16:
            raise ValueError(f"Produce v{version} needs a topic id")
        return topic_id
    if name is None:
        raise ValueError(f"Produce v{version} needs a topic name")
    return encode_compact_string(name) if version >= _FLEXIBLE else encode_string(name)


def _encode_partition(version: int, frame: bytearray, partition: PartitionAnswer) -> None:
    index, error_code, base_offset, append_time_ms, log_start_offset, message, record_errors = partition
    # v5 added the log start offset, by which a producer tells records that retention deleted from lost ones.
    if version < 5:
        frame += _ANSWER.pack(index, error_code, base_offset, append_time_ms)
        return
    frame += _ANSWER_WITH_START.pack(index, error_code, base_offset, append_time_ms, log_start_offset)
    if version >= _FLEXIBLE:
        frame += encode_unsigned_varint(len(record_errors) + 1)
        for number, why in record_errors:
            frame += INT32.pack(number) + encode_compact_string(why) + b"\0"
        frame += b"\0" if message is None else encode_compact_string(shortened(message))
        frame += b"\0"
    # KIP-467 added the record errors with v8, one version before the flexible encoding.
    elif version == 8:
        frame += INT32.pack(len(record_errors))
        for number, why in record_errors:
            frame += INT32.pack(number) + encode_string(why)
        frame += b"\xff\xff" if message is None else encode_string(shortened(message))


# A topic name has at most 249 bytes, and a compact length of one byte at most 126. Longer names take the general
# encoder. This also limits the number of prepared structs in the cache.
_NAME_BYTES_MAX: Final = 126


@cache
def _one(version: int, name_bytes: int) -> tuple[Struct, int, bytes, bytes]:
    """Prepare the response for one partition: (struct, frame length, constant before the name, constant at the end).

    length int32 | correlation id int32 | constant | name or id | partition count | the partition | constant
    """
    if version >= _TOPIC_IDS and name_bytes != 16:
        raise ValueError(f"a topic id of {name_bytes} bytes")
    fields = "ihqq" if version < 5 else "ihqqq"
    if version >= _FLEXIBLE:
        before = b"\0\x02" if version >= _TOPIC_IDS else bytes((0, 2, name_bytes + 1))
        # No record errors, no message, tags of the partition and the topic; throttle time; tags of the body.
        after = b"\x01\0\0\0" + bytes(4) + b"\0"
        count = "B"
    else:
        before = INT32.pack(1) + name_bytes.to_bytes(2, "big")
        after = (b"\0\0\0\0\xff\xff" if version == 8 else b"") + bytes(4)
        count = "i"
    prepared = Struct(f">ii{len(before)}s{name_bytes}s{count}{fields}{len(after)}s")
    return prepared, prepared.size - 4, before, after


def encode_produce_response_one(
    version: int,
    correlation_id: int,
    name: str | None,
    topic_id: bytes | None,
    index: int,
    error: int,
    base_offset: int,
    append_time: int,
    log_start: int,
) -> bytes:
    """Encode the whole frame for one partition without an error message, by one struct for each name length."""
    if version >= _TOPIC_IDS:
        key = topic_id
        assert key is not None
        count = 2
    else:
        assert name is not None
        key = name.encode()
        count = 2 if version >= _FLEXIBLE else 1
    if len(key) > _NAME_BYTES_MAX:
        partition = (index, error, base_offset, append_time, log_start, None, ())
        return encode_produce_response(version, correlation_id, [(name, topic_id, [partition])])
    prepared, length, before, after = _one(version, len(key))
    if version < 5:
        return prepared.pack(
            length, correlation_id, before, key, count, index, error, base_offset, append_time, after
        )
    return prepared.pack(
        length, correlation_id, before, key, count, index, error, base_offset, append_time, log_start, after
    )
