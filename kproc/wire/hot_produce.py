"""Decodes and encodes Produce, versions 3-13, by hand. Records stay views of the request's body.

    request    transactional id nullable string | acks int16 | timeout int32 | topics
    topic      name string, from v13 id uuid | partitions
    partition  index int32 | records nullable bytes
    response   topics | throttle time int32 (v1+, behind the topics, unlike every other API)
    partition  index int32 | error int16 | base offset int64 | log append time int64
               | v5: log start offset int64 | v8: record errors array, error message nullable string

Flexible from v9 (KIP-482), topic ids instead of names from v13 (KIP-516), record errors from v8 (KIP-467). Responses
never have the tagged fields current leader and node endpoints (v10, KIP-951), because there is only one broker.

A differential test compares both directions with codec.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NoReturn

import msgspec

from kproc.common.errors import ProtocolError
from kproc.wire.batch_header import ATTRIBUTES_AT, MAGIC_AT
from kproc.wire.primitives import (
    INT32,
    encode_compact_string,
    encode_string,
    encode_unsigned_varint,
    read_compact_string,
    read_string,
    read_unsigned_varint,
    shortened,
    skip_tagged_fields,
)
from kproc.wire.record_batch import MAGIC, TRANSACTIONAL

PRODUCE_VERSIONS: Final = range(3, 14)
_FLEXIBLE: Final = 9
_TOPIC_IDS: Final = 13

# (partition index, records). Records are None if the request has null, for which the broker responds with
# INVALID_RECORD.
PartitionRecords = tuple[int, memoryview | None]
# (index of the invalid record in its batch, reason): the record errors of KIP-467
RecordErrors = Sequence[tuple[int, str]]
# (partition index, error code, base offset, log append time in ms, log start offset, error message, record errors)
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
                # Check the magic byte, too: message formats 0 and 1 have another field at the position of a batch's
                # attributes.
                if (
                    records is not None
                    and len(records) > ATTRIBUTES_AT
                    and (records[ATTRIBUTES_AT] & TRANSACTIONAL and records[MAGIC_AT] == MAGIC)
                ):
                    return True
        return False


# acks, timeout, topic count
_PLAIN_HEAD: Final = Struct(">hii")
_FLEXIBLE_HEAD: Final = Struct(">hiB")
# index, length of the records
_PLAIN_PARTITION: Final = Struct(">ii")
_FLEXIBLE_PARTITION: Final = Struct(">iB")
# Limit of topics and partitions in one Produce, because a Handler handles a Produce without pauses and serves no other
# client meanwhile.
PRODUCE_ROWS_MAX: Final = 2_000


def decode_produce(version: int, body: memoryview) -> ProduceRequest:
    """Decode a request without copying its records. Raises ProtocolError if it is malformed."""
    try:
        return (_decode_plain if version < _FLEXIBLE else _decode_flexible)(version, body)
    except (StructError, IndexError):
        raise ProtocolError("Produce request runs past its end") from None
    except UnicodeDecodeError:
        raise ProtocolError("a string of a Produce request is not UTF-8") from None


def _decode_plain(version: int, body: memoryview) -> ProduceRequest:
    """Decode a version before KIP-482: strings have a length of 16 bits, records and arrays one of 32 bits."""
    end = len(body)
    # A null transactional id is the int16 -1. Most producers send null, so recognize it without a function call.
    transactional_id, at = (None, 2) if body[0] == 255 == body[1] else read_string(body, 0)
    acks, timeout_ms, topic_count = _PLAIN_HEAD.unpack_from(body, at)
    at += _PLAIN_HEAD.size
    rows = topic_count
    if not 0 <= rows <= PRODUCE_ROWS_MAX or rows > end - at:
        _reject_count(topic_count, end - at)
    topics: list[ProduceTopic] = []
    for _ in range(topic_count):
        name, at = read_string(body, at)
        if name is None:
            raise ProtocolError("a topic name of a Produce request must not be null")
        (count,) = INT32.unpack_from(body, at)
        at += 4
        rows += count
        if count < 0 or rows > PRODUCE_ROWS_MAX or count > end - at:
            _reject_count(count, end - at)
        partitions: list[PartitionRecords] = []
        for _ in range(count):
            # Accept null records (size -1): the broker answers an error for this partition only. ProtocolError would
            # close the connection.
            index, size = _PLAIN_PARTITION.unpack_from(body, at)
            start = at + 8
            if size < -1 or start + size > end:
                raise ProtocolError(
                    f"Produce request: records of {size} bytes, but only {end - start} remain"
                )
            at = start + size if size >= 0 else start
            partitions.append((index, body[start:at] if size >= 0 else None))
        topics.append(ProduceTopic(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(version: int, body: memoryview) -> ProduceRequest:
    """Decode a version since KIP-482: lengths are varints of the length + 1, and 0 stands for null.

    Nearly all lengths have one byte, which is read without a function call.
    """
    end = len(body)
    transactional_id, at = read_compact_string(body, 0) if body[0] else (None, 1)
    acks, timeout_ms, topic_count = _FLEXIBLE_HEAD.unpack_from(body, at)
    at += _FLEXIBLE_HEAD.size
    if topic_count > 127:
        topic_count, at = read_unsigned_varint(body, at - 1)
    rows = topic_count - 1
    if not 0 <= rows <= PRODUCE_ROWS_MAX or rows > end - at:
        _reject_count(rows, end - at)
    topics: list[ProduceTopic] = []
    for _ in range(topic_count - 1):
        name = topic_id = None
        if version >= _TOPIC_IDS:
            # Copy the topic id to bytes, because a view of the ring is not hashable and cannot be a key of a dict.
            topic_id = bytes(body[at : at + 16])
            at += 16
        else:
            size = body[at]
            if 0 < size < 128:
                start = at + 1
                at += size
                name = str(body[start:at], "utf-8")
            else:
                name, at = read_compact_string(body, at)
                if name is None:
                    raise ProtocolError("a topic name of a Produce request must not be null")
        count = body[at]
        at += 1
        if count > 127:
            count, at = read_unsigned_varint(body, at - 1)
        rows += count - 1
        if not count or rows > PRODUCE_ROWS_MAX or count > end - at + 1:
            _reject_count(count - 1, end - at)
        partitions: list[PartitionRecords] = []
        for _ in range(count - 1):
            index, size = _FLEXIBLE_PARTITION.unpack_from(body, at)
            start = at + 5
            if size > 127:
                size, start = read_unsigned_varint(body, at + 4)
            at = start + size - 1 if size else start
            # Check that the records do not end beyond the body, because Python would return a shorter slice without an
            # error.
            if at > end:
                raise ProtocolError(
                    f"Produce request: records of {size - 1} bytes, but only {end - start} remain"
                )
            partitions.append((index, body[start:at] if size else None))
            at = skip_tagged_fields(body, at) if body[at] else at + 1
        at = skip_tagged_fields(body, at) if body[at] else at + 1
        topics.append(ProduceTopic(name, topic_id, partitions))
    if body[at]:
        skip_tagged_fields(body, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _reject_count(count: int, remaining: int) -> NoReturn:
    """Raise ProtocolError for a count that the rest of the body cannot hold, or that exceeds PRODUCE_ROWS_MAX.

    A client can claim billions of elements, so callers check the count before they allocate anything. While a Handler
    handles a Produce, it serves no other client.
    """
    if 0 <= count <= remaining:
        raise ProtocolError(f"Produce to more than {PRODUCE_ROWS_MAX} topics and partitions")
    raise ProtocolError(f"Produce request: array of {count} elements, but only {remaining} bytes remain")


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
            raise ValueError(f"response to Produce v{version} needs a topic id")
        return topic_id
    if name is None:
        raise ValueError(f"response to Produce v{version} needs a topic name")
    return encode_compact_string(name) if version >= _FLEXIBLE else encode_string(name)


def _encode_partition(version: int, frame: bytearray, partition: PartitionAnswer) -> None:
    index, error_code, base_offset, append_time_ms, log_start_offset, message, record_errors = partition
    # v5 added the log start offset, by which a producer distinguishes records that retention deleted from lost ones.
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
