"""`maxBytesPerTrigger`: offsets for a number of bytes, for any broker.

No request of Kafka's tells how many bytes lie between two offsets. So the driver fetches the beginning of each
partition's backlog, up to SAMPLE_BYTES, and looks at the heads of its batches: what a partition may have is
counted exactly up to there, and beyond by the sample's bytes for each offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.spark.brokers import Cluster, OffsetOutOfRange, UnknownTopic
from kproc.spark.offsets import Offsets, TopicPartition
from kproc.spark.options import SourceOptions
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import parse_header

SAMPLE_BYTES: Final = 256 << 10
"""Of each partition and batch; a share above it is estimated. A few hundred us to fetch."""


def limited_by_bytes(
    options: SourceOptions,
    cluster: Cluster,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> Offsets:
    """The end brought down to about `maxBytesPerTrigger`, shared alike among partitions that have a backlog.

    Whole batches: one of each at least, so that none starves.
    """
    assert options.max_bytes is not None
    busy = [partition for partition in end if end[partition] > start.get(partition, 0)]
    result = dict(end)
    left, count = options.max_bytes, len(busy)
    spans = {partition: _batches(options, cluster, partition, start.get(partition, 0)) for partition in busy}
    # Those with the smallest backlog first: what they leave is for the others.
    for partition in sorted(busy, key=lambda each: end[each] - start.get(each, 0)):
        begin = start.get(partition, 0)
        stop, used = _reach(spans[partition], begin, end[partition], left // count)
        result[partition] = stop
        left, count = max(0, left - used), count - 1
    return result


def _batches(
    options: SourceOptions, cluster: Cluster, partition: TopicPartition, offset: int
) -> list[tuple[int, int]]:
    """(offset behind it, bytes) of the batches at the offset, as far as the sample goes."""
    try:
        fetched = cluster.fetch(
            partition, offset, max_bytes=SAMPLE_BYTES, isolation=options.isolation, wait_ms=0
        )
    except (OffsetOutOfRange, UnknownTopic):
        return []  # Reported where the batch is planned; its end does not matter.
    found, position = [], 0
    while position + HEADER_BYTES <= len(fetched.records):
        header = parse_header(fetched.records, position)
        found.append((header.last_offset + 1, header.total_bytes))
        position += header.total_bytes
    return found


def _reach(batches: list[tuple[int, int]], begin: int, end: int, share_bytes: int) -> tuple[int, int]:
    """How far the share goes from `begin`, and the bytes of that."""
    if not batches:
        return end, 0
    used = 0
    for position, (behind, size) in enumerate(batches):
        if position and used + size > share_bytes:
            return min(end, batches[position - 1][0]), used
        used += size
        if behind >= end:
            return end, used
    # All of the sample fits: the rest is taken to be like it.
    sampled = batches[-1][0] - begin
    more = max(0, share_bytes - used) * sampled // used
    stop = min(end, batches[-1][0] + more)
    return stop, used + (stop - batches[-1][0]) * used // max(1, sampled)
