"""Decodes requests of Fetch, versions 4-18, by hand.

    request    replica id int32 (to v14; then in tag 1) | max wait int32 | min bytes int32 | max bytes int32
               | isolation int8 | v7: session id int32, session epoch int32 | topics | v7: forgotten topics
               | v11: rack id string
    topic      name string, from v13 id uuid | partitions
    partition  index int32 | v9: current leader epoch int32 | fetch offset int64
               | v12: last fetched epoch int32 | v5: log start offset int64 | max bytes int32

Flexible from v12 (KIP-482), topic ids instead of names from v13 (KIP-516), sessions from v7 (KIP-227), replica id in
the tagged replica state from v15 (KIP-903). Of the tagged fields only the replica id is read.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from kproc.common.errors import ProtocolError
from kproc.wire.primitives import (
    ELEMENTS_MAX,
    INT32,
    read_compact_length,
    read_compact_string,
    read_string,
    read_unsigned_varint,
    skip_tags,
)

FETCH_VERSIONS: Final = range(4, 19)
# For each addition to requests or responses, the first version that has it.
LOG_START: Final = 5
SESSIONS: Final = 7
_LEADER_EPOCH: Final = 9
RACK: Final = 11
FLEXIBLE: Final = 12
TOPIC_IDS: Final = 13
_REPLICA_STATE: Final = 15
_REPLICA_STATE_TAG: Final = 1

NO_SESSION_ID: Final = 0
NO_SESSION_EPOCH: Final = -1


class FetchPartition(msgspec.Struct, gc=False, array_like=True):
    """One partition that the client fetches. Fields that the request's version lacks are -1."""

    index: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


# (name, id, partitions). Up to v12 the name is set, from v13 on the id of 16 bytes. The other one is None.
FetchTopic = tuple[str | None, bytes | None, list[FetchPartition]]
ForgottenTopic = tuple[str | None, bytes | None, list[int]]


class FetchRequest(msgspec.Struct, gc=False):
    """A Fetch request. It is a copy and has no views of the body that it was decoded from."""

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


_HEAD: Final = Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_HEAD_WITH_SESSION: Final = Struct(">iiiibii")
_HEAD_WITHOUT_REPLICA: Final = Struct(">iiibii")


# Limit of topics and partitions in one Fetch. A Handler handles a Fetch without pauses, and 5,000 partitions take about
# 50 ms.
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
        raise ProtocolError("Fetch request contains a string that is not UTF-8") from None


def locate_fetch_offset(version: int, body: memoryview) -> tuple[FetchRequest, int] | None:
    """Decode a request for one partition. Return (request, position of its fetch offset in the body).

    Returns None for a request with several partitions or none. Raises ProtocolError if the body is malformed. A fast
    path recognizes a consumer's next request by comparing all bytes except the 8 bytes of this offset.
    """
    request = decode_fetch(version, body)
    # With several partitions the body has several fetch offsets, so two requests cannot be compared around a single
    # one.
    if len(request.topics) != 1 or len(request.topics[0][2]) != 1:
        return None
    _, position = _count(version, body, _head_of(version).size)
    _, _, position = _topic_key(version, body, position)
    _, position = _count(version, body, position)
    return request, position + (8 if version >= _LEADER_EPOCH else 4)


def _head_of(version: int) -> Struct:
    if version >= _REPLICA_STATE:
        return _HEAD_WITHOUT_REPLICA
    return _HEAD_WITH_SESSION if version >= SESSIONS else _HEAD


def _decode(version: int, body: memoryview) -> FetchRequest:
    replica_id, session_id, session_epoch = -1, NO_SESSION_ID, NO_SESSION_EPOCH
    head = _head_of(version)
    if version >= _REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = head.unpack_from(body)
    elif version >= SESSIONS:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = (
            head.unpack_from(body)
        )
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = head.unpack_from(body)
    topics, position = _decode_topics(version, body, head.size)
    forgotten: list[ForgottenTopic] = []
    rack_id: str | None = ""
    if version >= SESSIONS:
        forgotten, position = _decode_forgotten(version, body, position)
    if version >= FLEXIBLE:
        rack_id, position = read_compact_string(body, position)
        # The tagged fields are nearly always empty: consumers send none, because KIP-903's replica state is for
        # followers.
        if body[position]:
            replica_id = _decode_tags(version, body, position, replica_id)
    elif version == RACK:
        rack_id, position = read_string(body, position)
    # KIP-392: the rack id must not be null, although the string's encoding allows null.
    if rack_id is None:
        raise ProtocolError("the rack id of a Fetch request must not be null")
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
    if version >= FLEXIBLE:
        count, position = read_compact_length(body, position)
    else:
        (count,) = INT32.unpack_from(body, position)
        position += 4
    # Reject a count larger than the remaining bytes, because an element has at least one byte.
    if not 0 <= count <= len(body) - position:
        raise ProtocolError(
            f"Fetch request: array of {count} elements, but only {len(body) - position} bytes remain"
        )
    if count > ELEMENTS_MAX:
        raise ProtocolError(f"Fetch request: array of {count} elements; the limit is {ELEMENTS_MAX}")
    return count, position


def _topic_key(version: int, body: memoryview, position: int) -> tuple[str | None, bytes | None, int]:
    if version >= TOPIC_IDS:
        # KIP-516: from v13 on topics are named by id alone.
        return None, bytes(body[position : position + 16]), position + 16
    name, position = (read_compact_string if version >= FLEXIBLE else read_string)(body, position)
    if name is None:
        raise ProtocolError("a topic name of a Fetch request must not be null")
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
        # Limit topics and partitions together, because many topics with few partitions cost as much as few topics with
        # many.
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
        if version >= FLEXIBLE:
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
        if version >= FLEXIBLE:
            position = skip_tags(body, position)
        forgotten.append((name, topic_id, indexes))
    return forgotten, position


def _decode_tags(version: int, body: memoryview, position: int, replica_id: int) -> int:
    """Return the replica id in the tagged field ReplicaState (v15, KIP-903), or `replica_id` if it is absent."""
    count, position = read_unsigned_varint(body, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(body, position)
        size, position = read_unsigned_varint(body, position)
        if position + size > len(body):
            raise ProtocolError("tagged field runs past the end of its Fetch request")
        # KIP-903 moved the replica id from the head into a tagged field with v15.
        if tag == _REPLICA_STATE_TAG and version >= _REPLICA_STATE:
            (replica_id,) = INT32.unpack_from(body, position)
        position += size
    return replica_id
