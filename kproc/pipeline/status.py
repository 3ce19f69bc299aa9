"""`status`: checkpoints beside the broker's ends, without Spark."""

from __future__ import annotations

from typing import Any

from kproc.client import ClientError
from kproc.pipeline.checkpoint import as_json, local_checkpoint, query_state
from kproc.pipeline.lock import running_pid
from kproc.pipeline.model import Pipeline
from kproc.spark.brokers import LATEST, Cluster, Connecting
from kproc.spark.offsets import TopicPartition

QUICK = Connecting(client_id="kproc-pipeline", connect_ms=2_000, request_ms=5_000, retry_ms=2_000)


def pipeline_status(pipeline: Pipeline) -> dict[str, Any]:
    """Per query what its checkpoint says, and per topic how much of it the broker has beyond that."""
    checkpoint = local_checkpoint(pipeline)
    states = [query_state(checkpoint, sink) for sink in pipeline.sinks]
    ends, warnings = _ends(pipeline, {topic for state in states for topic in state.offsets})
    rows = []
    for state in states:
        common = {"query": state.name, "committed_batch": state.committed}
        for topic, offsets in sorted(state.offsets.items()):
            end = ends.get(topic)
            lag = None
            if end is not None:
                lag = sum(max(0, last - offsets.get(partition, 0)) for partition, last in end.items())
            rows.append(
                common
                | {
                    "topic": topic,
                    "partitions": len(offsets),
                    "offset": sum(offsets.values()),
                    "end": None if end is None else sum(end.values()),
                    "lag": lag,
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


def _ends(pipeline: Pipeline, topics: set[str]) -> tuple[dict[str, dict[int, int]], list[str]]:
    """Log ends by topic and partition, as far as brokers answer, and a line for each that does not."""
    ends: dict[str, dict[int, int]] = {}
    warnings = []
    by_bootstrap: dict[str, set[str]] = {}
    for source in pipeline.sources:
        if source.is_topic:
            named = set(source.values) & topics if source.kind in ("topic", "topics") else topics
            by_bootstrap.setdefault(source.bootstrap, set()).update(named)
    for bootstrap, wanted in by_bootstrap.items():
        if not wanted:
            continue
        try:
            ends |= log_ends(bootstrap, sorted(wanted))
        except ClientError as error:
            warnings.append(str(error))
    return ends, warnings


def log_ends(bootstrap: str, topics: list[str]) -> dict[str, dict[int, int]]:
    """The end of each partition of the topics that exist."""
    cluster = Cluster(bootstrap, QUICK)
    try:
        found = cluster.metadata(topics)
        wanted = {
            TopicPartition(name, number): LATEST for name, topic in found.items() for number in topic.leaders
        }
        answer: dict[str, dict[int, int]] = {}
        for partition, offset in cluster.list_offsets(wanted).items():
            answer.setdefault(partition.topic, {})[partition.partition] = offset
        return answer
    finally:
        cluster.close()
