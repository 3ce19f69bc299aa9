"""The records that travel over links: fixed heads in host byte order, payload behind.

Processor -> Handler                                   Handler -> Processor
REQUEST        head, one or more whole frames          SEND         head, one response frame
REQUEST_BLOCK  head, block offset, frame length        SEND_PARTS   head, parts (bytes and file ranges)
DISCONNECTED   head                                    NO_OP        head (acks=0: nothing is sent)
                                                       CLOSE        head, perhaps a last response frame (close the
                                                                    connection behind it)
                                                       SENDS        several SENDs with frames of equal length
IDENTITY       head, the client's address, session     HINT         a partition's owner for the Processor's router
MOVE_OUT       head (sequence: attempt)                MOVED        head (sequence: attempt), sequences
MOVE_IN        head, sequences                         THROTTLE     head, milliseconds, quota
                                                       NOTE         head, client software
                                                       TIMES        head, API key, throttle, three times
SOCKET_TIME    head, ns, client id                     METERED      head (sequence: 1 or 0), client id
RECALL_BLOCK   head                                    BLOCK_FREE   head
                                                       AUTHENTICATED  head, session
Handler <-> Handler, Controller <-> Handler, Cleaner <-> Handler
CALL           token, msgpack [op, body], raw bytes    REPLY        token, msgpack body
DELTA          msgpack of a metadata delta             SNAPSHOT     msgpack of a whole image
DELTA_ACK      token = image version

head:  | connection id u64 | sequence u32 | listener u16 | flags u16 |   16 bytes
A frame in REQUEST keeps its int32 length, so that one record can carry all frames of one read. `sequence` is that of
the first frame. A response carries the sequence of its request, so that the Processor can send responses in request
order. The listener and flags of a response have no meaning. CHUNK holds the beginning of a message that is too large
for one record. The record that ends the message has the real kind.

Migration of a connection (processor/migration.py): its Processor stops reading and sends MOVE_OUT behind the
connection's requests. The Handler keeps the responses of requests that are parked or that park later, and names these
requests in MOVED. It answers all others as usual. The Processor that holds the socket in the end sends MOVE_IN, with
the requests whose responses it expects. The Handler sends their responses there, and CLOSE for a request that it does
not know. DISCONNECTED with FLAG_MOVED comes from the Processor that the connection left. The client is still connected.
DISCONNECTED with FLAG_NEW_HOME tells the former home Handler to end the connection's share sessions. It keeps the
IDENTITY, because it may still get requests for its own partitions.

IDENTITY holds a client's address, 16 bytes as role/handoff.py packs them, and its Session (security/session.py). The
Processor sends it once to each Handler, before a connection's first request there. DISCONNECTED without FLAG_NEW_HOME
removes it. IDENTITY is sent again by the next Processor of a migrated connection, before the first request to another
Handler, and when the session changes. FLAG_LOGIN on a request means that its client has not logged in, or that its
session has expired. Such requests go only to the home Handler, one at a time. AUTHENTICATED ends the login. It comes
before the response of the same request. THROTTLE is Kafka's StartThrottling. It comes before the response of the same
sequence, which is sent at once. The Processor then reads nothing of that connection until the time is over (its own
timer is EndThrottling). If several THROTTLE overlap, the longest counts. METERED says that the client has a
request_percentage (sequence 1) or has none any more (sequence 0), with its client id. While it has one, the Processor
sends the time that it spends on the client's socket as SOCKET_TIME, with that client id (processor/metered.py).
RECALL_BLOCK requests the block of a request that is not answered yet. The Handler has dispatched the request before it
reads RECALL_BLOCK, and no view of a block outlives the dispatch, so it answers BLOCK_FREE. A request that waits for
minutes then occupies no arena memory. NOTE has the client's own description from ApiVersions (KIP-511): msgpack [client
id, software name, software version].

FLAG_TIMED on REQUEST or REQUEST_BLOCK lets the Handler time the (first) frame. It sends TIMES before the response, with
three times by the monotonic clock that all processes of a host share: when it dequeued the request, when its local work
was done, and when it responded. The Processor measures the other times and owns the histograms
(processor/timed_requests.py).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import Final, TypeVar

from kproc.broker.ipc.ring import RECORD_HEADER, RECORD_ROUND
from kproc.wire.file_range import FileRange

REQUEST: Final = 1
REQUEST_BLOCK: Final = 2
DISCONNECTED: Final = 3
SEND: Final = 4
SEND_PARTS: Final = 5
NO_OP: Final = 6
CLOSE: Final = 7
CALL: Final = 8
REPLY: Final = 9
DELTA: Final = 10
SNAPSHOT: Final = 11
DELTA_ACK: Final = 12
CHUNK: Final = 13
HINT: Final = 14
MOVE_OUT: Final = 15
MOVED: Final = 16
MOVE_IN: Final = 17
THROTTLE: Final = 18
NOTE: Final = 19
TIMES: Final = 20
IDENTITY: Final = 21
SENDS: Final = 22
AUTHENTICATED: Final = 23
METERED: Final = 24
SOCKET_TIME: Final = 25
RECALL_BLOCK: Final = 26
BLOCK_FREE: Final = 27

HEAD: Final = struct.Struct("=QIHH")
HEAD_BYTES: Final = HEAD.size
# The ring's record header (ipc/ring.py: RECORD_HEADER) and the 16-byte head that follows it.
RECORD: Final = struct.Struct("=IIQIHH")
assert RECORD.size == RECORD_HEADER.size + HEAD_BYTES
# A record with a head and a payload of n bytes occupies (n + BEHIND_HEAD_ROUND) & -8 bytes of the ring.
BEHIND_HEAD_ROUND: Final = HEAD_BYTES + RECORD_ROUND
SEQUENCE_MASK: Final = 0xFFFF_FFFF  # Sequences wrap, because a connection may have more than 2**32 requests.
BLOCK: Final = struct.Struct("=QQ")
TOKEN: Final = struct.Struct("=QI")  # token, bytes of msgpack that follow
FLAG_LOOPBACK: Final = 1  # The client's address is a loopback address, so private operations are allowed.
FLAG_TIMED: Final = 2  # REQUEST and REQUEST_BLOCK: the Processor waits for TIMES.
# The connection is the broker's own probe of its readiness. Quotas, ACLs and counters skip it, because its requests are
# not a client's.
FLAG_PROBE: Final = 4
FLAG_TLS: Final = 8  # The connection's listener is SSL or SASL_SSL.
FLAG_SASL: Final = 16  # The connection's listener is SASL_PLAINTEXT or SASL_SSL.
FLAG_LOGIN: Final = 32  # The client must log in before other requests are handled.
FLAG_MOVED: Final = 0x8000  # DISCONNECTED only: the connection lives on in another Processor.
FLAG_NEW_HOME: Final = 0x4000  # DISCONNECTED only: the connection lives on with another home Handler.
SOCKET_NS: Final = struct.Struct("=Q")
THROTTLE_MS: Final = struct.Struct("=I")
# API key, throttle in ms, and the monotonic times in ns when the Handler dequeued the request, finished its local work
# and responded.
TIMES_BODY: Final = struct.Struct("=HxxIQQQ")
UNTIMED_KEY: Final = 0xFFFF  # The API key in TIMES for a request of no advertised API. It is not counted.

_PART: Final = struct.Struct("=BI")  # 0 = bytes of that length; 1 = file range with a path of that length
_RANGE: Final = struct.Struct("=QQQ")  # inode, position, length
_PART_BYTES, _unpack_part = _PART.size, _PART.unpack_from
_RANGE_BYTES, _unpack_range = _RANGE.size, _RANGE.unpack_from
# Bound of the cache, because each combination of the lengths of head, path and end needs its own Struct.
_RANGE_STRUCTS_KEPT: Final = 1024

RangeT = TypeVar("RangeT")


def pack_sequences(sequences: Iterable[int]) -> bytes:
    """Encode the sequences that follow the head of MOVED and MOVE_IN."""
    return array("I", sequences).tobytes()


def unpack_sequences(view: memoryview) -> list[int]:
    """Decode sequences that `pack_sequences` has encoded."""
    return array("I", bytes(view)).tolist()


@cache
def _answer_struct(frame_bytes: int) -> struct.Struct:
    return struct.Struct(f"=QI4x{frame_bytes}s")


def answers_of(view: memoryview) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over the (connection id, sequence, frame) of a SENDS record. All frames are as long as the first."""
    return _answer_struct(4 + int.from_bytes(view[HEAD_BYTES : HEAD_BYTES + 4], "big")).iter_unpack(view)


def encode_parts(parts: list[bytes | FileRange]) -> bytes:
    """Encode the bytes and file ranges of a response that follow the head of SEND_PARTS."""
    out: list[bytes] = []
    for part in parts:
        if isinstance(part, FileRange):
            out.append(_PART.pack(1, len(part.path)))
            out.append(_RANGE.pack(part.inode, part.position, part.length))
            out.append(part.path)
        else:
            out.append(_PART.pack(0, len(part)))
            out.append(part)
    return b"".join(out)


@lru_cache(_RANGE_STRUCTS_KEPT)
def _range_struct(head_bytes: int, path_bytes: int, end_bytes: int) -> struct.Struct:
    end = f"BI{end_bytes}s" if end_bytes else ""
    return struct.Struct(f"=12s4xBI{head_bytes}sBIQQQ{path_bytes}s{end}")


def encode_range_answer(ids: bytes, head: bytes, found: FileRange, end: bytes) -> bytes:
    """Encode a whole SEND_PARTS record of bytes (`head`), one file range, and bytes behind the range (`end`).

    ids: the encoded connection id and sequence.

    The result equals a head and the output of `encode_parts`. One Struct call is faster for this common case.
    """
    path, inode, position, length = found
    head_bytes, path_bytes, end_bytes = len(head), len(path), len(end)
    pack = _range_struct(head_bytes, path_bytes, end_bytes).pack
    fixed = ids, 0, head_bytes, head, 1, path_bytes, inode, position, length, path
    return pack(*fixed, 0, end_bytes, end) if end_bytes else pack(*fixed)


def decode_parts(
    view: memoryview, open_range: Callable[[bytes, int, int, int], RangeT]
) -> list[memoryview | RangeT]:
    """Decode the output of `encode_parts`. Bytes are returned as views of `view`.

    A range becomes the result of `open_range`, which gets the fields of its FileRange.
    """
    parts: list[memoryview | RangeT] = []
    position, end = 0, len(view)
    while position < end:
        is_range, length = _unpack_part(view, position)
        position += _PART_BYTES
        if is_range:
            inode, start, count = _unpack_range(view, position)
            position += _RANGE_BYTES
            following = position + length
            parts.append(open_range(view[position:following].tobytes(), inode, start, count))
        else:
            following = position + length
            parts.append(view[position:following])
        position = following
    return parts
