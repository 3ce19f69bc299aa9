"""CoordinatorReplay: reads a coordinator's log and keeps the last record of each key, as compaction would.

The coordinator then replays only these records, so superseded records cost little more than reading them. A record of a
transaction is pending until its commit marker. From then on it counts, unless the log has a later record of its key.

Updates are an exception. An update changes a part of the state in the record of another key, its base. All updates
behind the last record of their base count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kproc.broker.coordinator.rules import Producer
from kproc.broker.coordinator.steps import Work
from kproc.broker.storage.validate import read_marker
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import CRC_FROM, HEADER, HEADER_BYTES
from kproc.wire.checksum import crc32c
from kproc.wire.compression import DECOMPRESSED_BYTES_MAX, decompress
from kproc.wire.latest_records import LatestRecords, Row, offset_delta_of, read_row
from kproc.wire.record_batch import CODEC_MASK, CONTROL, LOG_OVERHEAD_BYTES, TRANSACTIONAL

_unpack_header: Final = HEADER.unpack_from
# Bytes of the log that cost one unit of about 1 us (see Steps), and bytes after which a step may end.
_BYTES_PER_COST: Final = 6
_PART_BYTES: Final = 2_000


class ReplayedRecord(NamedTuple):
    """The last record of a key, or an update.

    `producer` is set if the record belongs to a transaction of that producer that is still open.
    """

    key: bytes | None
    value: bytes | None
    offset: int
    producer: Producer | None


class _PendingRecord(NamedTuple):
    """A record of an open transaction, and the base offset of its batch."""

    base_offset: int
    row: Row
    producer: Producer


class CoordinatorReplay:
    """Reads one coordinator's log in order, and keeps the last record of each key."""

    def __init__(
        self,
        start_offset: int,
        *,
        has_transactions: bool,
        base_key_of: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        self.next_offset = start_offset
        self._has_transactions = has_transactions
        self._base_key_of = base_key_of  # Returns the key of the base for the key of an update, else None.
        # By the key of the base: the updates in their order.
        self._updates: dict[bytes, list[ReplayedRecord]] = {}
        self._latest = LatestRecords()
        # By key, the last record that counts, and the base offset of its batch. Two dictionaries, because both are
        # updated for a whole batch at once.
        self._rows: dict[bytes | None, Row] = {}
        self._bases: dict[bytes | None, int] = {}
        self._pending: dict[int, dict[bytes | None, _PendingRecord]] = {}  # By producer id.

    def add(self, data: bytes) -> Work:
        """Read the complete batches of `data`, which begins at `next_offset`. The last batch may be incomplete.

        Raises Corrupt for a wrong checksum, or if `data` has no complete batch.
        """
        view = memoryview(data)
        position = reported = 0
        while position + HEADER_BYTES <= len(data):
            header = _unpack_header(view, position)
            base_offset, length, _, _, crc, attributes, last_delta, _, _, producer_id, *_ = header
            end = position + LOG_OVERHEAD_BYTES + length
            if end > len(data):
                break
            # A coordinator with half a state would commit offsets and decide transactions wrongly. So check
            # the CRC of every batch.
            if end < position + HEADER_BYTES or crc32c(view[position + CRC_FROM : end]) != crc:
                raise Corrupt(f"the batch at offset {base_offset} has a wrong length or CRC")
            if attributes & CONTROL:
                self._end_transaction(view[position:end], attributes, producer_id)
            else:
                self._add_records(data[position + HEADER_BYTES : end], header)
            self.next_offset = base_offset + last_delta + 1
            position = end
            if position - reported > _PART_BYTES:
                yield (position - reported) // _BYTES_PER_COST
                reported = position
        if not position:
            raise Corrupt(f"the log has no complete batch at offset {self.next_offset}")
        yield (position - reported) // _BYTES_PER_COST

    def _add_records(self, raw: bytes, header: tuple[int, ...]) -> None:
        """Add the records of a batch with this header. `raw`: its bytes behind the header, as the log has them."""
        base_offset, _, _, _, _, attributes, _, _, _, producer_id, epoch, _, count = header
        # kproc writes these topics uncompressed, as Kafka does by default. Compressed batches come from files of a
        # Kafka with offsets.topic.compression.codec.
        if attributes & CODEC_MASK:
            raw = decompress(attributes & CODEC_MASK, raw, DECOMPRESSED_BYTES_MAX)
        if attributes & TRANSACTIONAL and self._has_transactions:
            self._add_pending(self._latest.of(raw, count), base_offset, Producer(producer_id, epoch))
        elif self._base_key_of is not None:
            self._add_with_updates(raw, count, base_offset, self._base_key_of)
        elif count == 1:
            self._add_one(raw, base_offset)
        else:
            rows = self._latest.of(raw, count)
            # Updating the dictionary with a whole batch takes a third of the time of a loop over its records.
            self._rows.update(rows)
            self._bases.update(dict.fromkeys(rows, base_offset))

    def _add_one(self, raw: bytes, base_offset: int) -> None:
        """Add a batch that has only one record. This is a frequent case."""
        end, row = read_row(raw, 0)
        if end != len(raw):
            raise Corrupt(f"bytes follow the only record of the batch at offset {base_offset}")
        key = row[1]
        self._rows[key], self._bases[key] = row, base_offset

    def _add_with_updates(
        self, raw: bytes, count: int, base_offset: int, base_key_of: Callable[[bytes], bytes | None]
    ) -> None:
        """Add a batch that may have updates.

        A record with the key of a base supersedes the earlier updates of that base.
        """
        position = 0
        for _ in range(count):
            position, row = read_row(raw, position)
            key = row[1]
            base = base_key_of(key) if key is not None else None
            if base is not None:
                update = ReplayedRecord(key, row[2], base_offset + offset_delta_of(row), None)
                self._updates.setdefault(base, []).append(update)
                continue
            self._rows[key], self._bases[key] = row, base_offset
            if key is not None:
                self._updates.pop(key, None)
        if position != len(raw):
            raise Corrupt(f"bytes follow the last record of the batch at offset {base_offset}")

    def _add_pending(self, rows: dict[bytes | None, Row], base_offset: int, producer: Producer) -> None:
        pending = self._pending.setdefault(producer.producer_id, {})
        for key, row in rows.items():
            if row[2] is None:
                # As in Kafka's OffsetMetadataManager, a tombstone takes effect at once, even if its transaction is
                # aborted later.
                self._rows[key], self._bases[key] = row, base_offset
            else:
                pending[key] = _PendingRecord(base_offset, row, producer)

    def _end_transaction(self, batch: memoryview, attributes: int, producer_id: int) -> None:
        marker = read_marker(batch, attributes)
        # A control batch of another kind, or one that compaction has emptied. It ends no transaction.
        if marker is None:
            return
        is_abort, _ = marker
        for key, (base_offset, row, _) in self._pending.pop(producer_id, {}).items():
            # A record outside of the transaction that is later in the log is newer than the pending one, so it stays.
            if not is_abort and base_offset > self._bases.get(key, -1):
                self._rows[key], self._bases[key] = row, base_offset

    def survivors(self) -> Iterator[ReplayedRecord]:
        """Yield the last record of each key, then the updates, then the records of open transactions.

        Skips deleted keys. Call it once: it removes what it yields, because freeing the memory of all records at once
        would take long.
        """
        for key in list(self._rows):
            row = self._rows[key]
            if row[2] is not None:
                del self._rows[key]
                yield ReplayedRecord(key, row[2], self._bases.pop(key) + offset_delta_of(row), None)
        for base in list(self._updates):
            yield from self._updates.pop(base)
        for pending in self._pending.values():
            for key, (base_offset, row, producer) in pending.items():
                counted = self._rows.get(key)
                # The key was deleted after the record of the open transaction. A commit must not bring it
                # back.
                is_deleted = counted is not None and counted[2] is None and self._bases[key] > base_offset
                if not is_deleted:
                    yield ReplayedRecord(key, row[2], base_offset + offset_delta_of(row), producer)
