"""Messages of formats 0 and 1: fields, damage, and compressed messages with their offsets."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.compression import Compression
from kproc.wire.old_messages import OldMessage, _xxh32, decode_old_message, records_of
from kproc.wire.record_batch import NO_TIMESTAMP
from tests.support.old_messages import LOG_APPEND_TIME, message, wrapper


def records(data: bytes) -> list[tuple[int, int, bytes | None]]:
    """Offset, timestamp and value of each record of one message."""
    decoded, end = decode_old_message(data)
    assert end == len(data)
    return [(each.offset, each.timestamp_ms, each.value) for each in records_of(decoded)]


def test_old_message_fields_are_decoded_at_any_position() -> None:
    first, second = message(7, None, b"v", 0), message(8, b"k", None, 1, 99)
    assert decode_old_message(first) == (OldMessage(7, 0, 0, False, NO_TIMESTAMP, None, b"v"), len(first))
    decoded, end = decode_old_message(first + second, len(first))
    assert decoded == OldMessage(8, 1, 0, False, 99, b"k", None)
    assert end == len(first + second)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_that_is_cut_or_changed_anywhere_is_corrupt(magic: int) -> None:
    good = message(7, b"key", b"value", magic, 5)
    harmed = [good[:size] for size in range(len(good))]
    harmed += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(8, len(good))]
    for data in harmed:
        with pytest.raises(KafkaError) as caught:
            decode_old_message(data)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_compressed_old_messages_have_absolute_offsets(codec: Compression) -> None:
    relative = [message(number, None, b"%d" % number, 1, 50 + number) for number in range(3)]
    expected = [(number + 7, 50 + number, b"%d" % number) for number in range(3)]
    assert records(wrapper(9, relative, 1, codec, 60)) == expected
    stamped = [(offset, 60, value) for offset, _, value in expected]
    assert records(wrapper(9, relative, 1, codec, 60, LOG_APPEND_TIME)) == stamped
    absolute = [message(number, None, b"%d" % number, 0) for number in (7, 9)]
    assert records(wrapper(9, absolute, 0, codec)) == [(7, NO_TIMESTAMP, b"7"), (9, NO_TIMESTAMP, b"9")]


def test_nested_or_empty_compressed_old_message_is_corrupt() -> None:
    inner = wrapper(1, [message(0, None, b"v", 1)], 1, Compression.GZIP)
    for inside in ([inner], []):
        with pytest.raises(KafkaError) as caught:
            records(wrapper(5, inside, 1, Compression.GZIP))
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_xxh32_gives_the_documented_hashes() -> None:
    assert (_xxh32(b""), _xxh32(b"a"), _xxh32(b"abc")) == (0x02CC5D05, 0x550D7456, 0x32D153FF)
