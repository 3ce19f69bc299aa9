"""OriginalRecords: the records of a log that are copied into their dead letters (KIP-1191).

A small batch of a producer can decompress to a huge one. Therefore a batch above the limits of records_inside.py is not
read, and its dead letters have headers only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kproc.broker.storage.records_inside import RECORDS_INSIDE_MAX, inside_bytes_max
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.compression import decompress
from kproc.wire.record_batch import parse_header
from kproc.wire.records import Record, walk_records

if TYPE_CHECKING:
    from kproc.broker.storage.log import Log

logger = logging.getLogger(__name__)


# A batch of dead letters with copies ends when so many decompressed bytes or records of the log were read for it. A
# Handler makes one such batch in a duty cycle.
_READ_BYTES_MAX: Final = 8 << 20
_READ_RECORDS_MAX: Final = 10_000


class OriginalRecords:
    """Reads the records of one log by their offsets, which callers look up in roughly ascending order."""

    __slots__ = (
        "_ahead",
        "_budget_bytes",
        "_budget_records",
        "_first",
        "_last",
        "_log",
        "_position",
        "_records",
    )

    def __init__(self, log: Log) -> None:
        self._log = log
        self._first, self._last = 0, -1  # The offsets of the batch that is being read.
        self._position = -1  # The offset of the next record, or -1 if the batch cannot be read.
        self._records: Iterator[Record] = iter(())
        self._ahead: Record | None = None
        self.renew_budget()

    def renew_budget(self) -> None:
        """Reset the budget of bytes and records, because a new batch of dead letters begins."""
        self._budget_bytes, self._budget_records = _READ_BYTES_MAX, _READ_RECORDS_MAX

    @property
    def has_budget(self) -> bool:
        """False if as much of the log was read for this batch of dead letters as one duty cycle allows."""
        return self._budget_bytes > 0 and self._budget_records > 0

    def find(self, offset: int) -> Record | None:
        """Return the record with an offset. None if it is gone or cannot be read."""
        if not self._first <= offset <= self._last or offset < self._position:
            self._open(offset)
        try:
            while self._ahead is not None and self._ahead.offset < offset:
                self._read_next()
        except KafkaError as error:
            self._fail(error)
        return self._ahead if self._ahead is not None and self._ahead.offset == offset else None

    def _read_next(self) -> None:
        self._budget_records -= 1
        self._ahead = next(self._records, None)
        self._position = self._last + 1 if self._ahead is None else self._ahead.offset

    def _open(self, offset: int) -> None:
        """Start to read the batch with an offset, or the next one if compaction has removed that."""
        self._first, self._last, self._position, self._ahead = offset, offset, -1, None
        try:
            batch = memoryview(self._log.reader.read_bytes(offset, 1))
            if len(batch) < HEADER_BYTES:
                return
            header = parse_header(batch)
            self._last = header.last_offset
            if header.is_control:
                return
            if header.record_count > RECORDS_INSIDE_MAX:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"the batch at offset {header.base_offset} has {header.record_count} records, and dead letters "
                    f"copy at most {RECORDS_INSIDE_MAX}",
                )
            payload = batch[HEADER_BYTES : header.total_bytes]
            limit = inside_bytes_max(len(payload), self._log.state.config)
            self._budget_bytes -= limit  # A batch that exceeds the limit costs this.
            raw = decompress(header.codec, payload, limit)
            self._budget_bytes += limit - len(raw)
            self._records = walk_records(raw, header.record_count, header.base_timestamp, header.base_offset)
            self._read_next()
        except (KafkaError, Corrupt, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Give up on the batch. Its other dead letters get headers only, without another warning."""
        self._ahead, self._position = None, -1
        logger.warning(
            "cannot read a batch of %s, so its remaining dead letters have headers only: %s",
            self._log.state.directory.name,
            error,
        )
