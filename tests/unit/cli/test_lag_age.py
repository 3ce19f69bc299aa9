"""lag_age: the time of the first record at or after an offset, from whole, cut and damaged batches."""

from __future__ import annotations

from kproc.cli.lag_age import time_of
from kproc.wire.record_batch import Record, encode_batch

FIRST_MS, STEP_MS = 1_700_000_000_000, 10


def content(*sizes: int, codec: int = 0) -> bytes:
    """Return adjacent batches of these numbers of records. The record with offset n is from FIRST_MS + n * STEP_MS."""
    batches, offset = b"", 0
    for size in sizes:
        records = [Record(None, b"v", FIRST_MS + STEP_MS * (offset + each)) for each in range(size)]
        batches += encode_batch(records, base_offset=offset, codec=codec)
        offset += size
    return batches


def test_time_of_offset_is_that_of_its_record() -> None:
    for codec in (0, 1):
        batches = content(3, 2, codec=codec)
        assert [time_of(batches, offset) for offset in range(6)] == [
            *(FIRST_MS + STEP_MS * offset for offset in range(5)),
            None,
        ]


def test_time_in_a_cut_batch_is_the_base_timestamp() -> None:
    batches = content(1, 40)
    cut = batches[: len(content(1)) + 100]
    assert time_of(cut, 0) == FIRST_MS
    assert time_of(cut, 1) == FIRST_MS + STEP_MS
    assert time_of(cut, 40) == FIRST_MS + STEP_MS


def test_bytes_without_a_whole_header_have_no_time() -> None:
    for damaged in (b"", content(1)[:30], bytes(100)):
        assert time_of(damaged, 0) is None
