"""The four codecs of record batches, as Kafka's clients write them.

    1 gzip     RFC 1952
    2 snappy   Java and Python clients: Xerial framing; librdkafka: one raw block. Both are read.
                 0x82 "SNAPPY" 0x00 | int32 version | int32 compatible version | (int32 length | raw block)*
    3 lz4      LZ4 frame format with independent blocks: Java refuses linked ones
    4 zstd     frames as of RFC 8878

A batch's header has the compressed size but not the decompressed one. Every decompression therefore has a limit of size
and ratio (`inflation_limit`), and the output buffer grows step by step up to that limit.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import cramjam

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.primitives import INT32, Buffer


class Compression(IntEnum):
    """Codec number: the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Largest decompressed size. A compressed batch has at most message.max.bytes, by default 1 MiB, and the best codec
# makes that of 128 MiB of repetitive records. This is far below the memory limit of a role.
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
# Largest allowed ratio of decompressed to compressed size: gzip's maximum. lz4 reaches 255 and snappy 21. Only zstd can
# exceed it, with 4 kB that become 128 MiB.
INFLATION_RATIO_MAX: Final = 1032
# A batch may decompress to this size with any ratio. Java's producer buffers 32 MiB in all by default (buffer.memory),
# so no producer with default settings makes a larger batch. Decompressing 32 MiB with zstd takes 0.05 s.
INFLATED_BYTES_FREE: Final = 32 * 1024 * 1024

# The largest ratio that a codec's format allows: a snappy element of 3 bytes copies 64 bytes, a byte of lz4 255 bytes.
# zstd has no row, because a block of 4 bytes can stand for 128 KiB.
_RATIO_MAX: Final[dict[int, int]] = {
    Compression.NONE: 1,
    Compression.GZIP: INFLATION_RATIO_MAX,
    Compression.SNAPPY: 32,
    Compression.LZ4: 256,
}

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + INT32.pack(1) + INT32.pack(1)
# The default block size of snappy-java, whose reader allocates its buffer by the block size.
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

# Text of cramjam's error if the output buffer is too small. Only the text distinguishes this error from damaged input,
# so a test checks the text.
_TOO_SMALL: Final = "failed to write whole buffer"


class InflatesTooMuch(KafkaError):
    """Compressed records exceed the caller's limit when they are decompressed."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"records decompress to more than {limit_bytes} bytes")


def inflation_limit(compressed_bytes: int) -> int:
    """Return the limit of the decompressed size of records with this compressed size."""
    return min(DECOMPRESSED_BYTES_MAX, max(INFLATED_BYTES_FREE, INFLATION_RATIO_MAX * compressed_bytes))


def inflated_bytes_max(codec: int, compressed_bytes: int) -> int:
    """Return the largest possible decompressed size, by the codec's format and by `inflation_limit`."""
    ratio = _RATIO_MAX.get(codec)
    limit = inflation_limit(compressed_bytes)
    return limit if ratio is None else min(limit, ratio * compressed_bytes)


def _compress_xerial(raw: Buffer) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(raw)
    for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
        parts += (INT32.pack(len(block)), block)
    return b"".join(parts)


def compress(codec: int, raw: Buffer, level: int | None = None) -> bytes:
    """Compress records so that every Kafka client can read them. Raises UNSUPPORTED_COMPRESSION_TYPE.

    `level` is Kafka's compression.<codec>.level. With None, gzip, lz4 and zstd use their own default.
    """
    match codec:
        case Compression.NONE:
            return bytes(raw)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(raw, level=level))
        case Compression.SNAPPY:
            return _compress_xerial(raw)
        case Compression.LZ4:
            # Do not link blocks, because Kafka's Java reader of LZ4 rejects linked blocks.
            compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
            compressor.compress(bytes(raw))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(raw, level=level))
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


# The magic numbers of the codecs. A skippable zstd frame (RFC 8878) begins with a byte from 0x50 to 0x5f instead.
_GZIP_START: Final = b"\x1f\x8b"
_LZ4_START: Final = b"\x04\x22\x4d\x18"
_ZSTD_STARTS: Final = (
    b"\x28\xb5\x2f\xfd",
    *(bytes((first,)) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)),
)


def has_frame_start(codec: int, data: Buffer) -> bool:
    """Return True if compressed records begin with the magic number of their codec. Reads only a few bytes.

    Always True for snappy, because a raw block of snappy has no magic number.
    """
    start = bytes(data[:4])
    match codec:
        case Compression.GZIP:
            return start.startswith(_GZIP_START)
        case Compression.LZ4:
            return start == _LZ4_START
        case Compression.ZSTD:
            return start in _ZSTD_STARTS
    # Snappy: accept any first bytes, because a raw block has no magic number and begins with its length.
    return True


def _gunzip(data: Buffer, limit_bytes: int) -> bytes:
    # wbits=31: the largest window (15), plus 16 for the header and trailer of gzip. zlib can limit its output exactly,
    # so no output size has to be guessed.
    inflater = zlib.decompressobj(wbits=31)
    raw = inflater.decompress(data, limit_bytes + 1)
    # One byte more than the limit was requested, so that an output of exactly the limit differs from one beyond it.
    if len(raw) > limit_bytes:
        raise InflatesTooMuch(limit_bytes)
    # Require the end of the gzip stream. Otherwise a truncated stream would count as a shorter valid one.
    if not inflater.eof:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the gzip data of a batch are cut off")
    # Reject bytes after the first gzip member, because consumers differ: they read a second member, ignore it, or fail.
    if inflater.unused_data:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{len(inflater.unused_data)} bytes follow the gzip data of a batch"
        )
    return raw


def _unsnappy_block(data: Buffer, room: int, limit_bytes: int) -> bytes:
    # The decompressed size in front of a block is not trustworthy, so check it against snappy's largest ratio before
    # allocating.
    size = cramjam.snappy.decompress_raw_len(data)
    if size > _RATIO_MAX[Compression.SNAPPY] * len(data):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"impossible size in bytes: snappy block of {len(data)} bytes claims to become {size}",
        )
    # Compare with the remaining part of the limit, which applies to all blocks of the batch together.
    if size > room:
        raise InflatesTooMuch(limit_bytes)
    return bytes(cramjam.snappy.decompress_raw(data))


def _unsnappy(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    # Without the header of xerial's snappy-java, which Java's clients write in front of their blocks, the records are
    # one raw block.
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        if not view:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the snappy data of a batch are empty")
        return _unsnappy_block(view, limit_bytes, limit_bytes)
    parts: list[bytes] = []
    room = limit_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + INT32.size > len(view):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the snappy data of a batch are cut off")
        (length,) = INT32.unpack_from(view, position)
        position += INT32.size
        # Reject zero and negative lengths of a block: a negative one would move the position back, in an endless loop.
        if not 0 < length <= len(view) - position:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"snappy block claims to have {length} bytes, which does not fit",
            )
        part = _unsnappy_block(view[position : position + length], room, limit_bytes)
        room -= len(part)
        parts.append(part)
        position += length
    return b"".join(parts)


def _grow_until_it_fits(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    decompress_into = (
        cramjam.lz4.decompress_into if codec == Compression.LZ4 else cramjam.zstd.decompress_into
    )
    size = min(limit_bytes, max(64 * 1024, 4 * len(data)))
    while True:
        room = bytearray(size)
        try:
            length = decompress_into(data, room)
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise
            if size == limit_bytes:
                raise InflatesTooMuch(limit_bytes) from None
            # Grow the output buffer by a factor of 4, so that all failed attempts together cost a third of the last
            # one.
            size = min(limit_bytes, 4 * size)
        else:
            return bytes(memoryview(room)[:length])


def decompress(codec: int, data: Buffer, limit_bytes: int | None = None) -> bytes:
    """Return the raw records. Raise KafkaError if the data are damaged or exceed `limit_bytes` when decompressed.

    The default limit is `inflation_limit` of the data's size.
    """
    if limit_bytes is None:
        limit_bytes = inflation_limit(len(data))
    try:
        match codec:
            case Compression.NONE:
                return bytes(data)
            case Compression.GZIP:
                return _gunzip(data, limit_bytes)
            case Compression.SNAPPY:
                return _unsnappy(data, limit_bytes)
            case Compression.LZ4 | Compression.ZSTD:
                return _grow_until_it_fits(codec, data, limit_bytes)
    except (cramjam.DecompressionError, zlib.error) as error:
        name = Compression(codec).name.lower()
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{name} records are damaged: {error}") from None
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
