"""Encodes responses of Fetch, versions 4-18, by hand. Records stay file ranges until a Processor sends them.

    response   throttle time int32 | v7: error int16, session id int32 | topics
    topic      name string, from v13 id uuid | partitions
    partition  index int32 | error int16 | high watermark int64 | last stable offset int64
               | v5: log start offset int64 | aborted transactions nullable array (producer id, first offset)
               | v11: preferred read replica int32 | records nullable bytes

Responses never have the tagged fields diverging epoch, current leader and snapshot id of a partition, nor node
endpoints (v16, KIP-951), because a kproc cluster has one broker and no followers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from kproc.wire.file_range import FileRange
from kproc.wire.hot_fetch_request import (
    FETCH_VERSIONS,
    FLEXIBLE,
    LOG_START,
    NO_SESSION_ID,
    RACK,
    SESSIONS,
    TOPIC_IDS,
)
from kproc.wire.primitives import INT32, encode_compact_string, encode_string, encode_unsigned_varint


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

_ABORTED: Final = Struct(">qq")
_NO_PREFERRED_REPLICA: Final = INT32.pack(-1)


def _head_struct(version: int) -> Struct:
    """Return the struct of frame length, correlation id, tags of the header, throttle time, error and session id."""
    if version >= FLEXIBLE:
        return Struct(">iixihi")
    return Struct(">iiihi" if version >= SESSIONS else ">iii")


def _common_partition_struct(version: int) -> Struct:
    """Return the struct of a partition without aborted transactions, up to its records."""
    if version >= FLEXIBLE:
        return Struct(">ihqqqBi")
    if version >= RACK:
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
    omitted.
    """
    # Encode the usual response by a template: one partition with records from one file range, without an error or
    # aborted transactions. Consumers that keep up with the log get only such responses.
    if len(topics) == 1 and version >= FIRST_TEMPLATE and not (throttle_ms or error_code):
        name, topic_id, partitions = topics[0]
        if len(partitions) == 1:
            (result,) = partitions
            key = topic_id if version >= TOPIC_IDS else name.encode() if name is not None else None
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
    flexible = version >= FLEXIBLE
    if version >= SESSIONS:
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
                    # Join all bytes before a file range into one part, because the Processor needs a system call for
                    # each part.
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


# Templates exist from the version on that has the log start offset.
FIRST_TEMPLATE: Final = LOG_START
NO_SESSION: Final = INT32.pack(NO_SESSION_ID)
_OFFSETS_BYTES: Final = 24  # High watermark, last stable offset, log start.
_FLEXIBLE_END: Final = bytes(3)  # No tagged fields: of the partition, the topic, the body.
# Limit of cached templates, because each version, topic name length and isolation level needs one, and clients choose
# these.
_TEMPLATES_KEPT: Final = 1024


class FetchTemplate:
    """Encodes responses with one partition, some records in one file range, no error and no aborted transactions.

    The constant bytes are prepared once, and `frame` fills in the others by one struct call. A consumer that keeps up
    with the log gets only such responses.
    """

    __slots__ = ("_after", "_before_index", "_before_key", "_is_flexible", "_pack", "_rest_bytes")

    def __init__(self, version: int, key_bytes: int, lists_aborted: bool) -> None:
        """Prepare the responses of a version for topics whose name or id has `key_bytes` bytes.

        lists_aborted: the array of aborted transactions is empty (read_committed) and not null (read_uncommitted).
        """
        # Encode a sample response by the general encoder, and cut its bytes at the fields that vary.
        key = b"k" * key_bytes
        name, topic_id = (None, key) if version >= TOPIC_IDS else (key.decode(), None)
        aborted: list[tuple[int, int]] | None = [] if lists_aborted else None
        result = FetchPartitionResult(0, 0, 0, 0, 0, aborted, [FileRange(b"", 0, 0, 1)])
        head, *_ = _encode(version, 0, 0, 0, 0, [(name, topic_id, [result])])
        assert isinstance(head, bytes)
        self._is_flexible = version >= FLEXIBLE
        session_bytes = 4 if version >= SESSIONS else 0
        session_at = _HEADS[version].size - session_bytes
        # Search for the sample name (letters k) from the end, because the length byte in front of a name can also be
        # the letter k.
        key_at = head.rindex(key)
        # The partition's three offsets are followed by the aborted transactions, preferred replica and length of the
        # records.
        after_bytes = (1 if self._is_flexible else 4) + (4 if version >= RACK else 0)
        records_at = len(head) - (1 if self._is_flexible else 4)
        index_at = records_at - after_bytes - _OFFSETS_BYTES - 6
        self._before_key = head[session_at + session_bytes : key_at]
        self._before_index = head[key_at + key_bytes : index_at]
        self._after = head[records_at - after_bytes : records_at]
        # The x in the format are zero bytes: empty header tags, throttle time 0 and error 0 before the session id, and
        # error 0 after the partition's index.
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
        """Encode a response without its records. Return (bytes before the records, bytes after them).

        key: the topic's name in UTF-8, or from v13 on its id. index: the partition's index. end: the high watermark.
        stable: the last stable offset. start: the log start. records_bytes: the size of the records, which the caller
        sends between the two results. Versions without sessions ignore `session_id`.
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
    """Append the last part, write the frame's length into the first part, and return all parts."""
    if out:
        parts.append(out)
    total = 0
    for part in parts:
        total += part.length if isinstance(part, FileRange) else len(part)
    # The first part is always bytes and no file range, because the response's head precedes all records.
    first = parts[0]
    assert type(first) is bytearray
    first[0:4] = INT32.pack(total - 4)
    return [part if isinstance(part, FileRange) else bytes(part) for part in parts]


def _encode_topic_key(version: int, name: str | None, topic_id: bytes | None) -> bytes:
    if version >= TOPIC_IDS:
        if topic_id is None or len(topic_id) != 16:
            raise ValueError(f"response to Fetch v{version} needs a topic id")
        return topic_id
    if name is None:
        raise ValueError(f"response to Fetch v{version} needs a topic name")
    return encode_compact_string(name) if version >= FLEXIBLE else encode_string(name)


def _encode_partition(version: int, result: FetchPartitionResult) -> bytes:
    """Encode a partition of a response up to its records, which follow as file ranges."""
    index, error_code = result.index, result.error_code
    high_watermark, last_stable_offset = result.high_watermark, result.last_stable_offset
    if result.aborted is not None:
        return _encode_partition_with_aborted(version, result, result.aborted)
    pack = _COMMON_PARTITIONS[version]
    if version >= FLEXIBLE:
        return pack(index, error_code, high_watermark, last_stable_offset, result.log_start_offset, 0, -1)
    if version >= RACK:
        return pack(index, error_code, high_watermark, last_stable_offset, result.log_start_offset, -1, -1)
    if version >= 5:
        return pack(index, error_code, high_watermark, last_stable_offset, result.log_start_offset, -1)
    return pack(index, error_code, high_watermark, last_stable_offset, -1)


def _encode_partition_with_aborted(
    version: int, result: FetchPartitionResult, aborted: Sequence[tuple[int, int]]
) -> bytes:
    flexible = version >= FLEXIBLE
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
    if version >= RACK:
        out += _NO_PREFERRED_REPLICA
    return bytes(out)
