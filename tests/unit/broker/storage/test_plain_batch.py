"""The fields by which an append recognizes a plain batch."""

from __future__ import annotations

from kproc.broker.storage.plain_batch import LEADS, LEADS_END, START_BYTES, unpack_start
from kproc.wire.batch_header import HEADER_BYTES, RECORD_COUNT
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.cases import in_one_test


@in_one_test("value_bytes", [0, 1, 50, 55, 56, 57, 58, 59, 120, 1000, 8000])
def test_lead_of_each_size_is_that_of_an_encoded_record(value_bytes: int) -> None:
    batch = encode_batch([Record(None, bytes(value_bytes))])
    assert len(batch) < LEADS_END
    assert unpack_start(batch)[-1] == LEADS[len(batch)]
    assert unpack_start(batch)[RECORD_COUNT] == 1


def test_lead_of_a_longer_record_differs() -> None:
    batch = encode_batch([Record(None, bytes(100))])
    assert unpack_start(batch + b"\0")[-1] != LEADS[len(batch) + 1]


def test_sizes_below_the_shortest_record_have_no_lead() -> None:
    assert not any(LEADS[:HEADER_BYTES])
    assert LEADS[START_BYTES] == 0
