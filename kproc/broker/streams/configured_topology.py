"""ConfiguredTopology: a topology that `configure_topology` has fitted to the existing topics.

The client usually leaves the numbers of partitions of internal topics to the broker. `configure_topology` computes them
by Kafka's rules, counts the tasks, and finds internal topics that must be created. It is a pure function of the
topology and the existing topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from kproc.broker.streams.topology import (
    StreamsStatus,
    StreamsStatusCode,
    StreamsTopic,
    Subtopology,
    Topology,
    invalid_topology,
)

# A function that returns the number of partitions of a topic, or None if the topic does not exist.
PartitionCounts = Callable[[str], int | None]
# Limit of a group's tasks. The assignor needs about 0.1 s for so many.
TASKS_MAX: Final = 20_000
_NAMES_SHOWN_MAX: Final = 3


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    """A subtopology with its number of tasks. Its internal topics have the numbers of partitions that they need."""

    subtopology: Subtopology
    task_count: int


class ConfiguredTopology(msgspec.Struct, frozen=True, kw_only=True):
    """A topology that was fitted to the existing topics. The application runs no tasks while `problem` is set."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology]  # Subtopology id -> subtopology, sorted by id.
    missing_topics: tuple[StreamsTopic, ...] = ()
    missing_hash: int = 0  # Hash of the missing internal topics; 0 if none is missing.
    problem: StreamsStatus | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None

    @property
    def task_count(self) -> int:
        """The number of tasks that the application runs. 0 while the topology has a problem."""
        return sum(each.task_count for each in self.subtopologies.values()) if self.is_ready else 0


class _NotConfigurable(Exception):
    """The topology does not fit the existing topics. `status`: the code and text that members get in heartbeats."""

    def __init__(self, code: StreamsStatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = StreamsStatus(code, detail)


def configure_topology(topology: Topology, counts: PartitionCounts) -> ConfiguredTopology:
    """Fit a topology to the existing topics. counts: returns a topic's number of partitions, None if it does not exist.

    The result has a `problem` if a change of the topics could solve it, such as a missing topic. Raises
    STREAMS_INVALID_TOPOLOGY for a topology that can never be configured.
    """
    try:
        _reject_missing_sources(topology, counts)
        decided = _decide_partitions(topology, counts)
        configured = {
            each.subtopology_id: _configured(each, decided, counts)
            for each in sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
        }
        _reject_too_many_tasks(configured.values())
        missing = _missing_topics(configured.values(), counts)
    except _NotConfigurable as error:
        return ConfiguredTopology(epoch=topology.epoch, subtopologies={}, problem=error.status)
    problem = None
    if missing:
        detail = f"Internal topics are missing: {_summary([topic.name for topic in missing])}"
        problem = StreamsStatus(StreamsStatusCode.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(
        epoch=topology.epoch,
        subtopologies=configured,
        missing_topics=missing,
        missing_hash=_hash_of(missing) if missing else 0,
        problem=problem,
    )


def _summary(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMES_SHOWN_MAX])
    more = len(names) - _NAMES_SHOWN_MAX
    return f"{shown} and {more} additional topics" if more > 0 else shown


def _reject_missing_sources(topology: Topology, counts: PartitionCounts) -> None:
    missing = {name for each in topology.subtopologies for name in each.source_topics if counts(name) is None}
    if missing:
        raise _NotConfigurable(
            StreamsStatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing."
        )


def _decide_partitions(topology: Topology, counts: PartitionCounts) -> dict[str, int]:
    """Return the number of partitions of each internal topic."""
    decided = _repartition_counts(topology.subtopologies, counts)
    sources = [topic for each in topology.subtopologies for topic in each.repartition_source_topics]
    if any(topic.name not in decided for topic in sources):
        raise invalid_topology(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic."
        )
    is_fixed = {topic.name: topic.partitions != 0 for topic in sources}
    for each in topology.subtopologies:
        try:
            groups = list(each.copartitioned_topics())
        except IndexError as error:
            message = f"A copartition group of subtopology {each.subtopology_id} names a topic that it lacks."
            raise invalid_topology(message) from error
        for group in groups:
            decided.update(_enforce_copartitioning(group, is_fixed, decided, counts))
    for each in topology.subtopologies:
        task_count = _task_count(each, decided, counts)
        decided.update((topic.name, task_count) for topic in each.state_changelog_topics)
    return decided


def _repartition_counts(subtopologies: Collection[Subtopology], counts: PartitionCounts) -> dict[str, int]:
    """Return the number of partitions of each repartition topic.

    This is the client's number, or the largest number among the input topics of the subtopology that writes the topic.
    """
    decided = {
        topic.name: topic.partitions
        for each in subtopologies
        for topic in each.repartition_source_topics
        if topic.partitions
    }
    # A subtopology can read topics that another one writes, so each round determines the sinks that depend on those of
    # the round before. All sinks of a subtopology get one number, so the cost of a round is the number of topics.
    undecided = [each for each in subtopologies if each.repartition_sink_topics]
    while True:
        undecided = [each for each in undecided if not decided.keys() >= set(each.repartition_sink_topics)]
        if not undecided:
            return decided
        before = len(decided)
        for each in undecided:
            known = [counts(name) for name in each.source_topics]
            known += [decided.get(topic.name) for topic in each.repartition_source_topics]
            largest = max((count for count in known if count is not None), default=None)
            if largest is not None:
                for sink in each.repartition_sink_topics:
                    decided.setdefault(sink, largest)
        if len(decided) == before:
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
                "that cannot be resolved."
            )


def _enforce_copartitioning(
    group: frozenset[str], is_fixed: Mapping[str, bool], decided: Mapping[str, int], counts: PartitionCounts
) -> dict[str, int]:
    """Return the number of partitions of each repartition topic in a copartition group.

    Source topics determine the number, or else repartition topics with a fixed number, or else the largest topic. Kafka
    instead compares the fixed numbers of the whole topology, and so rejects two copartition groups with different
    numbers.
    """
    sizes = {name: _count_of(name, decided, counts) for name in group}
    repartitions = {name: size for name, size in sizes.items() if name in is_fixed}
    leading = {name: size for name, size in sizes.items() if name not in is_fixed} or {
        name: size for name, size in repartitions.items() if is_fixed[name]
    }
    if len(set(leading.values())) > 1:
        shown = ", ".join(f"{name}={size}" for name, size in sorted(leading.items()))
        raise _NotConfigurable(
            StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    size = max((leading or repartitions).values(), default=0)
    for name, own in repartitions.items():
        if is_fixed[name] and own != size:
            raise _NotConfigurable(
                StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{own}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{size}] of the source topic.",
            )
    return dict.fromkeys(repartitions, size)


def _count_of(name: str, decided: Mapping[str, int], counts: PartitionCounts) -> int:
    """Return the number of partitions that a topic has. If it does not exist, return the number that it will get."""
    count = counts(name)
    if count is None:
        count = decided.get(name)
    if count is None:
        raise invalid_topology(f"Number of partitions is not set for topic: {name}")
    return count


def _task_count(subtopology: Subtopology, decided: Mapping[str, int], counts: PartitionCounts) -> int:
    sizes = [_count_of(name, decided, counts) for name in subtopology.input_topics()]
    if not sizes:
        raise invalid_topology(f"No source topics found for subtopology {subtopology.subtopology_id}")
    return max(sizes)


def _configured(
    subtopology: Subtopology, decided: Mapping[str, int], counts: PartitionCounts
) -> ConfiguredSubtopology:
    def with_counts(topics: Iterable[StreamsTopic]) -> tuple[StreamsTopic, ...]:
        return tuple(
            msgspec.structs.replace(topic, partitions=topic.partitions or decided[topic.name])
            for topic in topics
        )

    return ConfiguredSubtopology(
        msgspec.structs.replace(
            subtopology,
            state_changelog_topics=with_counts(subtopology.state_changelog_topics),
            repartition_source_topics=with_counts(subtopology.repartition_source_topics),
        ),
        _task_count(subtopology, decided, counts),
    )


def _reject_too_many_tasks(subtopologies: Iterable[ConfiguredSubtopology]) -> None:
    task_count = sum(each.task_count for each in subtopologies)
    if task_count > TASKS_MAX:
        raise invalid_topology(f"The topology has {task_count} tasks. At most {TASKS_MAX} are possible.")


def _hash_of(topics: tuple[StreamsTopic, ...]) -> int:
    """Return a hash of the topics with 63 bits. It is the same in all processes."""
    encoded = msgspec.msgpack.encode(topics)
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "big") >> 1


def _missing_topics(
    subtopologies: Iterable[ConfiguredSubtopology], counts: PartitionCounts
) -> tuple[StreamsTopic, ...]:
    """Return the internal topics that do not exist.

    Raises _NotConfigurable if an internal topic exists with another number of partitions.
    """
    internal = {
        topic.name: topic
        for each in subtopologies
        for topic in (*each.subtopology.repartition_source_topics, *each.subtopology.state_changelog_topics)
    }
    missing = []
    for name, topic in sorted(internal.items()):
        count = counts(name)
        if count is None:
            missing.append(topic)
        elif count != topic.partitions:
            raise _NotConfigurable(
                StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, found "
                f"{count}",
            )
    return tuple(missing)
