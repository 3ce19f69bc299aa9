"""Finds batches that consumers cannot read, for `kproc topic verify`, and for `kproc consume` if it makes no progress.

librdkafka reports no error, or one without an offset, for such a batch and fetches it again and again. This module
therefore fetches the raw batches and reads them with kproc's own decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.cli.common import Failure

if TYPE_CHECKING:
    from kproc.client import Client

_FETCH_BYTES: Final = 4 << 20


class FilesUnreadable(Failure):
    """The broker cannot read a partition's files at an offset, for example because somebody has removed one."""


class CheckedBatch(NamedTuple):
    """A batch of a partition: its offset, the next batch's offset, its number of records, and its problem or None."""

    offset: int
    next_offset: int
    records: int
    problem: str | None


def fetch_batches(client: Client, topic: str, partition: int, offset: int) -> bytes:
    """Fetch batches, beginning with the one that contains `offset`. Raise a Failure if the broker reports an error."""
    from kproc.client import error_text
    from kproc.client.requests import FetchLimits, fetch_fields
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    fields = fetch_fields((topic, partition), offset, FetchLimits(_FETCH_BYTES, min_bytes=0, wait_ms=0))
    row: dict[str, Any] = client.call_latest(ApiKey.FETCH, fields)["responses"][0]["partitions"][0]
    if row["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR:
        raise FilesUnreadable(
            f"{topic}-{partition}: the broker cannot read the partition's files at offset {offset}; "
            "the reason is in the broker's log"
        )
    if row["error_code"]:
        raise Failure(f"{topic}-{partition}: {error_text(row['error_code'])}")
    return row["records"] or b""


def check_batches(content: bytes, offset: int) -> Iterator[CheckedBatch]:
    """Yield every complete batch that ends at or after `offset`.

    Stop after a batch with a damaged length or an old message format, because the next one cannot be found.
    """
    from kproc.wire.batch_header import HEADER_BYTES, MAGIC_AT
    from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, MAGIC, parse_header

    position = 0
    while position + HEADER_BYTES <= len(content):
        base = int.from_bytes(content[position : position + 8], "big", signed=True)
        magic = content[position + MAGIC_AT]
        if magic != MAGIC:
            yield CheckedBatch(base, base + 1, 0, f"message format {magic}")
            return
        header = parse_header(content, position)
        total = header.batch_length + LOG_OVERHEAD_BYTES
        if total < HEADER_BYTES or header.last_offset_delta < 0:
            yield CheckedBatch(base, base + 1, 0, f"batch length {header.batch_length} is invalid")
            return
        if position + total > len(content):
            return  # The last batch of a Fetch may be incomplete.
        if header.last_offset >= offset:
            problem = _problem_of(content[position : position + total])
            yield CheckedBatch(base, header.last_offset + 1, header.record_count, problem)
        position += total


def _problem_of(batch: bytes) -> str | None:
    """Return the reason why consumers cannot read a batch, or None if they can."""
    from kproc.client import error_text
    from kproc.common.errors import KafkaError
    from kproc.wire.record_batch import crc_of, parse_header, walk_batch

    header = parse_header(batch)
    if crc_of(batch) != header.crc:
        return "its CRC-32C does not match"
    try:
        for record in walk_batch(batch):
            if record.offset > header.last_offset:
                return f"a record has offset {record.offset}, the batch ends at {header.last_offset}"
    except KafkaError as error:
        return error.message or error_text(error.code)
    return None


def find_unreadable(client: Client, topic: str, partition: int, offset: int) -> CheckedBatch | None:
    """Return the batch that contains `offset` if consumers cannot read it, else None."""
    for batch in check_batches(fetch_batches(client, topic, partition, offset), offset):
        return batch if batch.problem is not None else None
    return None
