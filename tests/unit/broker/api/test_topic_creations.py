"""Internal topics of streams groups are not requested again while they are created, nor just after a failure."""

from __future__ import annotations

from kproc.broker.api.topic_creations import BACKOFF_NS, FAILURES_MAX, GROUPS_MAX, TopicCreations
from kproc.broker.streams.topology import StreamsTopic

A, B = StreamsTopic("a"), StreamsTopic("b")


def test_topic_in_creation_is_not_requested_again() -> None:
    creations = TopicCreations()
    assert creations.start([A], 0) == [A]
    assert creations.start([A, B], 0) == [B]
    creations.finish([A], {}, 0)
    assert creations.start([A, B], 0) == [A]


def test_failed_topic_is_requested_again_after_the_backoff() -> None:
    creations = TopicCreations()
    creations.start([A, B], 0)
    creations.finish([A, B], {"a": "no space"}, 10)
    end = 10 + BACKOFF_NS
    assert creations.start([A, B], end - 1) == [B]
    assert creations.failures_of([A, B], end - 1) == {"a": "no space"}
    assert creations.failures_of([A, B], end) == {}
    assert creations.start([A], end) == [A]


def test_second_failure_begins_another_backoff() -> None:
    creations = TopicCreations()
    creations.finish([A, B], {"a": "1", "b": "1"}, 0)
    creations.finish([A], {"a": "2"}, 5)
    assert creations.failures_of([A, B], BACKOFF_NS) == {"a": "2"}


def test_long_reason_is_cut() -> None:
    creations = TopicCreations()
    creations.finish([A], {"a": "x" * 10_000}, 0)
    assert creations.failures_of([A], 0) == {"a": "x" * 249}


def test_missing_topics_are_remembered_by_group_and_hash() -> None:
    creations = TopicCreations()
    assert creations.known_hash("g") == 0
    assert creations.remember("g", 7, (A, B)) == (A, B)
    assert creations.known_hash("g") == 7
    assert creations.remember("g", 7, ()) == (A, B)
    assert creations.remember("g", 8, (A,)) == (A,)
    # Another heartbeat has changed them meanwhile, so the next one gets them again.
    assert creations.remember("g", 7, ()) == ()
    assert creations.known_hash("g") == 0
    creations.remember("g", 8, (A,))
    assert creations.remember("g", 0, ()) == ()
    assert creations.known_hash("g") == 0


def test_group_that_waited_longest_is_forgotten_first() -> None:
    creations = TopicCreations()
    for number in range(GROUPS_MAX):
        creations.remember(str(number), 1, (A,))
    creations.remember("0", 1, ())
    creations.remember("one more", 1, (A,))
    assert [creations.known_hash(each) for each in ("0", "1", "2")] == [1, 0, 1]


def test_oldest_failure_is_discarded_first() -> None:
    creations = TopicCreations()
    creations.finish([], {str(number): "" for number in range(FAILURES_MAX + 1)}, 0)
    assert creations.start([StreamsTopic("0"), StreamsTopic("1")], 0) == [StreamsTopic("0")]
