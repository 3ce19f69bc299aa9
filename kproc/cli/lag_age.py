"""The age of a lag: the time of the first record that a group has not committed, read from the record itself.

No request of Kafka's protocol returns the time of an offset, so the records are fetched, many partitions at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kproc.cli.offsets import find_offsets
from kproc.cli.unserved import Partition
from kproc.common.reading import EARLIEST

if TYPE_CHECKING:
    from kproc.client import Client

# (partition, offset): the position of a record.
Position = tuple[Partition, int]

POSITIONS_MAX: Final = 3000
"""Limit of records that one command reads. A busy broker may have many more partitions with a lag."""
# Bytes to fetch of each partition: the default batch.size of clients and the batch header.
_PARTITION_BYTES: Final = (16 << 10) + 512
_PARTITIONS_AT_ONCE: Final = 200
# Limit of larger batches to read. Each needs its own request, because only the first batch of a Fetch response may
# exceed the limits.
_LARGE_MAX: Final = 100


def record_times(client: Client, positions: Sequence[Position]) -> dict[Position, int]:
    """Return the time in ms of the first record at or after each position. Positions that cannot be read are omitted.

    Only the first POSITIONS_MAX positions are read.
    """
    wanted = list(dict.fromkeys(positions))[:POSITIONS_MAX]
    times: dict[Position, int] = {}
    deleted: list[Position] = []
    for chunk in _chunks(wanted):
        _fetch(client, chunk, times, deleted)
    # Retention has deleted the records at these positions. Use the oldest remaining record, which is not committed
    # either.
    starts = find_offsets(client, {partition: EARLIEST for partition, _ in deleted}, {})
    moved = {each: (each[0], starts[each[0]].offset) for each in deleted if each[0] in starts}
    for chunk in _chunks(list(dict.fromkeys(moved.values()))):
        _fetch(client, chunk, times, [])
    read_at = {each: moved.get(each, each) for each in wanted}
    for each in [each for each in dict.fromkeys(read_at.values()) if each not in times][:_LARGE_MAX]:
        _fetch(client, [each], times, [])
    return {each: times[at] for each, at in read_at.items() if at in times}


def _chunks(positions: Sequence[Position]) -> Iterator[list[Position]]:
    """Divide positions into requests of at most _PARTITIONS_AT_ONCE. No request has a partition twice."""
    rounds: list[list[Position]] = []
    times: dict[Partition, int] = {}
    for each in positions:
        at = times.get(each[0], 0)
        times[each[0]] = at + 1
        if at == len(rounds):
            rounds.append([])
        rounds[at].append(each)
    for of_round in rounds:
        for first in range(0, len(of_round), _PARTITIONS_AT_ONCE):
            yield of_round[first : first + _PARTITIONS_AT_ONCE]


def _fetch(
    client: Client, positions: list[Position], times: dict[Position, int], deleted: list[Position]
) -> None:
    """Fetch a batch at each position.

    Add the records' times to `times`, and positions below the log's start to `deleted`.
    """
    from kproc.client.requests import FetchLimits, fetch_many_fields
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    offsets = dict(positions)
    limits = FetchLimits(_PARTITION_BYTES * len(positions), min_bytes=0, wait_ms=0)
    fields = fetch_many_fields(offsets, limits, partition_bytes=_PARTITION_BYTES)
    for topic in client.call_latest(ApiKey.FETCH, fields)["responses"]:
        for row in topic["partitions"]:
            partition = topic["topic"], row["partition_index"]
            offset = offsets[partition]
            if row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE:
                deleted.append((partition, offset))
            elif not row["error_code"] and (time_ms := time_of(row["records"] or b"", offset)) is not None:
                times[partition, offset] = time_ms


def time_of(content: bytes, offset: int) -> int | None:
    """Return the time in ms of the first record at or after an offset, or None if there is none in these batches.

    For a batch that is incomplete or cannot be decoded, use the base timestamp of its header.
    """
    from kproc.common.errors import KafkaError, ProtocolError
    from kproc.wire.batch_header import HEADER_BYTES, MAGIC_AT
    from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, MAGIC, parse_header, walk_batch

    position = 0
    while position + HEADER_BYTES <= len(content) and content[position + MAGIC_AT] == MAGIC:
        header = parse_header(content, position)
        total = header.batch_length + LOG_OVERHEAD_BYTES
        if total < HEADER_BYTES:
            return None
        if header.last_offset >= offset:
            if header.is_log_append_time:
                return header.max_timestamp
            if header.base_offset >= offset:
                return header.base_timestamp
            try:
                for record in walk_batch(content[position : position + total]):
                    if record.offset >= offset:
                        return record.timestamp_ms
            except (KafkaError, ProtocolError, IndexError):
                return header.base_timestamp
        position += total
    return None
