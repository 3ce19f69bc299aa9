"""Topologies that no group accepts, and the comparison of topologies (KIP-1071)."""

from __future__ import annotations

import pytest

from kproc.broker.streams.topology import (
    SUBTOPOLOGY_ID_BYTES_MAX,
    TOPICS_MAX,
    StreamsTopic,
    Subtopology,
    Topology,
    reject_invalid_topology,
)
from kproc.common.errors import ErrorCode, KafkaError


def subtopology(each_id: str, *sources: str, **fields: object) -> Subtopology:
    return Subtopology(subtopology_id=each_id, source_topics=sources, **fields)


def rejected(text: str) -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(
        KafkaError, match=text, check=lambda error: error.code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    )


def test_too_many_topics_are_rejected() -> None:
    sources = tuple(f"t{number}" for number in range(TOPICS_MAX + 1))
    with rejected(f"At most {TOPICS_MAX} are possible"):
        reject_invalid_topology(Topology(1, (subtopology("0", *sources),)))


def test_changelog_topic_with_a_number_of_partitions_is_rejected() -> None:
    topology = Topology(1, (subtopology("0", "a", state_changelog_topics=(StreamsTopic("c", 3),)),))
    with rejected("Changelog topic c must have an undefined partition count, but it is set to 3"):
        reject_invalid_topology(topology)


def test_negative_number_of_partitions_is_rejected() -> None:
    """It would make room in the sum of all tasks for another subtopology's tasks."""
    topology = Topology(1, (subtopology("0", "a", repartition_source_topics=(StreamsTopic("r", -1),)),))
    with rejected("Repartition topic r has the partition count -1. It must be at least 0."):
        reject_invalid_topology(topology)


def test_subtopology_id_that_is_used_twice_is_rejected() -> None:
    with rejected("more than one subtopology 0"):
        reject_invalid_topology(Topology(1, (subtopology("0", "a"), subtopology("0", "b"))))


def test_long_subtopology_id_is_rejected() -> None:
    reject_invalid_topology(Topology(1, (subtopology("x" * SUBTOPOLOGY_ID_BYTES_MAX, "a"),)))
    with rejected("A subtopology id has 250 bytes. At most 249 are possible."):
        reject_invalid_topology(Topology(1, (subtopology("x" * 248 + "ü", "a"),)))


def test_order_of_subtopologies_does_not_matter() -> None:
    first, second = subtopology("0", "a"), subtopology("1", "b")
    assert Topology(1, (first, second)).is_same(Topology(1, (second, first)))
    assert not Topology(1, (first, second)).is_same(Topology(2, (first, second)))
    assert not Topology(1, (first,)).is_same(Topology(1, (first, second)))
