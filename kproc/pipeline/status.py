"""`kproc pipeline status`: compare checkpoints with the logs of the brokers, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kproc.client import ClientError
from kproc.common.lag import lag_between
from kproc.common.reading import EARLIEST, LATEST
from kproc.pipeline.access import Access, access_of
from kproc.pipeline.checkpoint import as_json, local_checkpoint, query_state
from kproc.pipeline.lock import running_pid
from kproc.pipeline.model import Pipeline
from kproc.spark.offsets import TopicPartition


class Extent(NamedTuple):
    """Start and end offset of a partition's log."""

    start: int
    end: int


def pipeline_status(pipeline: Pipeline) -> dict[str, Any]:
    """Return the state of every query from its checkpoint, and the lag of each topic.

    Unreachable brokers and missing topics become warnings. Their lag is None.
    """
    checkpoint = local_checkpoint(pipeline)
    states = [query_state(checkpoint, sink) for sink in pipeline.sinks]
    extents, warnings = _extents(pipeline, {topic for state in states for topic in state.offsets})
    rows = []
    for state in states:
        common = {"query": state.name, "committed_batch": state.committed}
        for topic, offsets in sorted(state.offsets.items()):
            found = extents.get(topic)
            warnings += [] if found is None else _losses(state.name, topic, offsets, found)
            rows.append(
                common
                | {
                    "topic": topic,
                    "partitions": len(offsets),
                    "offset": sum(offsets.values()),
                    "end": None if found is None else sum(extent.end for extent in found.values()),
                    "lag": None if found is None else _lag(offsets, found),
                }
            )
        if not state.offsets:
            rows.append(common | dict.fromkeys(("topic", "partitions", "offset", "end", "lag")))
    return {
        "pipeline": pipeline.name,
        "checkpoint": str(checkpoint),
        "pid": running_pid(checkpoint),
        "queries": [as_json(state) for state in states],
        "rows": rows,
        "warnings": warnings,
    }


def _lag(offsets: dict[int, int], found: dict[int, Extent]) -> int | None:
    """Return the sum of the lags of a topic's partitions, as `lag_between` counts each.

    offsets: committed offsets by partition. found: start and end of the logs by partition.

    Return None if a log ends below a committed offset: it has lost records, and the lag is unknown.
    """
    if any(offset > found[partition].end for partition, offset in offsets.items() if partition in found):
        return None
    return sum(lag_between(offsets.get(partition, 0), extent.end) for partition, extent in found.items())


def _losses(query: str, topic: str, offsets: dict[int, int], found: dict[int, Extent]) -> Iterator[str]:
    """Yield a line for each partition that does not exist any more, or whose committed offset is outside its log.

    Outside means below the log's start or above its end.
    """
    for partition, offset in sorted(offsets.items()):
        extent = found.get(partition)
        where = f"{query}: {topic} partition {partition}"
        if extent is None:
            yield f"{where} is in the checkpoint, but the topic has no such partition"
        elif offset > extent.end:
            yield (
                f"{where}: {offset} is committed, and the log ends at {extent.end}: records were lost, or the topic "
                "was created again; kproc pipeline reset starts from the beginning"
            )
        elif offset < extent.start:
            yield f"{where}: {extent.start - offset} records were deleted before they were read"


def _extents(pipeline: Pipeline, topics: set[str]) -> tuple[dict[str, dict[int, Extent]], list[str]]:
    """Return start and end of the logs by topic and partition, and a warning for each broker that does not respond."""
    extents: dict[str, dict[int, Extent]] = {}
    warnings = []
    by_access: dict[Access, set[str]] = {}
    for source in pipeline.sources:
        if source.is_topic:
            named = set(source.values) & topics if source.kind in ("topic", "topics") else topics
            by_access.setdefault(access_of(source), set()).update(named)
    for access, wanted in by_access.items():
        if not wanted:
            continue
        try:
            found = log_extents(access, sorted(wanted))
        except ClientError as error:
            warnings.append(str(error))
            continue
        extents |= found
        warnings += [f"{access} has no topic {topic}" for topic in sorted(wanted - found.keys())]
    return extents, warnings


def log_extents(access: Access, topics: list[str]) -> dict[str, dict[int, Extent]]:
    """Return start and end of each partition of the topics that exist. Raise ClientError if no broker responds."""
    cluster = access.cluster()
    try:
        found = cluster.metadata(topics)
        wanted = [TopicPartition(name, number) for name, topic in found.items() for number in topic.leaders]
        starts = cluster.list_offsets(dict.fromkeys(wanted, EARLIEST))
        answer: dict[str, dict[int, Extent]] = {}
        for partition, end in cluster.list_offsets(dict.fromkeys(wanted, LATEST)).items():
            answer.setdefault(partition.topic, {})[partition.partition] = Extent(starts[partition], end)
        return answer
    finally:
        cluster.close()
