"""The plain struct of a batch's header: its indexes and positions are those of an encoded batch."""

from __future__ import annotations

from kproc.wire import batch_header
from kproc.wire.batch_header import HEADER, HEADER_BYTES, STAMP, last_offset_of
from kproc.wire.checksum import crc32c
from kproc.wire.record_batch import encode_batch, parse_header
from kproc.wire.records import Record


def test_indexes_and_positions_agree_with_an_encoded_batch() -> None:
    data = encode_batch(
        [Record(b"k", b"v", 5), Record(b"k", b"w", 9)], producer_id=7, producer_epoch=3, base_sequence=11
    )
    row = HEADER.unpack_from(data)
    parsed = parse_header(data, 0)
    assert row[batch_header.BATCH_LENGTH] == len(data) - STAMP.size + 4
    assert row[batch_header.MAGIC_BYTE] == data[batch_header.MAGIC_AT] == 2
    assert row[batch_header.CRC] == crc32c(memoryview(data)[batch_header.CRC_FROM :])
    assert row[batch_header.MAX_TIMESTAMP] == parsed.max_timestamp
    at = batch_header.MAX_TIMESTAMP_AT
    assert int.from_bytes(data[at : at + 8]) == parsed.max_timestamp
    producer = [
        row[batch_header.PRODUCER_ID],
        row[batch_header.PRODUCER_EPOCH],
        row[batch_header.BASE_SEQUENCE],
    ]
    assert producer == [7, 3, 11]
    assert row[batch_header.RECORD_COUNT] == 2
    assert len(data) > HEADER_BYTES == 61


def test_last_offset_counts_records_that_compaction_removed() -> None:
    header = (100, 49, 0, 2, 0, 0, 9, -1, -1, -1, -1, -1, 1)
    assert last_offset_of(header) == 109
