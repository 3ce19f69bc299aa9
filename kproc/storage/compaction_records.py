"""The records of one batch as compaction needs them: their keys, and whether they have a value.

The two loops run once for every record that is compacted, so they are written out: one-byte varints are decoded
inline, and no objects are made but the key. Timestamps and headers are skipped by the record's length. Produce does
not check the records inside a batch, so a length may be anything here: a batch whose records do not end where it ends
is Corrupt.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import repeat
from struct import Struct
from typing import Final

from kproc.errors import Corrupt, KafkaError, ProtocolError
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
from kproc.wire.primitives import as_int64, encode_varint, read_unsigned_varint, read_unsigned_varlong
from kproc.wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    HAS_DELETE_HORIZON,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
)

# A longer key is stored as its digest. Two different keys would only be mixed up if they had the same 256 bits of
# BLAKE2b. Digests are longer than exact keys, so the two kinds never collide.
EXACT_KEY_MAX: Final = 31
_DIGEST_BYTES: Final = 32
# The zig-zag coded length from which on a key is digested; below 128, so that it is one byte.
_LONG_KEY: Final = 2 * EXACT_KEY_MAX + 1

_CRC: Final = Struct(">I")
# Attributes that an emptied batch keeps: those about its producer and its timestamps, not its codec.
_KEPT_ATTRIBUTES: Final = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL

Newest = dict[bytes, int]
"""Key -> twice the offset of its newest record, plus one if that is a tombstone."""

Span = tuple[int, int]
"""Where a record begins and ends in the batch's records."""


def records_of(header: Header, chunk: bytes, at: int) -> tuple[bytes, int, int]:
    """(bytes, position, end) of the records of the batch at `at`, decompressed if need be; checks the CRC."""
    end = at + header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
    if crc32c(memoryview(chunk)[at + CRC_FROM : end]) != header[CRC]:
        raise Corrupt(f"the CRC-32C of the batch at offset {header[BASE_OFFSET]} does not match")
    codec = header[ATTRIBUTES] & CODEC_MASK
    if codec == Compression.NONE:
        return chunk, at + HEADER_BYTES, end
    try:
        raw = decompress(codec, memoryview(chunk)[at + HEADER_BYTES : end])
    except KafkaError as problem:
        raise Corrupt(f"the batch at offset {header[BASE_OFFSET]}: {problem}") from problem
    return raw, 0, len(raw)


def note_newest(newest: Newest, header: Header, raw: bytes, position: int, end: int) -> None:
    """Store the keys of all records of a batch; records without a key are skipped."""
    doubled = 2 * header[BASE_OFFSET]
    try:
        for _ in repeat(None, header[RECORD_COUNT]):
            length = raw[position]
            if length < 128:
                position += 1
            else:
                length, position = read_unsigned_varint(raw, position)
            following = position + (length >> 1)
            position += 1
            while raw[position] > 127:  # The timestamp's delta.
                position += 1
            delta = raw[position + 1]
            position += 2
            if delta > 127:
                delta, position = read_unsigned_varint(raw, position - 1)
            size = raw[position]
            position += 1
            if size < _LONG_KEY:
                if not size & 1:
                    after = position + (size >> 1)
                    # The delta is zig-zag coded and positive: it is doubled already. 1 is the length of null.
                    newest[raw[position:after]] = doubled + delta + (raw[after] == 1)
            else:
                key, after = _digest(raw, position - 1)
                newest[key] = doubled + delta + (raw[after] == 1)
            position = following
    except (IndexError, ProtocolError):
        position = -1
    if position != end:
        raise Corrupt(f"the records of the batch at offset {header[BASE_OFFSET]} cannot be read")


def _digest(raw: bytes, position: int) -> tuple[bytes, int]:
    """(digest of the long key whose length is at `position`, position after the key)."""
    size, position = read_unsigned_varint(raw, position)
    after = position + (size >> 1)
    if size & 1 or after > len(raw):
        raise ProtocolError("a record's key runs past the end")
    return blake2b(raw[position:after], digest_size=_DIGEST_BYTES).digest(), after


class Survivors:
    """Decides which records stay, by the keys of the dirty section that compaction_map.py collected.

    An offset before `first_dirty` stays if its key is not in the dirty section at all, one up to `latest` if it
    is the newest of its key (`flags`: 1, or 2 for a tombstone, else 0), one behind `latest` always.
    """

    __slots__ = ("first_dirty", "flags", "latest", "newest")

    def __init__(self, newest: Newest, first_dirty: int, latest: int, flags: bytearray) -> None:
        self.newest = newest
        self.first_dirty = first_dirty
        self.latest = latest
        self.flags = flags

    def of_batch(self, header: Header) -> int | None:
        """How many records of a batch stay, all of them with values, if the flags alone tell that.

        None: the records must be read.
        """
        first = header[BASE_OFFSET] - self.first_dirty
        if first < 0:
            return None
        last = first + header[LAST_OFFSET_DELTA]
        if header[BASE_OFFSET] > self.latest:
            return header[RECORD_COUNT]
        if last_offset_of(header) > self.latest:
            return None
        kept = self.flags.count(1, first, last + 1)
        if kept == header[RECORD_COUNT] or (not kept and not self.flags.count(2, first, last + 1)):
            return kept
        return None

    def walk(
        self, header: Header, raw: bytes, position: int, end: int, *, keep_tombstones: bool
    ) -> tuple[list[Span], bool]:
        """(the records that stay, whether one of them is a tombstone)."""
        base, newest, flags = header[BASE_OFFSET], self.newest, self.flags
        first_dirty, latest = self.first_dirty, self.latest
        spans: list[Span] = []
        has_tombstones = False
        try:
            for _ in repeat(None, header[RECORD_COUNT]):
                start = position
                length = raw[position]
                if length < 128:
                    position += 1
                else:
                    length, position = read_unsigned_varint(raw, position)
                following = position + (length >> 1)
                position += 1
                while raw[position] > 127:  # The timestamp's delta.
                    position += 1
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
                if offset > latest:
                    stays = True
                elif key is None:
                    stays = False
                elif offset < first_dirty:
                    stays = key not in newest
                else:
                    stays = flags[offset - first_dirty] > 0
                if stays:
                    if raw[after] == 1:  # The length of a null value.
                        if not keep_tombstones and offset <= latest:
                            continue
                        has_tombstones = True
                    spans.append((start, following))
        except (IndexError, ProtocolError):
            position = -1
        if position != end:
            raise Corrupt(f"the records of the batch at offset {base} cannot be read")
        return spans, has_tombstones


def rebuild(header: Header, raw: bytes, spans: list[Span], *, horizon_ms: int | None) -> bytes:
    """The batch with some of its records: same offsets, producer, codec and type of timestamps.

    `horizon_ms` marks a batch that gets its delete horizon now (KIP-534): attribute bit 6 and the base
    timestamp hold it, so all timestamps are written anew, as deltas to it. Otherwise records are copied.
    """
    base, _, epoch, _, _, attributes, delta, base_timestamp, largest, pid, pid_epoch, sequence, _ = header
    if not attributes & LOG_APPEND_TIME:
        largest = max(as_int64(base_timestamp + _timestamp_delta(raw, start)[0]) for start, _ in spans)
    if horizon_ms is None:
        records = b"".join([raw[start:end] for start, end in spans])
    else:
        records = b"".join(_redated(raw, spans, base_timestamp - horizon_ms))
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
    """Every record of a batch, for rebuild()."""
    spans = []
    try:
        for _ in repeat(None, header[RECORD_COUNT]):
            length, body = read_unsigned_varint(raw, position)
            spans.append((position, body + (length >> 1)))
            position = spans[-1][1]
    except ProtocolError:
        position = -1
    if position != end:
        raise Corrupt(f"the records of the batch at offset {header[BASE_OFFSET]} cannot be read")
    return spans


def emptied(header: Header) -> bytes:
    """A batch without records: it keeps offsets and sequence of what it held, for its producer's state.

    As in Kafka it keeps its largest timestamp and loses codec, base timestamp and delete horizon.
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
    """(timestamp delta, position behind it) of the record at `start`."""
    _, position = read_unsigned_varint(raw, start)
    coded, position = read_unsigned_varlong(raw, position + 1)
    return coded >> 1 ^ -(coded & 1), position


def _redated(raw: bytes, spans: Iterable[Span], shift_ms: int) -> Iterable[bytes]:
    """The records with their timestamp deltas moved by `shift_ms`."""
    for start, end in spans:
        delta, position = _timestamp_delta(raw, start)
        attributes_at = read_unsigned_varint(raw, start)[1]
        moved = encode_varint(as_int64(delta + shift_ms))
        body = raw[attributes_at : attributes_at + 1] + moved + raw[position:end]
        yield encode_varint(len(body)) + body
