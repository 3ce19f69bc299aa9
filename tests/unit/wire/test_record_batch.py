"""Batch headers: what is refused with which code, and stamping in place."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import record_batch as rb
from kproc.wire.record_batch import Record, check_batch, decode_records, encode_batch
from tests.support.cases import in_one_test

RECORDS = [Record(b"k", b"v" * 50, 1_000), Record(None, b"w", 1_005), Record(b"k2", None, 1_003)]


def patched(batch: bytearray, at: int, raw: bytes, *, good_crc: bool = True) -> bytearray:
    changed = bytearray(batch)
    changed[at : at + len(raw)] = raw
    if good_crc:
        changed[17:21] = rb.crc_of(changed).to_bytes(4, "big")
    return changed


def test_a_good_batch_gives_its_header():
    batch = encode_batch(RECORDS, producer_id=9, producer_epoch=2, base_sequence=2**31 - 2)
    header = check_batch(memoryview(batch))
    assert header == rb.parse_header(b"..." + batch, 3)
    assert (header.record_count, header.last_offset_delta, header.total_bytes) == (3, 2, len(batch))
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_005)
    assert header.last_sequence == 0  # Sequences wrap.
    assert not header.is_transactional
    assert not header.is_control
    assert header.codec == 0


@pytest.mark.parametrize("view", [bytes, bytearray, memoryview, lambda b: memoryview(bytes(b)).toreadonly()])
def test_every_kind_of_buffer_is_checked(view):
    assert check_batch(view(encode_batch(RECORDS))).record_count == 3


BATCH = encode_batch(RECORDS)
REFUSED = {
    "nothing at all": (bytearray(), ErrorCode.INVALID_RECORD),
    "fewer bytes than a header": (BATCH[:60], ErrorCode.CORRUPT_MESSAGE),
    "a header without its records": (patched(BATCH[:61], 8, b"\0\0\0\x31"), ErrorCode.INVALID_RECORD),
    "half a batch": (BATCH[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (BATCH + BATCH, ErrorCode.INVALID_RECORD),
    "bytes behind the batch": (BATCH + b"x", ErrorCode.INVALID_RECORD),
    "a length less than a header": (patched(BATCH, 8, b"\0\0\0\x10"), ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (patched(BATCH, 8, b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "an enormous length": (patched(BATCH, 8, b"\x7f\xff\xff\xff"), ErrorCode.INVALID_RECORD),
    "message format 0": (patched(BATCH, 16, b"\0"), ErrorCode.INVALID_RECORD),
    "message format 1, short": (patched(BATCH, 16, b"\1")[:34], ErrorCode.INVALID_RECORD),
    "message format 3": (patched(BATCH, 16, b"\3"), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit in the records": (patched(BATCH, 70, b"!", good_crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit in the header": (patched(BATCH, 44, b"!", good_crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a wrong CRC": (patched(BATCH, 17, b"abcd", good_crc=False), ErrorCode.CORRUPT_MESSAGE),
    "no records": (patched(BATCH, 57, bytes(4)), ErrorCode.INVALID_RECORD),
    "a negative count": (patched(BATCH, 57, b"\xff" * 4), ErrorCode.INVALID_RECORD),
    "a count that is not the offsets'": (patched(BATCH, 57, b"\0\0\0\2"), ErrorCode.INVALID_RECORD),
    "codec 5": (patched(BATCH, 21, b"\0\5"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
}


@in_one_test("story", REFUSED)
def test_a_bad_batch_is_refused_with_its_code(story):
    batch, code = REFUSED[story]
    with pytest.raises(KafkaError) as refused:
        check_batch(memoryview(batch))
    assert refused.value.code == code, refused.value


def test_check_one_batch_looks_at_length_and_format_only() -> None:
    header = patched(BATCH[:61], 8, b"\0\0\0\x31", good_crc=False)
    rb.check_one_batch(header)
    for batch, code in ((header[:60], ErrorCode.CORRUPT_MESSAGE), (header + b"x", ErrorCode.INVALID_RECORD)):
        with pytest.raises(KafkaError) as refused:
            rb.check_one_batch(batch)
        assert refused.value.code == code


def test_every_flipped_byte_behind_the_stamped_fields_is_found():
    for at in range(16, len(BATCH)):
        with pytest.raises(KafkaError):
            check_batch(patched(BATCH, at, bytes((BATCH[at] ^ 0x40,)), good_crc=False))


def test_a_header_that_is_cut_off_is_refused():
    with pytest.raises(KafkaError, match="needs 61 bytes, 11 remain"):
        rb.parse_header(BATCH, len(BATCH) - 11)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (encode_batch(RECORDS, flags=rb.CONTROL), "control"),
        (encode_batch(RECORDS, base_offset=5), "base offset"),
        (encode_batch(RECORDS, producer_id=1, producer_epoch=0), "sequence"),
    ],
)
def test_batch_that_only_brokers_write_is_rejected(batch, why):
    with pytest.raises(KafkaError, match=why) as refused:
        rb.check_from_client(check_batch(batch))
    assert refused.value.code == ErrorCode.INVALID_RECORD
    rb.check_from_client(check_batch(BATCH))


def test_stamping_moves_the_batch_and_leaves_its_crc_good():
    batch = bytearray(b"left" + BATCH + b"right")
    view = memoryview(batch)[4 : 4 + len(BATCH)]
    rb.stamp(view, 1_234_567, 42)
    header = check_batch(view)
    assert (header.base_offset, header.partition_leader_epoch) == (1_234_567, 42)
    assert header.last_offset == 1_234_569
    assert [record.offset for record in decode_records(view)] == [1_234_567, 1_234_568, 1_234_569]
    assert batch[:4] == b"left"
    assert batch[-5:] == b"right"


def test_append_time_sets_every_timestamp_and_renews_crc():
    batch = encode_batch(RECORDS, codec=4)
    rb.stamp_append_time(batch, 9_999)
    header = check_batch(batch)
    assert header.is_log_append_time
    assert (header.max_timestamp, header.base_timestamp, header.codec) == (9_999, 1_000, 4)
    assert [record.timestamp_ms for record in decode_records(batch)] == [9_999] * 3


def test_stamped_sequence_and_epoch_renew_the_crc():
    batch = encode_batch(RECORDS, producer_id=7, producer_epoch=0, base_sequence=0)
    rb.stamp_sequence(batch, 3, 2**31 - 1)
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 2**31 - 1)
    assert decode_records(batch) == decode_records(encode_batch(RECORDS))


def test_batch_without_records_or_falling_offsets_asserts():
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])
    with pytest.raises(ValueError, match="is below 5"):
        encode_batch([Record(b"a", b"", offset=4)], base_offset=5)


def test_a_batch_that_is_compressed_anew_has_no_delete_horizon():
    header = rb.parse_header(encode_batch([Record(b"k", b"v", 5)], flags=rb.HAS_DELETE_HORIZON))
    assert header.attributes == rb.HAS_DELETE_HORIZON
    _, anew = rb.rebuild(header, b"", codec=1, max_timestamp=5)
    assert anew.attributes == 1
