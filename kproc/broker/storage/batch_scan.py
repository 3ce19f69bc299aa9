"""Walks the batches of a .log file, and searches for good batches behind a bad one.

A crash of the owner leaves a part of the last write at the end of a file, without a good batch behind it. If a good
batch follows a bad one, the host has lost power and kept unsynced pages in another order, or the file is damaged.
log_end.py decides between the two by what a sync had confirmed, and logs whether good batches are truncated.
`kproc` commands that verify a stopped log report a good batch behind a bad one as damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kproc.broker.storage.fs import Fs
from kproc.wire.batch_header import (
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    CRC_FROM,
    EPOCH_AT,
    HEADER,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    MAGIC_AT,
    MAGIC_BYTE,
    Header,
)
from kproc.wire.checksum import crc32c
from kproc.wire.old_messages import HEAD as OLD_HEAD
from kproc.wire.old_messages import is_old_message, old_message_bytes
from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, MAGIC

_unpack = HEADER.unpack_from
_EPOCH_AND_MAGIC: Final = struct.Struct(">ib")

# Bytes of one pread of a scan: large enough to make the system call negligible, small enough for the CPU cache.
SCAN_CHUNK_BYTES: Final = 1 << 20
# Bytes of one pread of a look-up. They usually cover an index interval (4096 bytes) and the next header.
LOOKUP_CHUNK_BYTES: Final = 8192
# Behind a batch of this size or more, one pread has only LOOKUP_CHUNK_BYTES. The next batch is probably large, too, and
# the scan often needs only its header, so a whole chunk would mostly read records in vain.
LARGE_BATCH_BYTES: Final = 1 << 16


class BadBatch(Exception):
    """The bytes at a position of a .log file are not a whole batch."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no whole batch at position {position}: {reason}")
        self.position = position
        self.reason = reason


def read_header(fs: Fs, descriptor: int, position: int, end: int) -> Header:
    """Read the header of the batch at a position. Raises BadBatch unless a whole batch lies between there and `end`."""
    content = fs.read(descriptor, HEADER_BYTES, position=position)
    if len(content) < HEADER_BYTES:
        raise BadBatch(position, f"only {len(content)} bytes follow, less than a batch header")
    header = _unpack(content)
    _check_shape(position, header, header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES, end)
    return header


def walk_headers(
    fs: Fs, descriptor: int, start: int, end: int, *, chunk_bytes: int = SCAN_CHUNK_BYTES
) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of each batch between two positions. Raises BadBatch at the first bad header.

    `start` must be the position of a batch. CRCs are not checked.
    """
    # Check the start, because a damaged index can name any position.
    if not 0 <= start <= end:
        raise BadBatch(start, f"the position is outside of the file's {end} bytes")
    chunk = b""
    chunk_start = position = start
    total = 0
    while position < end:
        inside = position - chunk_start
        if inside + HEADER_BYTES > len(chunk):
            # Behind a large batch read only a small chunk, because the next batch is usually large, too, and only its
            # header is needed.
            wanted = chunk_bytes if total < LARGE_BATCH_BYTES else min(chunk_bytes, LOOKUP_CHUNK_BYTES)
            chunk = fs.read(descriptor, min(wanted, end - position), position=position)
            chunk_start, inside = position, 0
            if len(chunk) < HEADER_BYTES:
                raise BadBatch(position, f"only {len(chunk)} bytes follow, less than a batch header")
        header = _unpack(chunk, inside)
        # The length field does not count itself and the base offset before it, so their bytes are added. In the
        # condition that follows, the bitwise or of two numbers is negative if one of them is, which saves a comparison.
        total = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
        if (
            header[MAGIC_BYTE] != MAGIC
            or not HEADER_BYTES <= total <= end - position
            or header[BASE_OFFSET] | header[LAST_OFFSET_DELTA] < 0
        ):
            _check_shape(position, header, total, end)
        yield position, header
        position += total


def walk_checked(
    fs: Fs, descriptor: int, start: int, end: int, *, believed_end: int
) -> Iterator[tuple[int, Header]]:
    """Yield what walk_headers yields, but check the CRC of batches whose last offset is at least `believed_end`.

    Raises BadBatch, also for a wrong CRC.
    """
    chunk = memoryview(b"")
    chunk_start = position = start
    total = 0
    while position < end:
        inside = position - chunk_start
        if inside + HEADER_BYTES > len(chunk):
            # Behind a large batch read only a small chunk, because the next one is usually large, too, and only its
            # header may be needed.
            wanted = SCAN_CHUNK_BYTES if total < LARGE_BATCH_BYTES else LOOKUP_CHUNK_BYTES
            # Use a memoryview, because slices of bytes would copy every batch for its CRC.
            chunk = memoryview(fs.read(descriptor, min(wanted, end - position), position=position))
            chunk_start, inside = position, 0
            if len(chunk) < HEADER_BYTES:
                raise BadBatch(position, f"only {len(chunk)} bytes follow, less than a batch header")
        header = _unpack(chunk, inside)
        total = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
        if (
            header[MAGIC_BYTE] != MAGIC
            or not HEADER_BYTES <= total <= end - position
            or header[BASE_OFFSET] | header[LAST_OFFSET_DELTA] < 0
        ):
            _check_shape(position, header, total, end)
        if header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] >= believed_end:
            # Read the whole batch if the chunk ends inside it, because the CRC needs all bytes.
            if inside + total > len(chunk):
                chunk = _read_whole(fs, descriptor, position, total, end)
                chunk_start, inside = position, 0
            if crc32c(chunk[inside + CRC_FROM : inside + total]) != header[CRC]:
                raise BadBatch(position, "its CRC-32C does not match")
        yield position, header
        position += total


def _read_whole(fs: Fs, descriptor: int, position: int, total: int, end: int) -> memoryview:
    """Return a chunk of the file that begins with a batch of `total` bytes. Raise BadBatch if the file is shorter."""
    chunk = memoryview(
        fs.read(descriptor, min(max(SCAN_CHUNK_BYTES, total), end - position), position=position)
    )
    if len(chunk) < total:
        raise BadBatch(position, f"only {len(chunk)} of its {total} bytes could be read")
    return chunk


def _check_shape(position: int, header: Header, total: int, end: int) -> None:
    """Raise BadBatch for an invalid header.

    The walks make these checks inline, because a call per batch is expensive, and call this function only to raise the
    error. The record count is not compared with the offsets, because compaction removes records.
    """
    if header[MAGIC_BYTE] != MAGIC:
        raise BadBatch(position, f"the magic byte is {header[MAGIC_BYTE]}, not {MAGIC}")
    if total < HEADER_BYTES:
        raise BadBatch(position, f"the batch length {header[BATCH_LENGTH]} is less than a header")
    if position + total > end:
        raise BadBatch(position, f"the header says {total} bytes, but only {end - position} follow")
    if header[BASE_OFFSET] < 0 or header[LAST_OFFSET_DELTA] < 0:
        raise BadBatch(
            position,
            f"base offset {header[BASE_OFFSET]} or last offset delta {header[LAST_OFFSET_DELTA]} is negative",
        )


def find_old_format(fs: Fs, descriptor: int, position: int, end: int) -> int | None:
    """Return the format, 0 or 1, of the message from before Kafka 0.11 at a position. None if there is no whole one."""
    total = old_message_bytes(fs.read(descriptor, OLD_HEAD.size, position=position))
    if total is None or total > end - position:
        return None
    message = fs.read(descriptor, total, position=position)
    return message[MAGIC_AT] if is_old_message(message) else None


def describe_old_format(path: Path, magic: int) -> str:
    """Return the error message for a segment with old messages, which kproc cannot read."""
    return (
        f"{path} has messages of format {magic}, from before Kafka 0.11; stop the broker and convert them: "
        f"kproc convert-log {path.parent}"
    )


def find_good_batch(
    fs: Fs, descriptor: int, start: int, end: int, *, next_offset: int, epochs: tuple[int, ...]
) -> int | None:
    """Return the position of a whole batch whose base offset is at least `next_offset`, or None.

    Search between the positions `start` and `end`. `epochs`: the leader epochs that the batch may have.

    The length in a damaged header is useless, so search the bytes for a leader epoch of this log followed by the magic
    byte. A candidate counts if its CRC-32C matches.
    """
    # Search for five bytes, the leader epoch and the magic byte, because payloads contain the magic byte 2 everywhere.
    patterns = [_EPOCH_AND_MAGIC.pack(epoch, MAGIC) for epoch in epochs]
    # The chunks overlap, because a header can begin in one chunk and end in the next.
    overlap = HEADER_BYTES - 1
    for chunk_start in range(start, end, SCAN_CHUNK_BYTES):
        wanted = min(SCAN_CHUNK_BYTES + overlap, end - chunk_start)
        chunk = fs.read(descriptor, wanted, position=chunk_start)
        for pattern in patterns:
            found = chunk.find(pattern, EPOCH_AT)
            while found >= 0:
                inside = found - EPOCH_AT
                # Skip a header that is cut off at the chunk's end. The next chunk repeats these bytes and has the whole
                # header.
                if inside + HEADER_BYTES <= len(chunk) and _is_good(
                    fs, descriptor, chunk_start + inside, end, _unpack(chunk, inside), next_offset
                ):
                    return chunk_start + inside
                found = chunk.find(pattern, found + 1)
    return None


def _is_good(fs: Fs, descriptor: int, position: int, end: int, header: Header, next_offset: int) -> bool:
    total = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
    try:
        _check_shape(position, header, total, end)
    except BadBatch:
        return False
    if header[BASE_OFFSET] < next_offset:
        return False
    batch = memoryview(fs.read(descriptor, total, position=position))
    return len(batch) == total and crc32c(batch[CRC_FROM:]) == header[CRC]
