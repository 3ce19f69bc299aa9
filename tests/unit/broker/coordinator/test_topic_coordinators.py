"""A group's partition is the one that Kafka's own code computes (values of Java's String.hashCode)."""

from __future__ import annotations

from kproc.broker.coordinator.topic_coordinators import partition_for
from tests.support.cases import in_one_test


@in_one_test(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(2**31)),  # The one number without an opposite counts as 0.
        ("\N{GRINNING FACE}", 1772899),  # Two UTF-16 units.
    ],
)
def test_the_partition_is_javas_hash(group_id: str, java_hash: int) -> None:
    wanted = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_for(group_id, 50) == wanted
