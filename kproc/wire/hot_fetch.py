"""Decodes and encodes Fetch, versions 4-18, by hand. Records stay file ranges until a Processor sends them.

    request    replica id int32 (to v14; then in tag 1) | max wait int32 | min bytes int32 | max bytes int32
               | isolation int8 | v7: session id int32, session epoch int32 | topics | v7: forgotten topics
               | v11: rack id string
    topic      name string, from v13 id uuid | partitions
    partition  index int32 | v9: current leader epoch int32 | fetch offset int64
               | v12: last fetched epoch int32 | v5: log start offset int64 | max bytes int32
    response   throttle time int32 | v7: error int16, session id int32 | topics
    partition  index int32 | error int16 | high watermark int64 | last stable offset int64
               | v5: log start offset int64 | aborted transactions nullable array (producer id, first offset)
               | v11: preferred read replica int32 | records nullable bytes

Flexible from v12 (KIP-482), topic ids instead of names from v13 (KIP-516), sessions from v7 (KIP-227), replica id in
the tagged replica state from v15 (KIP-903). Responses never have the tagged fields diverging epoch, current leader and
snapshot id of a partition, nor node endpoints (v16, KIP-951), because there is one broker without followers. Only the
replica id is read of the request's tagged fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from kproc.common.errors import ProtocolError
from kproc.wire.file_range import FileRange
from kproc.wire.primitives import (
    ELEMENTS_MAX,
    INT32,
    encode_compact_string,
    encode_string,
    encode_unsigned_varint,
    read_compact_length,
    read_compact_string,
    read_string,
    read_unsigned_varint,
    skip_tags,
)

FETCH_VERSIONS: Final = range(4, 19)
_LOG_START: Final = 5
_SESSIONS: Final = 7
_LEADER_EPOCH: Final = 9
_RACK: Final = 11
_FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13
_REPLICA_STATE: Final = 15
_REPLICA_STATE_TAG: Final = 1

NO_SESSION_ID: Final = 0
NO_SESSION_EPOCH: Final = -1


class FetchPartition(msgspec.Struct, gc=False, array_like=True):
    """One partition that the client fetches. -1 stands for a field that the request's version lacks."""

    index: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


# (name, id, partitions): a name up to v12, an id of 16 bytes from v13, the other is None.
FetchTopic = tuple[str | None, bytes | None, list[FetchPartition]]
ForgottenTopic = tuple[str | None, bytes | None, list[int]]


class FetchRequest(msgspec.Struct, gc=False):
    """A Fetch request. It has no views of the body that it was decoded from."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str
    replica_id: int = -1


class FetchPartitionResult(msgspec.Struct, gc=False):
    """The response for one partition.

    `aborted` has (producer id, first offset) of aborted transactions, or is None for read_uncommitted. `records` may be
    several pieces, in order.
    """

    index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records: Sequence[FileRange | bytes]


FetchTopicResult = tuple[str | None, bytes | None, Sequence[FetchPartitionResult]]

_HEAD: Final = Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_HEAD_WITH_SESSION: Final = Struct(">iiiibii")
_HEAD_WITHOUT_REPLICA: Final = Struct(">iiibii")


# Limit of topics and partitions of one Fetch. A Fetch is handled in one step, and 5,000 partitions take about 50 ms.
FETCH_ROWS_MAX: Final = 5_000


def _partition_struct(version: int) -> Struct:
    # KIP-595 added lastFetchedEpoch in v12, KIP-320 the leader epoch in v9, and KIP-107 the log start in v5.
    if version >= 12:
        return Struct(">iiqiqi")
    if version >= 9:
        return Struct(">iiqqi")
    return Struct(">iqqi" if version >= 5 else ">iqi")


_PARTITIONS: Final = {version: _partition_struct(version) for version in FETCH_VERSIONS}


def decode_fetch(version: int, body: memoryview) -> FetchRequest:
    """Decode a request. Raises ProtocolError if it is malformed."""
    try:
        return _decode(version, body)
    except (StructError, IndexError):
        raise ProtocolError("Fetch request runs past its end") from None
    except UnicodeDecodeError:
        raise ProtocolError("string is not UTF-8") from None


def locate_fetch_offset(version: int, body: memoryview) -> tuple[FetchRequest, int] | None:
    """Decode a request for one partition. Return (request, position of its fetch offset in the body).

    Returns None for a request with several partitions or none. A fast path recognizes the next request of a consumer by
    comparing everything but this offset.
    """
    request = decode_fetch(version, body)
    # Offsets of several partitions lie at several places of the body, so two requests cannot be compared around one of
    # them.
    if len(request.topics) != 1 or len(request.topics[0][2]) != 1:
        return None
    _, position = _count(version, body, _head_of(version).size)
    _, _, position = _topic_key(version, body, position)
    _, position = _count(version, body, position)
    return request, position + (8 if version >= _LEADER_EPOCH else 4)


def _head_of(version: int) -> Struct:
    if version >= _REPLICA_STATE:
        return _HEAD_WITHOUT_REPLICA
    return _HEAD_WITH_SESSION if version >= _SESSIONS else _HEAD


def _decode(version: int, body: memoryview) -> FetchRequest:
    replica_id, session_id, session_epoch = -1, NO_SESSION_ID, NO_SESSION_EPOCH
    head = _head_of(version)
    if version >= _REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = head.unpack_from(body)
    elif version >= _SESSIONS:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = (
            head.unpack_from(body)
        )
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = head.unpack_from(body)
    topics, position = _decode_topics(version, body, head.size)
    forgotten: list[ForgottenTopic] = []
    rack_id: str | None = ""
    if version >= _SESSIONS:
        forgotten, position = _decode_forgotten(version, body, position)
    if version >= _FLEXIBLE:
        rack_id, position = read_compact_string(body, position)
        # The tagged fields are nearly always empty. Consumers send none, because KIP-903 is for followers.
        if body[position]:
            replica_id = _decode_tags(version, body, position, replica_id)
    elif version == _RACK:
        rack_id, position = read_string(body, position)
    # KIP-392: the rack must not be null, although the field's encoding could express it.
    if rack_id is None:
        raise ProtocolError("rack id must not be null")
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        replica_id,
    )


def _count(version: int, body: memoryview, position: int) -> tuple[int, int]:
    if version >= _FLEXIBLE:
        count, position = read_compact_length(body, position)
    else:
        (count,) = INT32.unpack_from(body, position)
        position += 4
    # Reject a count larger than the remaining bytes, because an element has at least one byte.
    if not 0 <= count <= len(body) - position:
        raise ProtocolError(f"array of {count} elements, {len(body) - position} bytes remain")
    if count > ELEMENTS_MAX:
        raise ProtocolError(f"array of {count} elements; the limit is {ELEMENTS_MAX}")
    return count, position


def _topic_key(version: int, body: memoryview, position: int) -> tuple[str | None, bytes | None, int]:
    if version >= _TOPIC_IDS:
        # KIP-516: from v13 on topics are named by id alone.
        return None, bytes(body[position : position + 16]), position + 16
    name, position = (read_compact_string if version >= _FLEXIBLE else read_string)(body, position)
    if name is None:
        raise ProtocolError("topic name must not be null")
    return name, None, position


def _check_rows(rows: int) -> int:
    if rows > FETCH_ROWS_MAX:
        raise ProtocolError(f"Fetch of more than {FETCH_ROWS_MAX} topics and partitions")
    return rows


def _decode_topics(version: int, body: memoryview, position: int) -> tuple[list[FetchTopic], int]:
    layout = _PARTITIONS[version]
    unpack, size = layout.unpack_from, layout.size
    topics: list[FetchTopic] = []
    count, position = _count(version, body, position)
    rows = _check_rows(count)
    for _ in range(count):
        name, topic_id, position = _topic_key(version, body, position)
        partition_count, position = _count(version, body, position)
        # Count the partitions of all topics, because many topics with few partitions each cost as much as the opposite.
        rows = _check_rows(rows + partition_count)
        partitions: list[FetchPartition] = []
        for _ in range(partition_count):
            fields = unpack(body, position)
            position += size
            if version >= 12:
                partitions.append(FetchPartition(*fields))
                position = skip_tags(body, position)
            elif version >= 9:
                index, epoch, offset, log_start, max_bytes = fields
                partitions.append(FetchPartition(index, epoch, offset, -1, log_start, max_bytes))
            else:
                index, offset, *start, max_bytes = fields
                partitions.append(FetchPartition(index, -1, offset, -1, start[0] if start else -1, max_bytes))
        if version >= _FLEXIBLE:
            position = skip_tags(body, position)
        topics.append((name, topic_id, partitions))
    return topics, position


def _decode_forgotten(version: int, body: memoryview, position: int) -> tuple[list[ForgottenTopic], int]:
    forgotten: list[ForgottenTopic] = []
    count, position = _count(version, body, position)
    rows = _check_rows(count)
    for _ in range(count):
        name, topic_id, position = _topic_key(version, body, position)
        index_count, position = _count(version, body, position)
        rows = _check_rows(rows + index_count)
        # If the rest of the body is too short for so many numbers, unpack_from raises, and decode_fetch turns that
        # into a ProtocolError.
        indexes = list(Struct(f">{index_count}i").unpack_from(body, position))
        position += 4 * index_count
        if version >= _FLEXIBLE:
            position = skip_tags(body, position)
        forgotten.append((name, topic_id, indexes))
    return forgotten, position


def _decode_tags(version: int, body: memoryview, position: int, replica_id: int) -> int:
    """Return the replica id of the tagged replica state (v15, KIP-903), or `replica_id` if there is none."""
    count, position = read_unsigned_varint(body, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(body, position)
        size, position = read_unsigned_varint(body, position)
        if position + size > len(body):
            raise ProtocolError("tagged field runs past the end")
        # KIP-903 moved the replica id from the head into a tagged field with v15.
        if tag == _REPLICA_STATE_TAG and version >= _REPLICA_STATE:
            (replica_id,) = INT32.unpack_from(body, position)
        position += size
    return replica_id


# ---- responses --------------------------------------------------------------------------------------------

_ABORTED: Final = Struct(">qq")
_NO_PREFERRED_REPLICA: Final = INT32.pack(-1)


def _head_struct(version: int) -> Struct:
    """Return the struct of frame length, correlation id, tags of the header, throttle time, error and session id."""
    if version >= _FLEXIBLE:
        return Struct(">iixihi")
    return Struct(">iiihi" if version >= _SESSIONS else ">iii")


def _common_partition_struct(version: int) -> Struct:
    """Return the struct of a partition without aborted transactions, up to its records."""
    if version >= _FLEXIBLE:
        return Struct(">ihqqqBi")
    if version >= _RACK:
        return Struct(">ihqqqii")
    return Struct(">ihqqqi" if version >= 5 else ">ihqqi")


_HEADS: Final = {version: _head_struct(version) for version in FETCH_VERSIONS}
_COMMON_PARTITIONS: Final = {version: _common_partition_struct(version).pack for version in FETCH_VERSIONS}
_PARTITION: Final = Struct(">ihqqq")
_PARTITION_WITHOUT_START: Final = Struct(">ihqq")


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[FetchTopicResult],
) -> list[bytes | FileRange]:
    """Encode the whole frame. Return its bytes and file ranges in the order of sending.

    The frame's length includes the file ranges. Records given as bytes are copied into the frame. Empty file ranges are
    left out.
    """
    # Encode the usual response with one template, because consumers that keep up get only such ones: one partition with
    # records that are sent from the file, without an error or aborted transactions.
    if len(topics) == 1 and version >= FIRST_TEMPLATE and not (throttle_ms or error_code):
        name, topic_id, partitions = topics[0]
        if len(partitions) == 1:
            (result,) = partitions
            key = topic_id if version >= _TOPIC_IDS else name.encode() if name is not None else None
            piece = result.records[0] if len(result.records) == 1 else None
            if (
                key
                and isinstance(piece, FileRange)
                and piece.length
                and not (result.error_code or result.aborted)
            ):
                head, end = fetch_template(version, len(key), result.aborted is not None).frame(
                    correlation_id.to_bytes(4, "big", signed=True),
                    session_id.to_bytes(4, "big", signed=True),
                    key,
                    result.index,
                    result.high_watermark,
                    result.last_stable_offset,
                    result.log_start_offset,
                    piece.length,
                )
                return [head, piece, end] if end else [head, piece]
    return _encode(version, correlation_id, throttle_ms, error_code, session_id, topics)


def _encode(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[FetchTopicResult],
) -> list[bytes | FileRange]:
    """Encode a Fetch response with any number of topics and partitions."""
    flexible = version >= _FLEXIBLE
    if version >= _SESSIONS:
        out = bytearray(_HEADS[version].pack(0, correlation_id, throttle_ms, error_code, session_id))
    else:
        out = bytearray(_HEADS[version].pack(0, correlation_id, throttle_ms))
    out += encode_unsigned_varint(len(topics) + 1) if flexible else INT32.pack(len(topics))
    parts: list[bytes | bytearray | FileRange] = []
    for name, topic_id, partitions in topics:
        out += _encode_topic_key(version, name, topic_id)
        out += encode_unsigned_varint(len(partitions) + 1) if flexible else INT32.pack(len(partitions))
        for result in partitions:
            out += _encode_partition(version, result)
            length = 0
            for piece in result.records:
                length += piece.length if isinstance(piece, FileRange) else len(piece)
            out += encode_unsigned_varint(length + 1) if flexible else INT32.pack(length)
            for piece in result.records:
                if not isinstance(piece, FileRange):
                    out += piece
                elif piece.length:
                    # Keep the bytes before a file range as one part, because each part costs the Processor a system
                    # call.
                    if out:
                        parts.append(out)
                        out = bytearray()
                    parts.append(piece)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return _finish(parts, out)


# Responses have a log start from this version on.
FIRST_TEMPLATE: Final = _LOG_START
NO_SESSION: Final = INT32.pack(NO_SESSION_ID)
_OFFSETS_BYTES: Final = 24  # High watermark, last stable offset, log start.
_FLEXIBLE_END: Final = bytes(3)  # No tagged fields: of the partition, the topic, the body.
# Limit, because there is a template for each version, length of a topic's name and isolation level, and clients choose
# them.
_TEMPLATES_KEPT: Final = 1024


class FetchTemplate:
    """Encodes responses with one partition, some records in one file range, no error and no aborted transactions.

    The constant bytes are prepared once. `frame` fills in all others by one struct. A consumer that keeps up with the
    log gets such responses.
    """

    __slots__ = ("_after", "_before_index", "_before_key", "_is_flexible", "_pack", "_rest_bytes")

    def __init__(self, version: int, key_bytes: int, lists_aborted: bool) -> None:
        """Prepare the responses of a version for topics whose name or id has `key_bytes` bytes."""
        # Encode a response by the general encoder, and cut its bytes around the fields that differ.
        key = b"k" * key_bytes
        name, topic_id = (None, key) if version >= _TOPIC_IDS else (key.decode(), None)
        aborted: list[tuple[int, int]] | None = [] if lists_aborted else None
        result = FetchPartitionResult(0, 0, 0, 0, 0, aborted, [FileRange(b"", 0, 0, 1)])
        head, *_ = _encode(version, 0, 0, 0, 0, [(name, topic_id, [result])])
        assert isinstance(head, bytes)
        self._is_flexible = version >= _FLEXIBLE
        session_bytes = 4 if version >= _SESSIONS else 0
        session_at = _HEADS[version].size - session_bytes
        # Search for the last match, because the length byte in front of a long name can be the letter k, too.
        key_at = head.rindex(key)
        # Behind the three offsets: aborted transactions, preferred replica, length of the records.
        after_bytes = (1 if self._is_flexible else 4) + (4 if version >= _RACK else 0)
        records_at = len(head) - (1 if self._is_flexible else 4)
        index_at = records_at - after_bytes - _OFFSETS_BYTES - 6
        self._before_key = head[session_at + session_bytes : key_at]
        self._before_index = head[key_at + key_bytes : index_at]
        self._after = head[records_at - after_bytes : records_at]
        # Zeros: no tagged fields of the header, no throttle time and no error before the session id; no error behind
        # the partition's index.
        prepared = Struct(
            f">i4s{session_at - 8}x{session_bytes}s{len(self._before_key)}s{key_bytes}s"
            f"{len(self._before_index)}si2xqqq{after_bytes}s{'' if self._is_flexible else 'i'}"
        )
        self._pack = prepared.pack
        self._rest_bytes = prepared.size - 4 + (len(_FLEXIBLE_END) if self._is_flexible else 0)

    def frame(
        self,
        correlation_id: bytes,
        session_id: bytes,
        key: bytes,
        index: int,
        end: int,
        stable: int,
        start: int,
        records_bytes: int,
    ) -> tuple[bytes, bytes]:
        """Encode a frame. Return (bytes before the records, bytes after them).

        `end` is the high watermark, `stable` the last stable offset, `start` the log start. Versions without sessions
        ignore `session_id`.
        """
        length = self._rest_bytes + records_bytes
        if self._is_flexible:
            size = encode_unsigned_varint(records_bytes + 1)
            return self._pack(
                length + len(size), correlation_id, session_id, self._before_key, key, self._before_index, index,
                end, stable, start, self._after,
            ) + size, _FLEXIBLE_END  # fmt: skip
        return self._pack(
            length, correlation_id, session_id, self._before_key, key, self._before_index, index,
            end, stable, start, self._after, records_bytes,
        ), b""  # fmt: skip


fetch_template: Final = lru_cache(_TEMPLATES_KEPT)(FetchTemplate)


def _finish(parts: list[bytes | bytearray | FileRange], out: bytearray) -> list[bytes | FileRange]:
    """Append the last part, and write the frame's length into the first."""
    if out:
        parts.append(out)
    total = 0
    for part in parts:
        total += part.length if isinstance(part, FileRange) else len(part)
    # The first part is never a file range, because the head of the response comes before all records.
    first = parts[0]
    assert type(first) is bytearray
    first[0:4] = INT32.pack(total - 4)
    return [part if isinstance(part, FileRange) else bytes(part) for part in parts]


def _encode_topic_key(version: int, name: str | None, topic_id: bytes | None) -> bytes:
    if version >= _TOPIC_IDS:
        if topic_id is None or len(topic_id) != 16:
            raise ValueError(f"Fetch v{version} needs a topic id")
        return topic_id
    if name is None:
        raise ValueError(f"Fetch v{version} needs a topic name")
    return encode_compact_string(name) if version >= _FLEXIBLE else encode_string(name)


def _encode_partition(version: int, result: FetchPartitionResult) -> bytes:
    """Encode a partition up to its records."""
    index, error_code = result.index, result.error_code
    high_watermark, last_stable_offset = result.high_watermark, result.last_stable_offset
    if result.aborted is not None:
        return _encode_partition_with_aborted(version, result, result.aborted)
    pack = _COMMON_PARTITIONS[version]
    if version >= _FLEXIBLE:
        return pack(index, error_code, high_watermark, last_stable_offset, result.log_start_offset, 0, -1)
    if version >= _RACK:
        return pack(index, error_code, high_watermark, last_stable_offset, result.log_start_offset, -1, -1)
    if version >= 5:
        return pack(index, error_code, high_watermark, last_stable_offset, result.log_start_offset, -1)
    return pack(index, error_code, high_watermark, last_stable_offset, -1)


def _encode_partition_with_aborted(
    version: int, result: FetchPartitionResult, aborted: Sequence[tuple[int, int]]
) -> bytes:
    flexible = version >= _FLEXIBLE
    fields = (result.index, result.error_code, result.high_watermark, result.last_stable_offset)
    if version >= 5:
        out = bytearray(_PARTITION.pack(*fields, result.log_start_offset))
    else:
        out = bytearray(_PARTITION_WITHOUT_START.pack(*fields))
    out += encode_unsigned_varint(len(aborted) + 1) if flexible else INT32.pack(len(aborted))
    for producer_id, first_offset in aborted:
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
    if version >= _RACK:
        out += _NO_PREFERRED_REPLICA
    return bytes(out)
