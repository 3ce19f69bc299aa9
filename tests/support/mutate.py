"""Malformed frames: valid ones of every API, damaged in the ways that real bugs and attacks damage them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.minimal import MINIMAL

# Lengths and counts at which decoders have failed before: negative, huge, just beyond what is there.
TELLING_INT32 = (-1, -2, -(2**31), 2**31 - 1, 0, 1, 0x7FFFFFF0, 1_000_000)
TELLING_INT16 = (-1, -2, -(2**15), 2**15 - 1, 0, 1)
LONG_VARINT = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"


def valid_frames(topic: str, topic_id: bytes, served: Sequence[tuple[int, int, int]]) -> list[bytes]:
    """A frame of each served (key, version) that has a minimal request."""
    return [
        codec.encode_request(ApiKey(key), version, number, "fuzz", MINIMAL[ApiKey(key)](topic, topic_id))
        for number, (key, low, high) in enumerate(served)
        if ApiKey(key) in MINIMAL
        for version in range(max(low, 3) if key == ApiKey.PRODUCE else low, high + 1)
    ]


def malformed_frames(seeds: Sequence[bytes], count: int, source: random.Random) -> Iterator[bytes]:
    """`count` frames, each a damaged copy of a random seed."""
    for _ in range(count):
        yield source.choice(DAMAGES)(source.choice(seeds), source)


def _reframed(body: bytes | bytearray) -> bytes:
    """With a length that fits, so that the damage is seen by the decoder and not by the framing."""
    return struct.pack(">i", len(body)) + bytes(body)


def flip_bits(frame: bytes, source: random.Random) -> bytes:
    body = bytearray(frame[4:])
    for _ in range(source.randint(1, 8)):
        body[source.randrange(len(body))] ^= 1 << source.randrange(8)
    return _reframed(body)


def cut_short(frame: bytes, source: random.Random) -> bytes:
    return _reframed(frame[4 : source.randrange(4, len(frame))])


def cut_inside_frame(frame: bytes, source: random.Random) -> bytes:
    """The length promises more than ever comes; the connection then closes."""
    return frame[: source.randrange(1, len(frame))]


def telling_int32(frame: bytes, source: random.Random) -> bytes:
    body = bytearray(frame[4:])
    struct.pack_into(">i", body, source.randrange(8, max(9, len(body) - 4)), source.choice(TELLING_INT32))
    return _reframed(body)


def telling_int16(frame: bytes, source: random.Random) -> bytes:
    body = bytearray(frame[4:])
    struct.pack_into(">h", body, source.randrange(0, len(body) - 2), source.choice(TELLING_INT16))
    return _reframed(body)


def long_varint(frame: bytes, source: random.Random) -> bytes:
    body = bytearray(frame[4:])
    position = source.randrange(8, len(body) + 1)
    body[position : position + source.randint(0, 3)] = LONG_VARINT
    return _reframed(body)


def random_tail(frame: bytes, source: random.Random) -> bytes:
    body = frame[4 : source.randrange(8, len(frame) + 1)]
    return _reframed(body + source.randbytes(source.randint(0, 200)))


def doubled_piece(frame: bytes, source: random.Random) -> bytes:
    body = frame[4:]
    low = source.randrange(len(body))
    high = source.randrange(low, len(body)) + 1
    return _reframed(body[:high] + body[low:high] * source.randint(1, 20) + body[high:])


def wrong_length(frame: bytes, source: random.Random) -> bytes:
    return struct.pack(">i", source.choice((*TELLING_INT32, len(frame), len(frame) - 5))) + frame[4:]


def noise(frame: bytes, source: random.Random) -> bytes:
    return source.randbytes(source.randint(1, 300))


def unknown_key(frame: bytes, source: random.Random) -> bytes:
    return _reframed(
        struct.pack(">hh", source.choice((-1, 4, 5, 88, 999, 32_767)), source.randint(-1, 20)) + frame[8:]
    )


DAMAGES = (
    flip_bits,
    cut_short,
    cut_inside_frame,
    telling_int32,
    telling_int16,
    long_varint,
    random_tail,
    doubled_piece,
    wrong_length,
    noise,
    unknown_key,
)
