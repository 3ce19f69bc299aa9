"""Reads the records of one batch for compaction: their keys, and whether they have a value.

The two loops run once for every record that is compacted. They decode one-byte varints inline, and create no object but
the key. The record's length skips its timestamp and headers. Produce may have stored the batch unchecked, so a length
can have any value. A batch whose records do not end where the batch ends is Corrupt.

Every loop over records is a generator that yields after RECORDS_PER_STEP records, because a batch of a few kB can
decompress to 128 MiB. The cleaner does its other work between two steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from hashlib import blake2b
from itertools import repeat
from struct import Struct
from typing import Final

from kproc.broker.storage.format import INT32_MAX
from kproc.common.errors import Corrupt, KafkaError, ProtocolError
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    RECORD_COUNT,
    Header,
    last_offset_of,
)
from kproc.wire.checksum import crc32c
from kproc.wire.compression import Compression, compress, decompress
from kproc.wire.primitives import (
    INT64_MIN,
    as_int64,
    encode_varint,
    read_unsigned_varint,
    read_unsigned_varlong,
)
from kproc.wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    HAS_DELETE_HORIZON,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
)
from kproc.wire.record_check import check_record_sizes

# A longer key is stored as its digest. Two long keys are confused only if their 256 bits of BLAKE2b are equal. Digests
# are longer than exact keys, so a digest never equals an exact key.
EXACT_KEY_MAX: Final = 31
_DIGEST_BYTES: Final = 32
# Keys with this zig-zag coded length or a longer one are stored as digests. It is below 128, so it is one byte as a
# varint.
_LONG_KEY: Final = 2 * EXACT_KEY_MAX + 1

# Records of one step, which take about 2 ms. The cleaner's slices take 5 ms.
RECORDS_PER_STEP: Final = 4096
# A batch with more records is not compacted. An uncompressed batch of 1 MiB holds at most 150,000 records, and
# compaction stores about 150 bytes for each record.
RECORDS_MAX: Final = 500_000
# A record's timestamp delta, zig-zag coded, takes up to 10 bytes. One byte of attributes precedes it.
_VARLONG_BYTES_MAX: Final = 10

_CRC: Final = Struct(">I")
# Attribute bits that a batch without records keeps: those about its producer and its timestamps, but not its codec.
_KEPT_ATTRIBUTES: Final = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL

Newest = dict[bytes, int]
"""Key -> twice the offset of its newest record, plus one if that is a tombstone."""

Span = tuple[int, int]
"""The positions where a record begins and ends in the bytes of its batch's records."""


def records_of(
    header: Header, chunk: bytes, at: int, record_bytes_max: int = INT32_MAX
) -> tuple[bytes, int, int]:
    """Return (bytes, position, end) of the records of the batch at `at`, decompressed if need be.

    Raises Corrupt if the CRC does not match, the records cannot be decompressed, a decompressed record is larger than
    `record_bytes_max`, or the batch claims more than RECORDS_MAX records.
    """
    # The producer has chosen the record count. Check it first, because the CRC and the decompression are expensive.
    if header[RECORD_COUNT] > RECORDS_MAX:
        raise Corrupt(
            f"the batch at offset {header[BASE_OFFSET]} claims {header[RECORD_COUNT]} records; compaction reads at "
            f"most {RECORDS_MAX} records of a batch"
        )
    end = at + header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
    if crc32c(memoryview(chunk)[at + CRC_FROM : end]) != header[CRC]:
        raise Corrupt(f"the CRC-32C of the batch at offset {header[BASE_OFFSET]} does not match")
    codec = header[ATTRIBUTES] & CODEC_MASK
    if codec == Compression.NONE:
        return chunk, at + HEADER_BYTES, end
    try:
        raw = decompress(codec, memoryview(chunk)[at + HEADER_BYTES : end])
        check_record_sizes(raw, header[RECORD_COUNT], record_bytes_max)
    except KafkaError as problem:
        raise Corrupt(f"the batch at offset {header[BASE_OFFSET]}: {problem}") from problem
    return raw, 0, len(raw)


def collect_keys(newest: Newest, header: Header, raw: bytes, position: int, end: int) -> Iterator[None]:
    """Store the offset of each record of a batch in `newest`, by the record's key. Yield between steps.

    Skip records without a key.
    """
    # Store the offset and the tombstone flag in one int, because a tuple would double the memory of each key.
    doubled = 2 * header[BASE_OFFSET]
    try:
        for step in steps_of(header[RECORD_COUNT]):
            for _ in step:
                length = raw[position]
                if length < 128:
                    position += 1
                else:
                    length, position = read_unsigned_varint(raw, position)
                following = position + (length >> 1)
                position += 1
                while raw[position] > 127:  # Skip the varint of the timestamp delta.
                    position += 1
                    if position > following - (length >> 1) + _VARLONG_BYTES_MAX:
                        raise ProtocolError("a timestamp delta has more than 10 bytes")
                delta = raw[position + 1]
                position += 2
                if delta > 127:
                    delta, position = read_unsigned_varint(raw, position - 1)
                size = raw[position]
                position += 1
                if size < _LONG_KEY:
                    if not size & 1:
                        after = position + (size >> 1)
                        # The zig-zag coded offset delta is positive, so it is twice the delta. A value length of 1
                        # means null: a tombstone.
                        newest[raw[position:after]] = doubled + delta + (raw[after] == 1)
                else:
                    key, after = _digest(raw, position - 1)
                    newest[key] = doubled + delta + (raw[after] == 1)
                position = following
            yield
    except (IndexError, ProtocolError):
        # The records are malformed. Set a position that makes the following check raise Corrupt.
        position = -1
    if position != end:
        raise _unreadable(header)


def steps_of(count: int) -> Iterator[Iterator[None]]:
    """Divide a loop over `count` records into steps of at most RECORDS_PER_STEP."""
    while count > 0:
        yield repeat(None, min(count, RECORDS_PER_STEP))
        count -= RECORDS_PER_STEP


def _unreadable(header: Header) -> Corrupt:
    return Corrupt(f"the records of the batch at offset {header[BASE_OFFSET]} cannot be read")


def _digest(raw: bytes, position: int) -> tuple[bytes, int]:
    """Hash the long key whose length is at `position`. Return (digest, position after the key)."""
    size, position = read_unsigned_varint(raw, position)
    after = position + (size >> 1)
    if size & 1 or after > len(raw):
        raise ProtocolError("a record's key runs past the end")
    return blake2b(raw[position:after], digest_size=_DIGEST_BYTES).digest(), after


class OffsetFlags:
    """A flag for each offset of a section: 1 for the newest record of a key, 2 if it is a tombstone, 0 for all others.

    Flags are stored in pages, so that memory grows with the number of keys and not with the offsets. Batch headers can
    claim billions of offsets without records, and compaction leaves large gaps.
    """

    PAGE_OFFSETS: Final = 512
    PAGE_BYTES: Final = PAGE_OFFSETS + 160  # Memory of a page with its Python objects.
    # Limit of the pages whose flags are counted for one batch. If a batch claims more offsets, reading its records is
    # faster than counting.
    _PAGES_COUNTED_MAX: Final = 2048

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def set(self, number: int, flag: int) -> None:
        """Set the flag of an offset. `number` is the offset's distance from the section's first offset."""
        page = self._pages.get(number // self.PAGE_OFFSETS)
        if page is None:
            page = self._pages[number // self.PAGE_OFFSETS] = bytearray(self.PAGE_OFFSETS)
        page[number % self.PAGE_OFFSETS] = flag

    def count(self, first: int, last: int) -> tuple[int, int] | None:
        """Return how many offsets from `first` to `last` have the flag 1 and how many 2, or None if they are too many.

        `first` and `last` are distances from the section's first offset.
        """
        size = self.PAGE_OFFSETS
        if (last - first) // size > self._PAGES_COUNTED_MAX:
            return None
        ones = twos = 0
        for number in range(first // size, last // size + 1):
            page = self._pages.get(number)
            if page is not None:
                start, end = max(0, first - number * size), last - number * size + 1
                ones += page.count(1, start, end)
                twos += page.count(2, start, end)
        return ones, twos


class Survivors:
    """Decides which records stay, by the keys of the dirty section that compaction_map.py collected.

    `newest` has the newest offset of each key from the offset `first_dirty` to the offset `latest`. A record before
    `first_dirty` stays if its key is not in `newest`. A record from `first_dirty` to `latest` stays if it is the newest
    of its key. A record behind `latest` always stays. Records without a key are removed, except behind `latest`.
    """

    __slots__ = ("first_dirty", "flags", "latest", "newest")

    def __init__(self, newest: Newest, first_dirty: int, latest: int, flags: OffsetFlags) -> None:
        self.newest = newest
        self.first_dirty = first_dirty
        self.latest = latest
        self.flags = flags

    def of_batch(self, header: Header) -> int | None:
        """Return how many records of a batch stay, if that follows from its offsets: all or none.

        Return None if the records must be read: some of them stay, or a tombstone may.
        """
        first = header[BASE_OFFSET] - self.first_dirty
        if first < 0:
            return None
        if header[BASE_OFFSET] > self.latest:
            return header[RECORD_COUNT]
        if last_offset_of(header) > self.latest:
            return None
        counted = self.flags.count(first, first + header[LAST_OFFSET_DELTA])
        if counted is None:
            return None
        values, tombstones = counted
        if values == header[RECORD_COUNT] or not (values or tombstones):
            return values
        return None

    def walk(
        self, header: Header, raw: bytes, position: int, end: int, *, keep_tombstones: bool
    ) -> Generator[None, None, tuple[list[Span], bool]]:
        """Read a batch in steps. Return (spans of the records that stay, True if one of them is a tombstone).

        keep_tombstones: tombstones stay, too, if they are the newest record of their key.
        """
        # The loop calls no function for a plain record, because it runs for every record of a log. A call would cost
        # as much as the rest of the work on the record.
        base, newest = header[BASE_OFFSET], self.newest
        first_dirty, latest = self.first_dirty, self.latest
        spans: list[Span] = []
        has_tombstones = False
        try:
            for step in steps_of(header[RECORD_COUNT]):
                for _ in step:
                    start = position
                    length = raw[position]
                    if length < 128:
                        position += 1
                    else:
                        length, position = read_unsigned_varint(raw, position)
                    following = position + (length >> 1)
                    position += 1
                    while raw[position] > 127:  # Skip the varint of the timestamp delta.
                        position += 1
                        if position > following - (length >> 1) + _VARLONG_BYTES_MAX:
                            raise ProtocolError("a timestamp delta has more than 10 bytes")
                    delta = raw[position + 1]
                    position += 2
                    if delta > 127:
                        delta, position = read_unsigned_varint(raw, position - 1)
                    size = raw[position]
                    position += 1
                    offset = base + (delta >> 1)
                    if size < _LONG_KEY:
                        after = position + (size >> 1)
                        key = raw[position:after] if not size & 1 else None
                    else:
                        key, after = _digest(raw, position - 1)
                    position = following
                    # The map of keys ended before this record, because its memory was full. Keep the record, because
                    # nothing is known about newer records of its key.
                    if offset > latest:
                        stays = True
                    # As in Kafka's cleaner, remove a record without a key, because no later record could ever replace
                    # it.
                    elif key is None:
                        stays = False
                    # The clean section has each key once. If the key is also in the dirty section, the record there is
                    # newer.
                    elif offset < first_dirty:
                        stays = key not in newest
                    else:
                        stays = newest.get(key, -1) >> 1 == offset
                    if stays:
                        if raw[after] == 1:  # 1 is the zigzag varint -1, the length of a null value.
                            # Remove the tombstone: delete.retention.ms has passed since a pass first found it, so that
                            # every consumer had the time to read it.
                            if not keep_tombstones and offset <= latest:
                                continue
                            has_tombstones = True
                        spans.append((start, following))
                yield
        except (IndexError, ProtocolError):
            position = -1
        if position != end:
            raise _unreadable(header)
        return spans, has_tombstones


def rebuild(
    header: Header, raw: bytes, spans: list[Span], *, horizon_ms: int | None
) -> Generator[None, None, bytes]:
    """Build a batch with the records at `spans`, and the same offsets, producer, codec and timestamp type.

    `horizon_ms` is a delete horizon (KIP-534) that the batch gets now, or None. Attribute bit 6 and the base timestamp
    store the horizon, so that all timestamps are encoded again as deltas to it. Without a horizon the records are
    copied. Yields between steps.
    """
    base, _, epoch, _, _, attributes, delta, base_timestamp, largest, pid, pid_epoch, sequence, _ = header
    is_create_time = not attributes & LOG_APPEND_TIME
    if is_create_time:
        largest = INT64_MIN
    records = bytearray()
    for first in range(0, len(spans), RECORDS_PER_STEP):
        step = spans[first : first + RECORDS_PER_STEP]
        if is_create_time:
            # With CreateTime the header's largest timestamp must be one of the remaining records, because searches by
            # time rely on it.
            stamps = [as_int64(base_timestamp + _timestamp_delta(raw, start)[0]) for start, _ in step]
            largest = max(largest, max(stamps))
        if horizon_ms is None:
            records += b"".join([raw[start:end] for start, end in step])
        else:
            records += b"".join(_redated(raw, step, base_timestamp - horizon_ms))
        yield
    if horizon_ms is not None:
        attributes |= HAS_DELETE_HORIZON
        base_timestamp = horizon_ms
    payload = compress(attributes & CODEC_MASK, records)
    return _seal(
        (
            base, HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload), epoch, MAGIC, 0, attributes, delta,
            base_timestamp, largest, pid, pid_epoch, sequence, len(spans),
        ),
        payload,
    )  # fmt: skip


def all_spans(header: Header, raw: bytes, position: int, end: int) -> list[Span]:
    """Return the spans of all records of a control batch, for rebuild(), which then keeps all of them."""
    spans = []
    try:
        for _ in repeat(None, header[RECORD_COUNT]):
            length, body = read_unsigned_varint(raw, position)
            spans.append((position, body + (length >> 1)))
            position = spans[-1][1]
    except ProtocolError:
        position = -1
    if position != end:
        raise _unreadable(header)
    return spans


def emptied(header: Header) -> bytes:
    """Encode the batch of `header` without its records. The batch keeps offsets and sequence, for the producer's state.

    As in Kafka the batch keeps the largest timestamp, and loses codec, base timestamp and delete horizon.
    """
    base, _, epoch, _, _, attributes, delta, _, largest, pid, pid_epoch, sequence, _ = header
    return _seal(
        (
            base, HEADER_BYTES - LOG_OVERHEAD_BYTES, epoch, MAGIC, 0, attributes & _KEPT_ATTRIBUTES, delta,
            -1, largest, pid, pid_epoch, sequence, 0,
        ),
        b"",
    )  # fmt: skip


def _seal(fields: Header, payload: bytes) -> bytes:
    batch = bytearray(HEADER.pack(*fields))
    batch += payload
    batch[CRC_AT:CRC_FROM] = _CRC.pack(crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


def _timestamp_delta(raw: bytes, start: int) -> tuple[int, int]:
    """Return (timestamp delta, position behind it) of the record at `start`."""
    _, position = read_unsigned_varint(raw, start)
    coded, position = read_unsigned_varlong(raw, position + 1)
    return coded >> 1 ^ -(coded & 1), position


def _redated(raw: bytes, spans: list[Span], shift_ms: int) -> Iterator[bytes]:
    """Yield the records with their timestamp deltas increased by `shift_ms`."""
    for start, end in spans:
        delta, position = _timestamp_delta(raw, start)
        attributes_at = read_unsigned_varint(raw, start)[1]
        moved = encode_varint(as_int64(delta + shift_ms))
        body = raw[attributes_at : attributes_at + 1] + moved + raw[position:end]
        yield encode_varint(len(body)) + body
