"""FileRange: the sizes of messages that consist of bytes and of ranges of files."""

from __future__ import annotations

from kproc.wire.file_range import FileRange, FileRecords, size_bytes

ONE, TWO = FileRange(b"/a", 1, 0, 100), FileRange(b"/b", 2, 50, 20)


def test_size_of_records_is_the_sum_of_their_ranges() -> None:
    assert len(FileRecords([])) == 0
    assert len(FileRecords([ONE, TWO])) == 120


def test_size_of_message_counts_bytes_and_ranges() -> None:
    assert size_bytes([]) == 0
    assert size_bytes([b"head", ONE, b"", TWO, b"tail!"]) == 4 + 100 + 20 + 5
