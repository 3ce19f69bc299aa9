"""The four codecs: framings of other writers, limits, damage and unknown codecs."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import compression
from kproc.wire.compression import Compression, compress, decompress
from tests.support.cases import in_one_test
from tests.support.record_outcomes import outcome

CODECS = list(Compression)


RAW = b"some words that repeat, " * 4_000
OTHER_WRITERS = {
    "gzip with a header name": (1, gzip.compress(RAW, mtime=5)),
    "raw snappy, as librdkafka": (2, bytes(cramjam.snappy.compress_raw(RAW))),
    "lz4 with linked blocks and checksums": (3, bytes(cramjam.lz4.compress(RAW))),
    "zstd of unknown content size": (4, b""),
}


@pytest.mark.parametrize("story", OTHER_WRITERS)
def test_other_writers_framings_are_read(story):
    codec, data = OTHER_WRITERS[story]
    if not data:
        stream = cramjam.zstd.Compressor()
        stream.compress(RAW)
        data = bytes(stream.finish())
    assert decompress(codec, data) == RAW
    assert decompress(codec, memoryview(data)) == RAW


def test_snappy_is_written_in_javas_xerial_framing():
    data = compress(Compression.SNAPPY, RAW)
    assert data[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (length,) = struct.unpack_from(">i", data, 16)
    assert bytes(cramjam.snappy.decompress_raw(data[20 : 20 + length])) == RAW[: 32 * 1024]


def test_lz4_is_written_with_independent_blocks_as_java_demands():
    data = compress(Compression.LZ4, RAW)
    assert data[:4] == b"\x04\x22\x4d\x18"
    version, independent = data[4] >> 6, data[4] >> 5 & 1
    assert (version, independent) == (1, 1)


@in_one_test("codec", CODECS[1:])
@in_one_test("size", [0, 1, 1000, 100_000, 3_000_000])
def test_the_limit_is_kept_to_the_byte(codec, size):
    raw = bytes(size)
    data = compress(codec, raw)
    assert decompress(codec, data, limit_bytes=max(1, size)) == raw
    if size > 1:
        with pytest.raises(KafkaError, match=f"more than {size - 1} bytes") as refused:
            decompress(codec, data, limit_bytes=size - 1)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_snappy_claiming_four_gigabytes_allocates_nothing():
    claim = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    with pytest.raises(KafkaError, match="claims to become"):
        decompress(Compression.SNAPPY, claim)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compressed_records_are_corrupt_never_a_surprise(codec):
    rng = random.Random(codec)
    good = compress(codec, RAW)
    for _ in range(150):
        data = bytearray(good)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        assert outcome(lambda data=data: decompress(codec, bytes(data), 1 << 20)) in (
            None,
            ErrorCode.CORRUPT_MESSAGE,
        )
    for data in (b"", b"\1", b"garbage in here"):
        with pytest.raises(KafkaError):
            decompress(codec, data)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec):
    for use in (compress, decompress):
        with pytest.raises(KafkaError) as refused:
            use(codec, b"x")
        assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_cramjam_buffer_too_small_error_is_unchanged():
    for codec in (cramjam.lz4, cramjam.zstd):
        data = bytes(codec.compress(RAW))
        with pytest.raises(cramjam.DecompressionError, match=compression._TOO_SMALL):
            codec.decompress_into(data, bytearray(100))
