"""RecordBatch v2: the header as the broker sees it, checked and stamped in place; no records are touched.

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

The two fields that the broker fills lie before the CRC'd bytes, so a batch is written as it was received and
its CRC is computed once. What the single records look like is known to `records.py`, the codecs to
`compression.py`: both are needed only where batches are made or read by the broker itself, never on the way
from a producer to the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import records as record_format
from kproc.wire.batch_header import BATCH_LENGTH, CRC_AT, CRC_FROM, HEADER, HEADER_BYTES, MAGIC_BYTE, STAMP
from kproc.wire.checksum import crc32c
from kproc.wire.compression import compress, decompress, inflated_bytes_max
from kproc.wire.primitives import Buffer
from kproc.wire.records import Record

# Base offset and length: what must be read to know where the next batch starts.
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

_CODEC_MAX: Final = 4
_MAX_TIMESTAMP_AT: Final = 35

_INT64: Final = Struct(">q")
_INT16: Final = Struct(">h")
_UINT32: Final = Struct(">I")

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
        """Offset of the last record, also after compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """Compression codec number."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True when max timestamp is the broker's append time and stands for every record's."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """True for batches inside a transaction, its markers included."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True for batches of markers, which are never handed to applications."""
        return bool(self.attributes & CONTROL)


def parse_header(view: Buffer, offset: int = 0) -> BatchHeader:
    """Header of the batch that starts at `offset`. Only its length is checked: see check_batch()."""
    try:
        return BatchHeader._make(_unpack_header(view, offset))
    except StructError:
        remaining = max(0, len(view) - offset)
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"batch header needs {HEADER_BYTES} bytes, {remaining} remain"
        ) from None


def crc_of(view: Buffer) -> int:
    """CRC-32C of one whole batch, computed over its bytes as they are now."""
    return crc32c(memoryview(view)[CRC_FROM:])


class NotOneBatch(KafkaError):
    """A partition's records in Produce that are not exactly one batch; Kafka says so before it looks for the log."""

    def __init__(self, message: str = "a partition's records must hold exactly one batch") -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


def check_one_batch(view: Buffer) -> None:
    """Raise NotOneBatch, or CORRUPT_MESSAGE for what has no header, by the batch's length and format only."""
    size = len(view)
    if size < HEADER_BYTES:
        raise _why_short(view)
    header = _unpack_header(view)
    if header[MAGIC_BYTE] != MAGIC or header[BATCH_LENGTH] != size - LOG_OVERHEAD_BYTES:
        raise _why_misshapen(size, header[BATCH_LENGTH], header[MAGIC_BYTE])


def check_batch(view: memoryview | bytes | bytearray) -> BatchHeader:
    """Header of `view` when it is exactly one whole, undamaged batch of version 2.

    KafkaError otherwise, with the code Kafka answers: INVALID_RECORD for what a client put together wrongly
    (no batch, more than one, half a batch, counts that contradict each other or the batch's size), CORRUPT_MESSAGE for
    damaged bytes, INVALID_RECORD for the formats before 2 too. Does not read the records: see record_check.py.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise _why_short(view)
    header = _unpack_header(view)
    _, batch_length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = header
    if magic != MAGIC or batch_length != size - LOG_OVERHEAD_BYTES:
        raise _why_misshapen(size, batch_length, magic)
    if crc32c(memoryview(view)[CRC_FROM:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"CRC-32C of the batch is not the stored {crc:#010x}")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"batch of {record_count} records has a last offset delta of {last_offset_delta}",
        )
    if attributes & CODEC_MASK > _CODEC_MAX:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {attributes & CODEC_MASK}"
        )
    check_count(attributes & CODEC_MASK, record_count, size - HEADER_BYTES)
    return BatchHeader._make(header)


def check_count(codec: int, record_count: int, records_bytes: int) -> None:
    """Raise INVALID_RECORD if `record_count` records cannot fit into `records_bytes`, compressed with `codec`."""
    if record_count * record_format.RECORD_BYTES_MIN > inflated_bytes_max(codec, records_bytes):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batch claims {record_count} records in {records_bytes} bytes"
        )


def _why_short(view: Buffer) -> KafkaError:
    if len(view) > 16 and view[16] in (0, 1):
        return _why_misshapen(len(view), -1, view[16])
    if len(view) == 0:
        return NotOneBatch()
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(view)} bytes are no batch")


def _why_misshapen(size: int, batch_length: int, magic: int) -> KafkaError:
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
    """Clients count their records from 0."""
    if base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"base offset of a produced batch is {base_offset}, not 0")


def check_from_client(header: BatchHeader) -> None:
    """Refuse what only the broker itself may write (for origin "client"; INVALID_RECORD, as Kafka)."""
    if header.attributes & CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    check_base_offset(header.base_offset)
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"sequence {header.base_sequence} with producer id {header.producer_id}"
        )


def stamp(view: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write the batch's place in the log. Both fields lie before the CRC'd bytes: the CRC stays good."""
    # One store for base offset, length and epoch: the length between them is written back as it must be.
    view[0:16] = STAMP.pack(base_offset, len(view) - LOG_OVERHEAD_BYTES, leader_epoch)


def stamp_append_time(view: memoryview | bytearray, append_time_ms: int) -> None:
    """Make the broker's time the timestamp of all records (message.timestamp.type=LogAppendTime).

    Attributes and max timestamp are under the CRC, so it is computed again.
    """
    (attributes,) = _INT16.unpack_from(view, CRC_FROM)
    view[CRC_FROM : CRC_FROM + 2] = _INT16.pack(attributes | LOG_APPEND_TIME)
    view[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8] = _INT64.pack(append_time_ms)
    view[CRC_AT:CRC_FROM] = _UINT32.pack(crc32c(memoryview(view)[CRC_FROM:]))


def stamp_max_timestamp(view: memoryview, header: BatchHeader, max_timestamp: int) -> BatchHeader:
    """Make a batch say which timestamp of its records is the largest; its producer said something else."""
    view[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8] = _INT64.pack(max_timestamp)
    crc = crc_of(view)
    view[CRC_AT:CRC_FROM] = _UINT32.pack(crc)
    return header._replace(max_timestamp=max_timestamp, crc=crc)


def rebuild(
    header: BatchHeader, payload: bytes, *, codec: int, max_timestamp: int
) -> tuple[bytearray, BatchHeader]:
    """The batch of `header` with its records compressed otherwise: all that does not follow from that stays.

    But for a delete horizon, which only the cleaner gives: as in Kafka a producer's is dropped.
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
    """One whole batch of the records, writable so that it can be stamped.

    Records without an offset follow one another from `base_offset`. `flags` are TRANSACTIONAL and CONTROL.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp = records[0].timestamp_ms
    offsets: list[int] = []
    for record in records:
        following = offsets[-1] + 1 if offsets else base_offset
        offset = record.offset if record.offset >= 0 else following
        if offset < following:
            raise ValueError(f"offset {offset} where {following} is the least")
        offsets.append(offset)
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


def decode_records(batch: Buffer, limit_bytes: int | None = None) -> list[Record]:
    """Return the records of one whole batch, decompressed to at most `limit_bytes`. Does not check the CRC.

    With log append time every record has the batch's max timestamp, whatever its producer wrote.
    """
    return list(walk_batch(batch, limit_bytes))


def walk_batch(batch: Buffer, limit_bytes: int | None = None) -> Iterator[Record]:
    """Yield the records of `decode_records` one by one. For untrusted batches: millions of records take gigabytes."""
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
        yield record._replace(timestamp_ms=header.max_timestamp)


class ControlType(IntEnum):
    """What a control record says: the second int16 of its key."""

    ABORT = 0
    COMMIT = 1


_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VALUE: Final = Struct(">hi")
# The record of a marker, up to the end of its key's length: the record's length, attributes, deltas, the key's length;
# its key, with the outcome; the value's length; its value, with the coordinator's epoch; the count of headers.
_END: Final = Struct(">5shhBhiB")
_END_HEAD: Final = bytes((2 * (_END.size - 1), 0, 0, 0, 2 * _CONTROL_KEY.size))
_VALUE_LENGTH: Final = 2 * _CONTROL_VALUE.size
_END_BATCH: Final = Struct(HEADER.format + _END.format[1:])


def encode_end_transaction(
    outcome: ControlType, *, timestamp_ms: int, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> bytearray:
    """The marker that ends a producer's transaction in one partition: what `encode_batch` would make of it."""
    batch = bytearray(
        _END_BATCH.pack(
            0, _END_BATCH.size - LOG_OVERHEAD_BYTES, NO_LEADER_EPOCH, MAGIC, 0, TRANSACTIONAL | CONTROL, 0,
            timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, 1,
            _END_HEAD, 0, outcome, _VALUE_LENGTH, 0, coordinator_epoch, 0,
        )
    )  # fmt: skip
    batch[CRC_AT:CRC_FROM] = _UINT32.pack(crc_of(batch))
    return batch


def read_end_transaction(batch: memoryview) -> tuple[bool, int] | None:
    """(is abort, coordinator epoch) of a batch as `encode_end_transaction` makes it; None for any other bytes."""
    if len(batch) != _END_BATCH.size:
        return None
    head, _, outcome, value_length, _, epoch, headers = _END.unpack_from(batch, HEADER_BYTES)
    if head != _END_HEAD or outcome not in (0, 1) or value_length != _VALUE_LENGTH or headers:
        return None
    return outcome == ControlType.ABORT, epoch


def control_type(record: Record) -> int:
    """Type of a control record; ControlType knows the two that end transactions."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "control record without a type")
    kind: int = _CONTROL_KEY.unpack_from(record.key)[1]
    return kind


def coordinator_epoch_of(record: Record) -> int:
    """Epoch of the coordinator that wrote a transaction's end marker."""
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "transaction marker without a coordinator epoch")
    epoch: int = _CONTROL_VALUE.unpack_from(record.value)[1]
    return epoch
