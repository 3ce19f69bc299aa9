"""Topology: the subtopologies of an application, as its clients send them.

A subtopology reads source topics and repartition topics, and keeps its state in changelog topics. Repartition and
changelog topics are internal topics of the application. configured_topology.py fits a topology to the existing topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from sys import getsizeof
from typing import Final

import msgspec

from kproc.common.errors import ErrorCode, KafkaError

# Limit of the topics of a topology. A chain of repartition topics needs as many rounds in `configure_topology` as it is
# long.
TOPICS_MAX: Final = 1_000
# Limit of a subtopology's id, the same as for topic names. Kafka Streams uses numbers. Each record with tasks repeats
# the ids.
SUBTOPOLOGY_ID_BYTES_MAX: Final = 249
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


def reject_invalid_topology(topology: Topology) -> None:
    """Raise STREAMS_INVALID_TOPOLOGY for a topology that no group accepts, whatever topics exist."""
    ids = Counter(each.subtopology_id for each in topology.subtopologies)
    if twice := [each_id for each_id, count in ids.items() if count > 1]:
        raise invalid_topology(f"The topology has more than one subtopology {twice[0]}.")
    if (longest := max((len(each_id.encode()) for each_id in ids), default=0)) > SUBTOPOLOGY_ID_BYTES_MAX:
        raise invalid_topology(
            f"A subtopology id has {longest} bytes. At most {SUBTOPOLOGY_ID_BYTES_MAX} are possible."
        )
    for topic in (topic for each in topology.subtopologies for topic in each.state_changelog_topics):
        if topic.partitions:
            raise invalid_topology(
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                f"{topic.partitions}."
            )
    for topic in (topic for each in topology.subtopologies for topic in each.repartition_source_topics):
        if topic.partitions < 0:
            raise invalid_topology(
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
        raise invalid_topology(f"The topology has {count} topics. At most {TOPICS_MAX} are possible.")


def _by_id(topology: Topology) -> dict[str, Subtopology]:
    return {each.subtopology_id: each for each in topology.subtopologies}


def invalid_topology(message: str) -> KafkaError:
    """Return the error for a topology that can never be configured."""
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
