"""Decoder: record batches from Fetch responses and segment files to Arrow record batches of the connector's schema.

    bytes of v2 batches --> checked, filtered, decompressed --> positions of fields --> Arrow
       feed()                 _enqueue_batch()                    walk.find_fields()    _emit()

No Python code runs per record. The Decoder joins batches until they hold `rows_max` records or `bytes_max` bytes, and
then works on whole columns. Columns that the query does not read are not built.

The input is not trusted. An incomplete batch ends the feed without an error, because a Fetch cuts its last batch and a
file can have a torn tail. All other damage raises KafkaError with topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.reading import READ_COMMITTED, READ_UNCOMMITTED
from kproc.spark.binary import binary_array, bytes_scalar, number_array
from kproc.spark.headers import header_array
from kproc.spark.schema import COLUMNS, arrow_schema, check_columns
from kproc.spark.walk import PADDING, Fields, WantedFields, find_fields
from kproc.wire import records as record_format
from kproc.wire.batch_header import CRC_FROM, HEADER, HEADER_BYTES, MAGIC_AT
from kproc.wire.checksum import crc32c
from kproc.wire.compression import decompress
from kproc.wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
)

ARROW_TYPES: Final = {field.name: field.type for field in arrow_schema(tuple(COLUMNS))}

ROWS_MAX: Final = 20_000
BYTES_MAX: Final = 4 << 20
# If this many bytes wait at the end of a feed(), emit them as an Arrow batch. Its cost per row is little above that of
# a larger one.
_WORTH_BYTES: Final = 256 << 10

_unpack = HEADER.unpack_from
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_ABORT: Final = 0

Bytes = bytes | bytearray | memoryview
Array = np.ndarray[Any, np.dtype[Any]]


class _WaitingBatch(NamedTuple):
    """A checked batch that waits to be emitted: its decompressed records, base offset and base timestamp.

    append_time: the timestamp of all records with LogAppendTime, or None with CreateTime.
    """

    payload: Bytes
    position: int
    """Position of the payload in the bytes that were fed. Meaningless for a payload that was decompressed."""
    records: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    append_time: int | None


class Decoder:
    """Decoder of one partition's batches, from the offset `start` to before `end`.

    Call `feed()` repeatedly with consecutive batches, then `flush()` for the remaining records. `next_offset` is the
    offset at which the next bytes must begin. Offsets below it can be gaps that compaction, aborted transactions or
    their markers left.

    isolation: READ_COMMITTED leaves out the records of aborted transactions.
    rows_max, bytes_max: limits above which an Arrow batch is emitted.
    """

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        partition: int,
        start: int = 0,
        end: int = 2**63 - 1,
        *,
        isolation: int = READ_UNCOMMITTED,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        check_crcs: bool = True,
    ) -> None:
        check_columns(columns)
        self.next_offset = start
        self.consumed = 0
        """Bytes of the last feed() that were decoded. The rest is an incomplete batch, or has offsets from `end` on."""
        self.schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._name = f"{topic}-{partition}"
        self._start = start
        self.end = end
        self._committed = isolation == READ_COMMITTED
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._check_crcs = check_crcs
        self._waiting: list[_WaitingBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._constants = _Constants(topic, partition)
        # The fields have the names of their columns.
        self._wanted = WantedFields._make(name in columns for name in WantedFields._fields)

    @property
    def is_done(self) -> bool:
        """True if `next_offset` has reached `end`, so that no further bytes are needed."""
        return self.next_offset >= self.end

    def feed(self, data: Bytes, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches for the complete batches in `data`.

        aborted: (producer id, first offset) of aborted transactions, from the Fetch response or the transaction index.
        """
        transactions = _Aborted(aborted) if self._committed else None
        view = memoryview(data)
        position = self.consumed = 0
        size = len(view)
        # A broker can cut the last batch at the byte limit of a Fetch, so an incomplete batch is no error. The caller
        # fetches again from `next_offset`.
        while position + LOG_OVERHEAD_BYTES < size and self.next_offset < self.end:
            total = self._enqueue_batch(view, position, transactions)
            if total == 0:
                break
            position += total
            self.consumed = position
            if self._waiting_rows >= self._rows_max or self._waiting_bytes >= self._bytes_max:
                yield from self._flush(data)
        # Emit now instead of at the next feed(): the records are in one buffer and need no copy. Records of two feeds
        # would have to be copied into one buffer.
        if self._waiting_bytes >= _WORTH_BYTES:
            yield from self._flush(data)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of the records that were fed and not emitted yet."""
        return self._flush(b"")

    def _flush(self, data: Bytes) -> Iterator[pa.RecordBatch]:
        """Yield the waiting records.

        `data` is the buffer of the present feed(), whose uncompressed batches are not copied.
        """
        if self._waiting_rows:
            waiting, self._waiting = self._waiting, []
            self._waiting_rows = self._waiting_bytes = 0
            table = self._emit(waiting, data)
            # A single batch can hold many more records than `rows_max`. Emit its table in slices, which share its
            # memory. A table usually has a few rows more than `rows_max`, so cut it only above twice that.
            for first in range(0, table.num_rows, 2 * self._rows_max):
                yield table.slice(first, 2 * self._rows_max)

    # -- one batch

    def _enqueue_batch(self, view: memoryview, position: int, transactions: _Aborted | None) -> int:
        """Check the batch at the position, enqueue its records and return its bytes. Return 0 if it is incomplete.

        Control batches, aborted batches, and batches outside start..end are skipped.
        """
        total = self._complete_bytes(view, position)
        if not total:
            return 0
        header = _unpack(view, position)
        base_offset, _, _, _, _, attributes, last_delta, _, _, producer, _, _, count = header
        last_offset = base_offset + last_delta
        # Skip a batch below the wanted offset: a Fetch response or an index entry can begin some batches before it.
        if last_offset < self.next_offset:
            return total
        self._check_batch(header, view[position : position + total])
        if base_offset >= self.end:
            self.next_offset = base_offset
            return total
        payload = view[position + HEADER_BYTES : position + total]
        # A control batch has a marker that ends a transaction (KIP-98). The marker has an offset but is no record for
        # the user, so the offsets of the records have a gap.
        if attributes & CONTROL:
            if transactions is not None:
                transactions.on_marker(
                    producer, last_offset, self._control_type(payload, base_offset, attributes)
                )
        elif count and not (
            transactions is not None
            and attributes & TRANSACTIONAL
            and transactions.has_aborted(producer, last_offset)
        ):
            self._enqueue_records(header, payload, position + HEADER_BYTES)
        self.next_offset = last_offset + 1
        return total

    def _check_batch(self, header: tuple[Any, ...], batch: memoryview) -> None:
        """Raise KafkaError if the batch's CRC or its number of records is wrong."""
        base_offset, _, _, _, crc, _, last_delta, _, _, _, _, _, count = header
        # Kafka's CRC covers the bytes from the attributes on. Brokers change fields before them, such as the leader
        # epoch, without a new CRC.
        if self._check_crcs and crc32c(batch[CRC_FROM:]) != crc:
            raise self._bad(base_offset, f"its CRC-32C is not the stored {crc:#010x}")
        # Compaction removes records and keeps the last offset delta. So a batch can have fewer records than offsets,
        # but never more.
        if not 0 <= count <= last_delta + 1:
            raise self._bad(
                base_offset, f"it claims {count} records, but its last offset delta is only {last_delta}"
            )

    def _enqueue_records(self, header: tuple[Any, ...], payload: memoryview, position: int) -> None:
        """Enqueue the records of a batch, decompressed. `position` is that of the payload in the buffer."""
        base_offset, _, _, _, _, attributes, last_delta, base_ts, max_ts, _, _, _, count = header
        codec = attributes & CODEC_MASK
        raw = self._decompress(codec, payload, base_offset) if codec else payload
        # Check the header's record count against the bytes of the payload, because memory is allocated by the count.
        if count > len(raw) // record_format.RECORD_BYTES_MIN:
            raise self._bad(base_offset, f"it claims {count} records in only {len(raw)} bytes")
        append_time = max_ts if attributes & LOG_APPEND_TIME else None
        self._waiting.append(
            _WaitingBatch(raw, position, count, base_offset, base_offset + last_delta, base_ts, append_time)
        )
        self._waiting_rows += count
        self._waiting_bytes += len(raw)

    def _complete_bytes(self, view: memoryview, position: int) -> int:
        """Return the size of the batch at the position, or 0 if it is incomplete.

        Raise KafkaError if it is no batch of v2.
        """
        if len(view) - position <= MAGIC_AT:
            return 0
        magic = view[position + MAGIC_AT]
        # Check the magic byte first. It is at the same position in every version of the format, and all other fields
        # depend on it.
        if magic != MAGIC:
            raise self._bad_format(view, position, magic)
        if len(view) - position < HEADER_BYTES:
            return 0
        base_offset, length = _unpack(view, position)[:2]
        total: int = length + LOG_OVERHEAD_BYTES
        if total < HEADER_BYTES:
            raise self._bad(base_offset, f"its length, {length} bytes, is less than a header")
        return total if total <= len(view) - position else 0

    def _decompress(self, codec: int, payload: Bytes, base_offset: int) -> bytes:
        try:
            return decompress(codec, payload)
        except KafkaError as error:
            raise self._bad(base_offset, error.message or str(error)) from None

    def _control_type(self, payload: Bytes, base_offset: int, attributes: int) -> int:
        try:
            codec = attributes & CODEC_MASK
            raw = decompress(codec, payload)
            key = record_format.decode_records(raw, 1, 0, 0)[0].key
        except KafkaError as error:
            raise self._bad(base_offset, error.message or str(error)) from None
        if key is None or len(key) < 4:
            raise self._bad(base_offset, "its control record has no type")
        return int.from_bytes(key[2:4], "big")

    # -- the waiting batches

    def _emit(self, waiting: list[_WaitingBatch], data: Bytes) -> pa.RecordBatch:
        counts = np.array([batch.records for batch in waiting], np.int64)
        raw, begins, ends = _in_one_piece(waiting, data)
        # Records outside start..end must be left out, which needs the offset of each record. Only the first and the
        # last batch can contain such records.
        is_cut = waiting[0].base_offset < self._start or waiting[-1].last_offset >= self.end
        wanted = self._wanted._replace(offset=True) if is_cut else self._wanted
        fields = find_fields(raw, begins, ends, counts, wanted)
        if fields is None:
            self._explain(waiting)
        offset = None
        if fields.offset_delta is not None:
            offset = np.repeat(_column(waiting, "base_offset"), counts) + fields.offset_delta
        timestamp = _timestamps(waiting, counts, fields) if self._wanted.timestamp else None
        kind = None
        if "timestampType" in self._columns:
            kinds = np.array([batch.append_time is not None for batch in waiting], np.int32)
            kind = np.repeat(kinds, counts)
        if is_cut and offset is not None:
            inside = (offset >= self._start) & (offset < self.end)
            fields = fields.filtered(inside)
            offset = offset[inside]
            timestamp = None if timestamp is None else timestamp[inside]
            kind = None if kind is None else kind[inside]
        if timestamp is not None:
            timestamp = self._microseconds(timestamp, waiting)
        try:
            return self._arrow(raw, fields, offset, timestamp, kind)
        # A damaged record header raises ValueError, as does pyarrow's ArrowInvalid, which is a subclass.
        except ValueError:
            self._explain(waiting)

    def _microseconds(self, timestamps_ms: Array, waiting: list[_WaitingBatch]) -> Array:
        """Return the timestamps in microseconds, the unit of Arrow and Spark.

        Raise KafkaError if they overflow. Kafka accepts any number from a producer, for example nanoseconds.
        """
        low, high = timestamps_ms.min(initial=0), timestamps_ms.max(initial=0)
        # NumPy's product would overflow without an error, and the row would get a wrong date.
        if low < -TIMESTAMP_MS_MAX or high > TIMESTAMP_MS_MAX:
            raise self._bad(
                waiting[0].base_offset,
                f"a record in or soon after it has a timestamp of {high if high > TIMESTAMP_MS_MAX else low} ms, "
                "which a Spark timestamp cannot hold: use a schema without the column timestamp",
            )
        return timestamps_ms * 1000

    def _arrow(
        self, raw: bytes, fields: Fields, offset: Array | None, timestamp: Array | None, kind: Array | None
    ) -> pa.RecordBatch:
        rows = fields.rows
        arrays = []
        for name in self._columns:
            if name == "key":
                arrays.append(binary_array(raw, fields.key_at, fields.key_bytes))
            elif name == "value":
                arrays.append(binary_array(raw, fields.value_at, fields.value_bytes))
            elif name == "offset":
                arrays.append(number_array(offset, pa.int64()))
            elif name == "timestamp":
                arrays.append(number_array(timestamp, ARROW_TYPES["timestamp"]))
            elif name == "timestampType":
                arrays.append(number_array(kind, pa.int32()))
            elif name == "headers":
                arrays.append(
                    header_array(raw, fields.headers_at, fields.header_count, fields.end, ARROW_TYPES[name])
                )
            else:
                arrays.append(self._constants.get(name, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # -- errors of damaged data

    def _explain(self, waiting: list[_WaitingBatch]) -> NoReturn:
        """Parse damaged batches again with the reference parser of kproc.wire, and raise its precise error."""
        for batch in waiting:
            try:
                # Parse one record at a time, because a list of all records of a malicious batch could take gigabytes of
                # memory.
                for _ in record_format.walk_records(
                    bytes(batch.payload), batch.records, 0, batch.base_offset
                ):
                    pass
            except KafkaError as error:
                raise self._bad(batch.base_offset, error.message or str(error)) from None
        raise self._bad(waiting[0].base_offset, "its records cannot be read")

    def _bad(self, base_offset: int, why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{self._name}: the batch at offset {base_offset}: {why}"
        )

    def _bad_format(self, view: memoryview, position: int, magic: int) -> KafkaError:
        offset = int.from_bytes(view[position : position + 8], "big", signed=True)
        if magic in (0, 1):
            return KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"{self._name}: message format {magic} at offset {offset} is of Kafka before 0.11 and cannot be "
                f"read: copy the topic with a Kafka 3 client, which writes format {MAGIC}",
            )
        return self._bad(offset, f"message format {magic} is not known: these are not record batches")


class _Aborted:
    """Producers whose transaction at the current batch was aborted, by the rule of Kafka's consumer."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._producers: set[int] = set()

    def _start_until(self, last_offset: int) -> None:
        while self._coming and self._coming[-1][0] <= last_offset:
            self._producers.add(self._coming.pop()[1])

    def has_aborted(self, producer: int, last_offset: int) -> bool:
        """Return True if the transactional batch belongs to an aborted transaction."""
        self._start_until(last_offset)
        return producer in self._producers

    def on_marker(self, producer: int, last_offset: int, kind: int) -> None:
        """Handle the marker that ends a producer's transaction.

        After an abort marker, batches of the producer are of another transaction. A commit marker changes nothing.
        """
        self._start_until(last_offset)
        if kind == _ABORT:
            self._producers.discard(producer)


class _Constants:
    """Cache of columns with the same value in every row, such as the topic. Each is built once and then sliced."""

    def __init__(self, topic: str, partition: int) -> None:
        number = number_array(np.array([partition], np.int32), pa.int32())[0]
        self._values = {"topic": bytes_scalar(topic.encode(), pa.string()), "partition": number}
        self._arrays: dict[str, pa.Array] = {}

    def get(self, name: str, rows: int) -> pa.Array:
        array = self._arrays.get(name)
        if array is None or len(array) < rows:
            array = self._arrays[name] = pa.repeat(self._values[name], max(rows, 1024))
        return array.slice(0, rows)


def _in_one_piece(waiting: list[_WaitingBatch], data: Bytes) -> tuple[bytes, Array, Array]:
    """Return one buffer with the records of all batches, and the begin and end of each batch in it.

    Uncompressed batches inside `data` are not copied, because the copy would cost more than all of numpy's work. They
    need PADDING bytes of `data` after them, because find_fields reads beyond the last record.
    """
    sizes = np.array([len(batch.payload) for batch in waiting], np.int64)
    places = [batch.position for batch in waiting]
    last = places[-1] + len(waiting[-1].payload)
    if (
        isinstance(data, bytes)
        and last + len(PADDING) <= len(data)
        and all(isinstance(batch.payload, memoryview) and batch.payload.obj is data for batch in waiting)
    ):
        begins = np.array(places, np.int64)
        return data, begins, begins + sizes
    ends = np.cumsum(sizes)
    return b"".join([*(batch.payload for batch in waiting), PADDING]), ends - sizes, ends


def _timestamps(waiting: list[_WaitingBatch], counts: Array, fields: Fields) -> Array:
    """Return each record's timestamp in ms since 1970. counts: records of each waiting batch.

    With LogAppendTime all records of a batch have the batch's timestamp.
    """
    timestamps: Array = np.repeat(_column(waiting, "base_timestamp"), counts) + fields.timestamp_delta
    if any(batch.append_time is not None for batch in waiting):
        stamped = np.array([batch.append_time is not None for batch in waiting])
        times = np.array([batch.append_time or 0 for batch in waiting], np.int64)
        timestamps = np.where(np.repeat(stamped, counts), np.repeat(times, counts), timestamps)
    return timestamps


def _column(waiting: list[_WaitingBatch], name: str) -> Array:
    return np.array([getattr(batch, name) for batch in waiting], np.int64)
