"""Converts a partition's segments from message formats 0 and 1 to batches of format 2, while no broker uses them.

The conversion keeps offsets, keys, values, timestamps and codecs. A record of format 0 has no timestamp, also after the
conversion. A timestamp of type LogAppendTime keeps its value and becomes a CreateTime.

One rename replaces each segment, after the new file was synced. After a crash at any step some segments are old and
some are new, and a second run converts the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.storage.batch_scan import SCAN_CHUNK_BYTES
from kproc.broker.storage.format import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file_name,
)
from kproc.broker.storage.fs import Fs, sync_directory
from kproc.broker.storage.segment_files import segment_bases
from kproc.common.errors import Corrupt, KafkaError
from kproc.wire.batch_header import HEADER_BYTES, MAGIC_AT
from kproc.wire.old_messages import OLD_MAGICS, OldMessage, decode_old_message, records_of
from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, encode_batch
from kproc.wire.records import Record

logger = logging.getLogger(__name__)

# Uncompressed messages are combined into batches of about this size, because one batch per message would double the
# size of small messages.
_BATCH_BYTES: Final = 64 << 10
_RECORD_BYTES: Final = 16  # Approximate size of a record without key, value and headers.


class Converted(NamedTuple):
    """The numbers of segments and records that the conversion of a partition has rewritten."""

    segments: int
    records: int


def convert_partition(fs: Fs, directory: Path, *, dry_run: bool = False) -> Converted:
    """Convert a partition's directory. Raises Corrupt for damage, which stays as it is, and StorageFailure.

    dry_run: only count what a conversion would rewrite.
    """
    segments = records = 0
    bases = segment_bases(fs, directory)
    for base in bases:
        try:
            count = _convert_segment(fs, directory, base, is_last=base == bases[-1], dry_run=dry_run)
        except ValueError as error:  # The offsets do not increase.
            path = directory / segment_file_name(base, LOG_SUFFIX)
            raise Corrupt(f"{path}: cannot convert its messages: {error}") from error
        if count:
            segments += 1
            records += count
    return Converted(segments, records)


def _convert_segment(fs: Fs, directory: Path, base: int, *, is_last: bool, dry_run: bool) -> int:
    """Convert the segment with this base offset to format 2. Return the number of converted records.

    Return 0 and change nothing if no batch has an older format. is_last: the segment can have a torn tail. dry_run:
    only count.
    """
    path = directory / segment_file_name(base, LOG_SUFFIX)
    source = fs.open(path, writable=False)
    try:
        size = fs.facts(source).st_size
        if not any(magic in OLD_MAGICS for magic, _ in _entries(fs, source, size, path, is_last=is_last)):
            return 0
        if dry_run:
            entries = _entries(fs, source, size, path, is_last=is_last)
            return sum(len(_decode(content, path)[1]) for magic, content in entries if magic in OLD_MAGICS)
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        # A conversion that was killed has left this file. Its source still has its name, so nothing is lost.
        fs.unlink(temporary)
        target = fs.open(temporary, create=True)
        try:
            count = _write_converted(fs, target, _entries(fs, source, size, path, is_last=is_last), path)
            fs.sync(target)
        except BaseException:
            fs.close(target)
            fs.unlink(temporary)
            raise
        fs.close(target)
    finally:
        fs.close(source)
    # Remove the two indexes, because the positions of batches change. The next opening of the log rebuilds them.
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        fs.unlink(directory / segment_file_name(base, suffix))
    sync_directory(fs, directory)
    # The removal of the indexes is durable by now. If the rename came first, a power loss could leave old indexes
    # beside the new file.
    fs.rename(temporary, path)
    sync_directory(fs, directory)
    return count


def _write_converted(fs: Fs, target: int, entries: Iterator[tuple[int, bytes]], path: Path) -> int:
    """Write the messages and batches as batches of format 2. Return how many records had an older format."""
    position = count = 0
    group: list[Record] = []
    group_bytes = 0

    def write(content: bytes | bytearray) -> None:
        nonlocal position
        fs.write(target, [content], position=position)
        position += len(content)

    def write_group() -> None:
        nonlocal group_bytes
        if group:
            write(encode_batch(group, base_offset=group[0].offset))
        group.clear()
        group_bytes = 0

    for magic, content in entries:
        if magic not in OLD_MAGICS:
            write_group()
            write(content)
            continue
        message, records = _decode(content, path)
        count += len(records)
        # A compressed message contains several records. They stay together as one batch, so that they compress as well
        # as before.
        if message.codec:
            write_group()
            write(encode_batch(records, base_offset=records[0].offset, codec=message.codec))
            continue
        group += records
        group_bytes += len(content) + _RECORD_BYTES
        if group_bytes >= _BATCH_BYTES:
            write_group()
    write_group()
    return count


def _decode(content: bytes, path: Path) -> tuple[OldMessage, list[Record]]:
    try:
        message, _ = decode_old_message(content)
        return message, list(records_of(message))
    except KafkaError as error:
        raise Corrupt(f"{path}: {error.message}") from error


def _entries(fs: Fs, source: int, size: int, path: Path, *, is_last: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (magic, bytes) of each message or batch in a segment.

    A torn tail of the last segment is yielded as one entry of format 2, so that it is copied unchanged. Recovery
    handles it when the log is opened.
    """
    position = 0
    chunk, chunk_at = b"", 0
    while position < size:
        inside = position - chunk_at
        total = _total(chunk, inside)
        if total is None or inside + total > len(chunk):
            count = min(max(SCAN_CHUNK_BYTES, total or 0), size - position)
            chunk = fs.read(source, count, position=position)
            chunk_at, inside = position, 0
            total = _total(chunk, 0)
        if total is None or total > len(chunk):
            # Only the last segment of a log can end inside a batch after a crash. Anywhere else it is damage,
            # and a conversion would hide it.
            if not is_last:
                raise Corrupt(f"{path}: no whole message or batch at position {position}")
            yield 2, fs.read(source, size - position, position=position)
            return
        yield chunk[inside + MAGIC_AT], chunk[inside : inside + total]
        position += total


def _total(chunk: bytes, inside: int) -> int | None:
    """Return the size in bytes of the message or batch at the position `inside` of the chunk.

    Return None if its length field or magic byte is behind the chunk's end, or if the length is too small.
    """
    if inside + MAGIC_AT >= len(chunk):
        return None
    total = int.from_bytes(chunk[inside + 8 : inside + 12], "big") + LOG_OVERHEAD_BYTES
    least = HEADER_BYTES if chunk[inside + MAGIC_AT] not in OLD_MAGICS else MAGIC_AT + 1
    return total if least <= total else None
