"""RecordBatch v2 (KIP-98): checks and stamps the header of a batch in place, and encodes and decodes whole batches.

       0  base offset             int64   stamped by the broker
       8  batch length            int32   bytes from 12 to the end
      12  partition leader epoch  int32   stamped by the broker
      16  magic                   int8    2
      17  crc                     uint32  CRC-32C of everything from 21 to the end
      21  attributes              int16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control
      23  last offset delta       int32
      27  base timestamp          int64
      35  max timestamp           int64
      43  producer id             int64
      51  producer epoch          int16
      53  base sequence           int32
      57  record count            int32
      61  records, compressed together when the codec says so

The two fields that the broker stamps are in front of the bytes that the CRC covers. A batch is therefore written as it
was received, and its CRC is computed once. `records.py` describes the single records, `compression.py` the codecs.
Batches on the way from a producer to the log do not need these two modules, only batches whose records the broker
itself reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import records as record_format
from kproc.wire.batch_header import (
    BATCH_LENGTH,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC_AT,
    MAGIC_BYTE,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    STAMP,
)
from kproc.wire.checksum import crc32c
from kproc.wire.compression import compress, decompress, inflated_bytes_max
from kproc.wire.primitives import Buffer
from kproc.wire.records import Record

# Bytes of base offset and batch length, the two fields that are needed to find the next batch.
LOG_OVERHEAD_BYTES: Final = 12
MAGIC: Final = 2

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
HAS_DELETE_HORIZON: Final = 0x40

# zstd (KIP-110) is the last codec. The three bits of CODEC_MASK can hold up to 7, so 5 to 7 must be rejected.
_CODEC_MAX: Final = 4

_INT64: Final = Struct(">q")
_INT16: Final = Struct(">h")
_UINT32: Final = Struct(">I")
_EPOCH_AND_SEQUENCE: Final = Struct(">hi")

_unpack_header = HEADER.unpack_from


class BatchHeader(NamedTuple):
    """The 61 bytes in front of every batch, in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """The batch's last offset, even if compaction has removed the record at that offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31 - 1 to 0. NO_SEQUENCE if the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        # KIP-98: sequences are positive int32 numbers, so they wrap to 0 and not to a negative number.
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """Compression codec number."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if the max timestamp is the broker's append time, which is then the timestamp of every record."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """True for batches of a transaction, including its marker."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True for control batches, such as transaction markers, which clients do not show to applications."""
        return bool(self.attributes & CONTROL)


def parse_header(view: Buffer, offset: int = 0) -> BatchHeader:
    """Parse the header of the batch that starts at byte `offset`. Checks only that the header is complete."""
    try:
        return BatchHeader._make(_unpack_header(view, offset))
    except StructError:
        remaining = max(0, len(view) - offset)
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"batch header needs {HEADER_BYTES} bytes, {remaining} remain"
        ) from None


def crc_of(view: Buffer) -> int:
    """Compute the CRC-32C of one whole batch. The stored CRC is not read."""
    return crc32c(memoryview(view)[CRC_FROM:])


class NotOneBatch(KafkaError):
    """The records of a partition in a Produce are not exactly one batch.

    Kafka, too, checks this before it looks up the log.
    """

    def __init__(self, message: str = "a partition's records must hold exactly one batch") -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


def check_one_batch(view: Buffer) -> None:
    """Raise KafkaError unless `view` has the length and the format (magic) of exactly one batch. Check nothing else.

    Raises NotOneBatch, or CORRUPT_MESSAGE for bytes that cannot be a batch.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise _why_short(view)
    header = _unpack_header(view)
    if header[MAGIC_BYTE] != MAGIC or header[BATCH_LENGTH] != size - LOG_OVERHEAD_BYTES:
        raise _why_misshapen(size, header[BATCH_LENGTH], header[MAGIC_BYTE])


def check_batch(view: memoryview | bytes | bytearray) -> BatchHeader:
    """Return the header of `view` if it is exactly one complete, undamaged batch of version 2.

    Raises KafkaError with Kafka's code otherwise. INVALID_RECORD means that the client made a wrong batch: none, more
    than one, an incomplete one, an older format, or counts that contradict each other or the size. CORRUPT_MESSAGE
    means damaged bytes, UNSUPPORTED_COMPRESSION_TYPE an unknown codec. Does not read the records: see record_check.py.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise _why_short(view)
    header = _unpack_header(view)
    _, batch_length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = header
    # Check magic and length before the CRC: a wrong CRC would hide them, and clients must get their error codes.
    if magic != MAGIC or batch_length != size - LOG_OVERHEAD_BYTES:
        raise _why_misshapen(size, batch_length, magic)
    if crc32c(memoryview(view)[CRC_FROM:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"CRC-32C of the batch is not the stored {crc:#010x}")
    # Reject gaps between offsets: only compaction makes them, and compacted batches do not come from producers.
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"batch of {record_count} records has a last offset delta of {last_offset_delta}",
        )
    # Reject unknown codecs, as Kafka's CompressionType.forId does, because consumers could not read the batch and would
    # stop at it for ever.
    if attributes & CODEC_MASK > _CODEC_MAX:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {attributes & CODEC_MASK}"
        )
    # Consumers allocate by the record count, so a batch that claims more records than its bytes can hold is an attack.
    check_count(attributes & CODEC_MASK, record_count, size - HEADER_BYTES)
    return BatchHeader._make(header)


def check_count(codec: int, record_count: int, records_bytes: int) -> None:
    """Raise INVALID_RECORD if `record_count` records cannot fit into `records_bytes`, compressed with `codec`."""
    if record_count * record_format.RECORD_BYTES_MIN > inflated_bytes_max(codec, records_bytes):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batch claims {record_count} records in only {records_bytes} bytes"
        )


def _why_short(view: Buffer) -> KafkaError:
    if len(view) > MAGIC_AT and view[MAGIC_AT] in (0, 1):
        return _why_misshapen(len(view), -1, view[MAGIC_AT])
    if len(view) == 0:
        return NotOneBatch()
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(view)} bytes are not a batch")


def _why_misshapen(size: int, batch_length: int, magic: int) -> KafkaError:
    # KIP-724: Kafka 4.0 rejects the formats before 0.11, which older versions converted.
    if magic in (0, 1):
        return NotOneBatch(f"message format {magic} is older than version {MAGIC}")
    if magic != MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown message format {magic}")
    if batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_length} is less than a header")
    if batch_length > size - LOG_OVERHEAD_BYTES:
        return NotOneBatch(f"batch of {batch_length + LOG_OVERHEAD_BYTES} bytes is cut at {size}")
    return NotOneBatch()


def check_base_offset(base_offset: int) -> None:
    """Raise INVALID_RECORD unless the base offset is 0: a client numbers the records of a batch from 0."""
    if base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"base offset of a produced batch is {base_offset}, not 0")


def check_from_client(header: BatchHeader) -> None:
    """Raise INVALID_RECORD, as Kafka does, for control records, a base offset other than 0, or a missing sequence."""
    if header.attributes & CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    check_base_offset(header.base_offset)
    # KIP-98: an idempotent batch has a sequence, by which its retry is recognized.
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} sent a batch without a sequence ({header.base_sequence})",
        )


def stamp(view: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch. The CRC stays valid, because it does not cover them."""
    # STAMP writes both fields in one assignment, together with the unchanged length between them.
    view[0:16] = STAMP.pack(base_offset, len(view) - LOG_OVERHEAD_BYTES, leader_epoch)


def stamp_append_time(view: memoryview | bytearray, append_time_ms: int) -> None:
    """Make the broker's time the timestamp of all records (message.timestamp.type=LogAppendTime).

    Attributes and max timestamp are under the CRC, so it is computed again.
    """
    # The CRC covers everything from the attributes on, so the attributes are its first two bytes.
    (attributes,) = _INT16.unpack_from(view, CRC_FROM)
    view[CRC_FROM : CRC_FROM + 2] = _INT16.pack(attributes | LOG_APPEND_TIME)
    view[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = _INT64.pack(append_time_ms)
    view[CRC_AT:CRC_FROM] = _UINT32.pack(crc32c(memoryview(view)[CRC_FROM:]))


def stamp_sequence(batch: bytearray, producer_epoch: int, base_sequence: int) -> None:
    """Set the producer's epoch and the first sequence of a batch that has a producer id. Compute its CRC again."""
    fields = _EPOCH_AND_SEQUENCE.pack(producer_epoch, base_sequence)
    batch[PRODUCER_EPOCH_AT : PRODUCER_EPOCH_AT + len(fields)] = fields
    batch[CRC_AT:CRC_FROM] = _UINT32.pack(crc_of(batch))


def stamp_max_timestamp(view: memoryview, header: BatchHeader, max_timestamp: int) -> BatchHeader:
    """Correct the max timestamp of a batch whose producer set a wrong one. Return the new header."""
    view[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = _INT64.pack(max_timestamp)
    # Compute the CRC again, because it covers the max timestamp.
    crc = crc_of(view)
    view[CRC_AT:CRC_FROM] = _UINT32.pack(crc)
    return header._replace(max_timestamp=max_timestamp, crc=crc)


def rebuild(
    header: BatchHeader, payload: bytes, *, codec: int, max_timestamp: int
) -> tuple[bytearray, BatchHeader]:
    """Make a batch with the fields of `header` and the records `payload`, which are compressed with `codec`.

    Return (batch, its header).

    Removes a delete horizon (KIP-534) as Kafka does, because only the cleaner may set one.
    """
    header = header._replace(
        batch_length=HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload),
        attributes=header.attributes & ~(CODEC_MASK | HAS_DELETE_HORIZON) | codec,
        max_timestamp=max_timestamp,
    )
    batch = bytearray(HEADER.pack(*header))
    batch += payload
    crc = crc_of(batch)
    batch[CRC_AT:CRC_FROM] = _UINT32.pack(crc)
    return batch, header._replace(crc=crc)


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    flags: int = 0,
) -> bytearray:
    """Encode one whole batch of records. The result is writable, so that it can be stamped.

    A record with offset -1 gets the offset after the record before it, the first one `base_offset`. `flags` is a
    combination of TRANSACTIONAL and CONTROL. Raises ValueError for no records or for offsets that do not rise.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp = records[0].timestamp_ms
    offsets = _rising_offsets(records, base_offset)
    raw = record_format.encode_records(
        (record.timestamp_ms - base_timestamp, offset - base_offset, record)
        for record, offset in zip(records, offsets, strict=True)
    )
    payload = compress(codec, raw)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload),
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec | flags,
        last_offset_delta=offsets[-1] - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp_ms for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    batch = bytearray(HEADER.pack(*header))
    batch += payload
    batch[CRC_AT:CRC_FROM] = _UINT32.pack(crc_of(batch))
    return batch


def _rising_offsets(records: Sequence[Record], base_offset: int) -> list[int]:
    """Return the offset of each record. A record with offset -1 gets the one after the record before it."""
    offsets: list[int] = []
    for record in records:
        following = offsets[-1] + 1 if offsets else base_offset
        offset = record.offset if record.offset >= 0 else following
        if offset < following:
            raise ValueError(f"offset {offset} is below {following}, the lowest that may follow in the batch")
        offsets.append(offset)
    return offsets


def decode_records(batch: Buffer, limit_bytes: int | None = None) -> list[Record]:
    """Return the records of one whole batch, decompressed to at most `limit_bytes`. Does not check the CRC.

    With log append time every record has the batch's max timestamp, whatever its producer wrote.
    """
    return list(walk_batch(batch, limit_bytes))


def walk_batch(batch: Buffer, limit_bytes: int | None = None) -> Iterator[Record]:
    """Yield the records of `decode_records` one by one.

    Use it for untrusted batches, whose list could fill gigabytes.
    """
    header = parse_header(batch)
    if header.total_bytes > len(batch):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"batch of {header.total_bytes} bytes is cut at {len(batch)}"
        )
    payload = memoryview(batch)[HEADER_BYTES : header.total_bytes]
    records = record_format.walk_records(
        decompress(header.codec, payload, limit_bytes),
        header.record_count,
        header.base_timestamp,
        header.base_offset,
    )
    if not header.is_log_append_time:
        yield from records
        return
    for record in records:
        # KIP-32: for log append time the broker changes only the header, so ignore the producer's timestamps in the
        # records.
        yield record._replace(timestamp_ms=header.max_timestamp)
