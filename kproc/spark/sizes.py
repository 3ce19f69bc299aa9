"""`maxBytesPerTrigger`: limit a batch by bytes, with any broker.

Kafka's protocol has no request for the number of bytes between two offsets. So the driver fetches the beginning of each
partition's backlog, up to SAMPLE_BYTES, and reads its batch headers. Within this sample bytes are exact. Beyond it,
they are estimated by the sample's bytes per offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.client.requests import FetchLimits
from kproc.spark.brokers import Cluster, OffsetOutOfRange, UnknownTopic
from kproc.spark.offsets import Offsets, TopicPartition
from kproc.spark.options import SourceOptions
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import parse_header

SAMPLE_BYTES: Final = 256 << 10
"""Bytes that the driver fetches of each partition for each batch. The Fetch takes a few 100 us."""


def limited_by_bytes(
    options: SourceOptions,
    cluster: Cluster,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> Offsets:
    """Return the end of a batch of about `maxBytesPerTrigger`, shared equally among partitions with a backlog.

    Each such partition gets at least one record batch, so that none starves.
    """
    assert options.max_bytes is not None
    busy = [partition for partition in end if end[partition] > start.get(partition, 0)]
    result = dict(end)
    left, count = options.max_bytes, len(busy)
    spans = {partition: _batches(options, cluster, partition, start.get(partition, 0)) for partition in busy}
    # Begin with the smallest backlog, so that the other partitions share the bytes that it does not need.
    for partition in sorted(busy, key=lambda each: end[each] - start.get(each, 0)):
        begin = start.get(partition, 0)
        stop, used = _reach(spans[partition], begin, end[partition], left // count)
        result[partition] = stop
        left, count = max(0, left - used), count - 1
    return result


def _batches(
    options: SourceOptions, cluster: Cluster, partition: TopicPartition, offset: int
) -> list[tuple[int, int]]:
    """Return (offset after the batch, bytes) of each record batch in the sample from this offset on."""
    try:
        fetched = cluster.fetch(
            partition, offset, FetchLimits(SAMPLE_BYTES, wait_ms=0), isolation=options.isolation
        )
    except (OffsetOutOfRange, UnknownTopic):
        # The records from `offset` on or the topic were deleted, so there is no sample. The batch then takes the whole
        # backlog. That does no harm, because `StreamReader.partitions` reports the lost records.
        return []
    found, position = [], 0
    while position + HEADER_BYTES <= len(fetched.records):
        header = parse_header(fetched.records, position)
        found.append((header.last_offset + 1, header.total_bytes))
        position += header.total_bytes
    return found


def _reach(batches: list[tuple[int, int]], begin: int, end: int, share_bytes: int) -> tuple[int, int]:
    """Return the end offset of a share of bytes from `begin` on, and the bytes up to it.

    batches: the sample, as from `_batches`; if it is empty, return (end, 0). end: the end of the partition's backlog.
    """
    if not batches:
        return end, 0
    used = 0
    for position, (behind, size) in enumerate(batches):
        if position and used + size > share_bytes:
            return min(end, batches[position - 1][0]), used
        used += size
        if behind >= end:
            return end, used
    # The share is larger than the sample. Assume that records after the sample have the sample's bytes per offset.
    sampled = batches[-1][0] - begin
    more = max(0, share_bytes - used) * sampled // used
    stop = min(end, batches[-1][0] + more)
    return stop, used + (stop - batches[-1][0]) * used // max(1, sampled)
