"""Topology: the subtopologies of an application, and `configure_topology`, which fits them to the existing topics.

A subtopology reads source topics and repartition topics, and keeps its state in changelog topics. Repartition and
changelog topics are internal topics of the application. The client usually leaves their numbers of partitions to the
broker. `configure_topology` computes these numbers by Kafka's rules, counts the tasks, and finds internal topics that
must be created. It is a pure function of the topology and the existing topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from hashlib import blake2b
from sys import getsizeof
from typing import Final

import msgspec

from kproc.common.errors import ErrorCode, KafkaError

# A function that returns the number of partitions of a topic, or None if the topic does not exist.
PartitionCounts = Callable[[str], int | None]

# Limits of a group's tasks and topics. The assignor needs about 0.1 s for TASKS_MAX tasks, and `_repartition_counts`
# needs as many rounds as a chain of repartition topics is long.
TASKS_MAX: Final = 20_000
TOPICS_MAX: Final = 1_000
# Limit of a subtopology's id, the same as for topic names. Kafka Streams uses numbers. Each record with tasks repeats
# the ids.
SUBTOPOLOGY_ID_BYTES_MAX: Final = 249
_NAMES_SHOWN_MAX: Final = 3
# The memory of parts of a topology besides their strings: the objects, their copies in the ConfiguredTopology, and
# their places in tuples and in the tables of names. Measured with topologies of many such parts.
_SUBTOPOLOGY_BYTES: Final = 300
_INTERNAL_TOPIC_BYTES: Final = 200
_NAME_BYTES: Final = 120
_COPARTITION_GROUP_BYTES: Final = 120
_INDEX_BYTES: Final = 40
_PAIR_BYTES: Final = 80


class StreamsStatusCode(IntEnum):
    """The codes of a status in a StreamsGroupHeartbeat response."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class StreamsStatus(msgspec.Struct, frozen=True, array_like=True):
    """A status of a group: its code, and a text for the client's log."""

    code: int
    detail: str


class KeyValue(msgspec.Struct, frozen=True, order=True):
    """A config of a topic or an assignment, or a tag of a client."""

    key: str
    value: str


def memory_of_pairs(pairs: Collection[KeyValue]) -> int:
    """Return the bytes of memory that pairs take."""
    # A topology can have 36,000 pairs: 10 ms in this form, and 70 ms with a function call for each.
    texts = [text for pair in pairs for text in (pair.key, pair.value)]
    return sum(map(getsizeof, texts)) + _PAIR_BYTES * len(pairs)


class StreamsTopic(msgspec.Struct, frozen=True):
    """A repartition or changelog topic.

    If `partitions` is 0, the broker decides. If `replication_factor` is 0, the broker's default applies.
    """

    name: str
    partitions: int = 0
    replication_factor: int = 0
    topic_configs: tuple[KeyValue, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the topic takes in a group's topology."""
        return getsizeof(self.name) + _INTERNAL_TOPIC_BYTES + memory_of_pairs(self.topic_configs)


class CopartitionGroup(msgspec.Struct, frozen=True):
    """Topics of a subtopology that need equal numbers of partitions.

    They are given as indexes into the subtopology's lists of source topics, source expressions and repartition topics.
    """

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


class Subtopology(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a topology whose topics are read by the same tasks. Its fields are named as in Kafka's messages."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[StreamsTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[StreamsTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the subtopology takes in a group's topology."""
        names = (*self.source_topics, *self.source_topic_regex, *self.repartition_sink_topics)
        topics = (*self.state_changelog_topics, *self.repartition_source_topics)
        indexes = sum(
            len(each.source_topics) + len(each.source_topic_regex) + len(each.repartition_source_topics)
            for each in self.copartition_groups
        )
        return (
            _SUBTOPOLOGY_BYTES
            + getsizeof(self.subtopology_id)
            + sum(map(getsizeof, names))
            + _NAME_BYTES * len(names)
            + sum(topic.memory_bytes for topic in topics)
            + _COPARTITION_GROUP_BYTES * len(self.copartition_groups)
            + _INDEX_BYTES * indexes
        )

    def input_topics(self) -> Iterator[str]:
        """Yield the names of the topics that the tasks of the subtopology read."""
        yield from self.source_topics
        yield from (topic.name for topic in self.repartition_source_topics)

    def copartitioned_topics(self) -> Iterator[frozenset[str]]:
        """Yield the names of each copartition group. Raises IndexError for an index outside its list."""
        for group in self.copartition_groups:
            # Reject negative indexes, which Python would count from the end of the list.
            if min((*group.source_topics, *group.repartition_source_topics), default=0) < 0:
                raise IndexError("negative index")
            sources = (self.source_topics[index] for index in group.source_topics)
            repartitions = (
                self.repartition_source_topics[index].name for index in group.repartition_source_topics
            )
            yield frozenset((*sources, *repartitions))


class Topology(msgspec.Struct, frozen=True, dict=True):
    """The topology of an application. `epoch` is the version that the client gives the topology."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the topology takes in a group, with its copy in the ConfiguredTopology."""
        return sum(each.memory_bytes for each in self.subtopologies)

    @cached_property
    def topic_names(self) -> frozenset[str]:
        """The names of all topics that the tasks read, and of their changelog topics."""
        changelogs = (topic.name for each in self.subtopologies for topic in each.state_changelog_topics)
        return frozenset(self.subtopology_of_topic).union(changelogs)

    @cached_property
    def subtopology_of_topic(self) -> Mapping[str, str]:
        """Name of an input topic -> the id of the subtopology that reads it, the last one if several do."""
        return {name: each.subtopology_id for each in self.subtopologies for name in each.input_topics()}

    def is_same(self, other: Topology) -> bool:
        """Return True if `other` has the same epoch and the same subtopologies, in any order."""
        return self.epoch == other.epoch and _by_id(self) == _by_id(other)


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    """A subtopology for whose internal topics the numbers of partitions are computed."""

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
    """The topology does not fit the existing topics. Its `status` is for the members."""

    def __init__(self, code: StreamsStatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = StreamsStatus(code, detail)


def configure_topology(topology: Topology, counts: PartitionCounts) -> ConfiguredTopology:
    """Fit a topology to the existing topics.

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


def reject_invalid_topology(topology: Topology) -> None:
    """Raise STREAMS_INVALID_TOPOLOGY for a topology that no group accepts, whatever topics exist."""
    ids = Counter(each.subtopology_id for each in topology.subtopologies)
    if twice := [each_id for each_id, count in ids.items() if count > 1]:
        raise _invalid(f"The topology has more than one subtopology {twice[0]}.")
    if (longest := max((len(each_id.encode()) for each_id in ids), default=0)) > SUBTOPOLOGY_ID_BYTES_MAX:
        raise _invalid(
            f"A subtopology id has {longest} bytes. At most {SUBTOPOLOGY_ID_BYTES_MAX} are possible."
        )
    for topic in (topic for each in topology.subtopologies for topic in each.state_changelog_topics):
        if topic.partitions:
            raise _invalid(
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                f"{topic.partitions}."
            )
    for topic in (topic for each in topology.subtopologies for topic in each.repartition_source_topics):
        if topic.partitions < 0:
            raise _invalid(
                f"Repartition topic {topic.name} has the partition count {topic.partitions}. It must be at least 0."
            )
    count = sum(
        len(each.source_topics)
        + len(each.repartition_sink_topics)
        + len(each.repartition_source_topics)
        + len(each.state_changelog_topics)
        for each in topology.subtopologies
    )
    if count > TOPICS_MAX:
        raise _invalid(f"The topology has {count} topics. At most {TOPICS_MAX} are possible.")


def _by_id(topology: Topology) -> dict[str, Subtopology]:
    return {each.subtopology_id: each for each in topology.subtopologies}


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


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
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic."
        )
    is_fixed = {topic.name: topic.partitions != 0 for topic in sources}
    for each in topology.subtopologies:
        try:
            groups = list(each.copartitioned_topics())
        except IndexError as error:
            message = f"A copartition group of subtopology {each.subtopology_id} names a topic that it lacks."
            raise _invalid(message) from error
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
            raise _invalid(
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
    """Return the number of partitions that a topic has, or that it shall get."""
    count = counts(name)
    if count is None:
        count = decided.get(name)
    if count is None:
        raise _invalid(f"Number of partitions is not set for topic: {name}")
    return count


def _task_count(subtopology: Subtopology, decided: Mapping[str, int], counts: PartitionCounts) -> int:
    sizes = [_count_of(name, decided, counts) for name in subtopology.input_topics()]
    if not sizes:
        raise _invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
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
        raise _invalid(f"The topology has {task_count} tasks. At most {TASKS_MAX} are possible.")


def _hash_of(topics: tuple[StreamsTopic, ...]) -> int:
    """Return a hash of 63 bits, which is the same in all processes."""
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
