"""Topologies and existing topics: numbers of tasks and partitions, missing topics, copartitioning (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kproc.broker.streams.configured_topology import TASKS_MAX, ConfiguredTopology, configure_topology
from kproc.broker.streams.topology import (
    CopartitionGroup,
    StreamsStatusCode,
    StreamsTopic,
    Subtopology,
    Topology,
)
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.bytecodes import count_bytecodes


def configured(topics: Mapping[str, int], *subtopologies: Subtopology) -> ConfiguredTopology:
    return configure_topology(Topology(1, subtopologies), topics.get)


def subtopology(each_id: str, *sources: str, **fields: object) -> Subtopology:
    return Subtopology(subtopology_id=each_id, source_topics=sources, **fields)


def missing(result: ConfiguredTopology) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in result.missing_topics}


def rejected(text: str) -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(
        KafkaError, match=text, check=lambda error: error.code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    )


def test_subtopology_has_tasks_for_its_largest_topic() -> None:
    result = configured({"a": 3, "b": 5}, subtopology("0", "a", "b"))
    assert result.is_ready
    assert {each_id: each.task_count for each_id, each in result.subtopologies.items()} == {"0": 5}


def test_missing_source_topics() -> None:
    result = configured({"a": 3}, subtopology("0", "a", "x", "w"), subtopology("1", "z", "y"))
    assert (result.problem and result.problem.code) == StreamsStatusCode.MISSING_SOURCE_TOPICS
    assert result.problem.detail == "Source topics w, x, y and 1 additional topics are missing."
    assert not result.subtopologies


def test_changelog_topic_has_as_many_partitions_as_tasks() -> None:
    result = configured({"a": 3}, subtopology("0", "a", state_changelog_topics=(StreamsTopic("log"),)))
    assert missing(result) == {"log": 3}
    assert result.problem.code == StreamsStatusCode.MISSING_INTERNAL_TOPICS
    assert result.problem.detail == "Internal topics are missing: log"
    assert configured(
        {"a": 3, "log": 3}, subtopology("0", "a", state_changelog_topics=(StreamsTopic("log"),))
    ).is_ready


def test_source_topic_that_is_also_a_changelog_is_not_created() -> None:
    """Kafka Streams restores a table from its source topic if it is configured so."""
    changelogs = (StreamsTopic("a"), StreamsTopic("log"))
    assert configured({"a": 3}, subtopology("0", "a", state_changelog_topics=changelogs[:1])).is_ready
    assert missing(configured({"a": 3}, subtopology("0", "a", state_changelog_topics=changelogs))) == {"log": 3}


def test_existing_internal_topic_with_other_partition_count() -> None:
    result = configured(
        {"a": 3, "log": 2}, subtopology("0", "a", state_changelog_topics=(StreamsTopic("log"),))
    )
    assert result.problem.code == StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert result.problem.detail == (
        "Existing topic log has different number of partitions: expected 3, found 2"
    )


def test_repartition_topics_follow_the_topics_before_them() -> None:
    """The chain is in reverse order, so that each round decides one topic."""
    result = configured(
        {"a": 4, "b": 2},
        subtopology("2", repartition_source_topics=(StreamsTopic("r2"),)),
        subtopology(
            "1", "b", repartition_source_topics=(StreamsTopic("r1"),), repartition_sink_topics=("r2",)
        ),
        subtopology("0", "a", repartition_sink_topics=("r1",)),
    )
    assert missing(result) in ({"r1": 4, "r2": 2}, {"r1": 4, "r2": 4})
    assert list(result.subtopologies) == ["0", "1", "2"]


def test_repartition_topic_of_two_writers_follows_the_first() -> None:
    """As in Kafka's RepartitionTopics."""
    result = configured(
        {"a": 4, "b": 2},
        subtopology("0", "a", repartition_sink_topics=("r",)),
        subtopology("1", "b", repartition_sink_topics=("r",)),
        subtopology("2", repartition_source_topics=(StreamsTopic("r"),)),
    )
    assert missing(result) == {"r": 4}


def test_long_chain_beside_many_sinks_costs_little() -> None:
    """A request of 30 KB took a second: each round visited each pair of a source and a sink of a subtopology."""
    chain = [
        subtopology(
            f"c{number}",
            repartition_source_topics=(StreamsTopic(f"c{number}"),),
            repartition_sink_topics=(f"c{number + 1}",),
        )
        for number in reversed(range(60))
    ]
    names = tuple(f"never-{number}" for number in range(100))
    wide = subtopology(
        "wide", repartition_source_topics=tuple(map(StreamsTopic, names)), repartition_sink_topics=names
    )
    first = subtopology("first", "a", repartition_sink_topics=("c0",))

    def configure() -> None:
        with rejected("loops in the topology"):
            configured({"a": 1}, wide, *chain, first)

    assert count_bytecodes(configure, unless_in=__file__) < 1_000_000


def test_fixed_repartition_topic_keeps_its_number() -> None:
    result = configured(
        {"a": 4},
        subtopology("0", "a", repartition_sink_topics=("r",)),
        subtopology("1", repartition_source_topics=(StreamsTopic("r", 7),)),
    )
    assert missing(result) == {"r": 7}
    assert result.subtopologies["1"].task_count == 7


@pytest.mark.parametrize(
    ("subtopologies", "text"),
    [
        pytest.param(
            (
                subtopology(
                    "0", repartition_source_topics=(StreamsTopic("r"),), repartition_sink_topics=("r",)
                ),
            ),
            "loops in the topology",
            id="loop",
        ),
        pytest.param(
            (subtopology("0", "a", repartition_source_topics=(StreamsTopic("r"),)),),
            "never used as a sink",
            id="no sink",
        ),
        pytest.param((subtopology("0"),), "No source topics found for subtopology 0", id="no sources"),
        pytest.param(
            (subtopology("0", "a", copartition_groups=(CopartitionGroup((5,)),)),),
            "names a topic that it lacks",
            id="index beyond the list",
        ),
        pytest.param(
            (subtopology("0", "a", copartition_groups=(CopartitionGroup((-1,)),)),),
            "names a topic that it lacks",
            id="negative index",
        ),
    ],
)
def test_topology_that_can_never_be_configured(subtopologies: tuple[Subtopology, ...], text: str) -> None:
    with rejected(text):
        configured({"a": 1}, *subtopologies)


def copartitioned(topics: Mapping[str, int], *repartitions: StreamsTopic) -> ConfiguredTopology:
    """Return a topology in which `a`, `b` and the repartition topics must have the same number of partitions."""
    return configured(
        topics,
        subtopology("0", "a", repartition_sink_topics=tuple(topic.name for topic in repartitions)),
        subtopology(
            "1",
            "b",
            repartition_source_topics=repartitions,
            copartition_groups=(CopartitionGroup((0,), (), tuple(range(len(repartitions)))),),
        ),
    )


def test_copartitioned_repartition_topic_follows_its_source() -> None:
    assert missing(copartitioned({"a": 8, "b": 3}, StreamsTopic("r"))) == {"r": 3}


def test_copartitioned_fixed_repartition_topic_that_differs() -> None:
    result = copartitioned({"a": 8, "b": 3}, StreamsTopic("r", 5))
    assert result.problem.code == StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert result.problem.detail == (
        "Number of partitions [5] of repartition topic [r] doesn't match number of partitions [3] of the source topic."
    )


def test_copartitioned_source_topics_that_differ() -> None:
    result = configured(
        {"a": 4, "b": 3}, subtopology("0", "b", "a", copartition_groups=(CopartitionGroup((0, 1)),))
    )
    assert result.problem.code == StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert result.problem.detail == "Following topics do not have the same number of partitions: [{a=4, b=3}]"


@pytest.mark.parametrize(
    ("repartitions", "expected"),
    [
        pytest.param((StreamsTopic("r"), StreamsTopic("q")), {"r": 8, "q": 8}, id="flexible: the largest"),
        pytest.param((StreamsTopic("r", 5), StreamsTopic("q")), {"r": 5, "q": 5}, id="fixed one decides"),
    ],
)
def test_copartitioned_repartition_topics(
    repartitions: tuple[StreamsTopic, ...], expected: Mapping[str, int]
) -> None:
    result = configured(
        {"a": 8, "b": 3},
        subtopology("0", "a", repartition_sink_topics=("r",)),
        subtopology("1", "b", repartition_sink_topics=("q",)),
        subtopology(
            "2",
            repartition_source_topics=repartitions,
            copartition_groups=(CopartitionGroup((), (), (0, 1)),),
        ),
    )
    assert missing(result) == expected


def test_too_many_tasks_are_rejected() -> None:
    with rejected(f"At most {TASKS_MAX} are possible"):
        configured({"a": TASKS_MAX}, subtopology("0", "a"), subtopology("1", "a"))
