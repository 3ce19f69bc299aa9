"""Batches that a hostile client makes, from a seed: the CRC is right, and anything else may be wrong.

Varints of every length, nested sizes that contradict each other, counts that the bytes cannot hold, compressed data
that grow without end, timestamps at the edges of 64 bits, flags that only a broker may set, headers of all kinds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from typing import Final

from kproc.wire.compression import compress
from kproc.wire.primitives import encode_varint
from kproc.wire.record_batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from tests.support import hostile

NOW_MS: Final = 1_700_000_000_000
_TIMES: Final = (NOW_MS, NOW_MS, NOW_MS, -1, 0, -2, 2**63 - 1, -(2**63), NOW_MS + 10**12)
_LENGTHS: Final = (0, 1, 2, -1, -2, 5, 63, 64, 127, 128, 8191, 8192, 2**31 - 1, -(2**31), 2**34)
_COUNTS: Final = (0, 1, 2, 3, -1, 100, 2**31 - 1, -(2**31), 4_000_000)
_BOMB_BYTES: Final = (300_000, 1 << 20, 34 << 20)


def varint(source: random.Random, value: int) -> bytes:
    """A varint as Kafka writes it; or with more bytes than it needs, up to 12; or without end."""
    plain = encode_varint(value)
    luck = source.random()
    if luck < 0.93:
        return plain
    if luck < 0.97:
        more = source.randrange(1, 12)
        return plain[:-1] + bytes((plain[-1] | 128,)) + b"\x80" * (more - 1) + b"\0"
    return b"\xff" * source.randrange(1, 40)


def _sized(source: random.Random, content: bytes | None) -> bytes:
    """Nullable bytes behind their length, which is sometimes another one."""
    length = -1 if content is None else len(content)
    if source.random() < 0.06:
        length = source.choice((length + 1, length - 1, *_LENGTHS))
    return varint(source, length) + (content or b"")


def _headers(source: random.Random) -> bytes:
    count = source.choice((0, 0, 0, 1, 2, 30))
    content = b"".join(
        _sized(
            source,
            source.choice((b"", b"h", b"\xff\xfe", "ключ".encode(), None if source.random() < 0.1 else b"k")),
        )
        + _sized(source, source.choice((None, b"", b"x", bytes(50))))
        for _ in range(count)
    )
    claimed = source.choice(_COUNTS) if source.random() < 0.04 else count
    return varint(source, claimed) + content


def _record(source: random.Random, number: int, delta: int) -> bytes:
    offset = source.choice((number, number, number + 1, -1, 2**31, 0)) if source.random() < 0.05 else number
    body = (
        bytes((source.choice((0, 0, 0, 1)),))  # Unused. kafka-python takes one above 127 for a varint.
        + varint(source, delta)
        + varint(source, offset)
        + _sized(source, source.choice((b"k%d" % number, b"key", None, bytes(200))))
        + _sized(source, source.choice((b"v", b"", None, bytes(source.choice((10, 70, 9000))))))
        + _headers(source)
    )
    if source.random() < 0.03:
        body += bytes(source.randrange(1, 9))
    return _sized(source, body)


def hostile_batch(source: random.Random) -> bytes:
    """One batch; about half of them are right."""
    count = source.choice((1, 1, 1, 2, 3, 20, 70))
    base = source.choice(_TIMES) if source.random() < 0.2 else NOW_MS
    deltas = [source.choice((0, 0, 1, 1000, -5, 2**63 - 1, -(2**63), 2**70)) for _ in range(count)]
    if source.random() < 0.8:
        deltas = list(range(count))
    payload = b"".join(_record(source, number, delta) for number, delta in enumerate(deltas))
    codec = source.choice((0, 0, 0, 1, 2, 3, 4))
    payload = compress(codec, payload)
    luck = source.random()
    if luck < 0.03:
        payload = payload[: source.randrange(len(payload))]
    elif luck < 0.06:
        payload += source.randbytes(source.randrange(1, 60))
    elif luck < 0.08:
        payload = source.randbytes(source.randrange(0, 200))
    elif luck < 0.09:
        codec = source.randrange(0, 8)
    claimed = source.choice(_COUNTS) if source.random() < 0.06 else count
    last = source.choice(_COUNTS) if source.random() < 0.04 else claimed - 1
    flags = (
        source.choice((CONTROL, TRANSACTIONAL, CONTROL | TRANSACTIONAL, LOG_APPEND_TIME, 0x40, 0x80))
        if (source.random() < 0.05)
        else 0
    )
    largest = source.choice(_TIMES) if source.random() < 0.1 else max(base, NOW_MS)
    return bytes(
        hostile.sealed(
            payload, count=_int32(claimed), last_offset_delta=_int32(last), codec=codec | flags,
            base_timestamp=base, max_timestamp=largest,
        )
    )  # fmt: skip


def _int32(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def bombs() -> Iterator[bytes]:
    """Batches of some kB that become some hundred kB to 34 MiB, of each codec and size."""
    for size in _BOMB_BYTES:
        for codec in (1, 2, 3, 4):
            made = bytes(hostile.bomb(codec, size))
            if len(made) < 900_000:
                yield made
    yield bytes(hostile.sealed(b"\x1f\x8b\x08" + bytes(7) + zlib.compress(bytes(1 << 20), 9)[2:], codec=1))
    for codec in (1, 3, 4):
        yield bytes(hostile.sealed(compress(codec, hostile.empty_headers(1_100_000)), codec=codec))
        yield bytes(hostile.sealed(compress(codec, hostile.long_timestamp(1 << 20)), codec=codec))


def hostile_batches(source: random.Random, count: int) -> Iterator[bytes]:
    """Return `count` batches, the bombs among them."""
    yield from bombs()
    for _ in range(count):
        yield hostile_batch(source)
