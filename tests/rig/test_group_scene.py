"""The check of group scenes for records that come twice."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from tests.support.group_scene import find_repetitions

TOPIC = "t"


def event(name: str, timestamp: int, first: int = 0, last: int = 0) -> dict[str, Any]:
    part = {"topic": TOPIC, "partition": 0, "minOffset": first, "maxOffset": last}
    return {"name": name, "timestamp": timestamp, "partitions": [part]}


def assigned(timestamp: int) -> dict[str, Any]:
    return event("partitions_assigned", timestamp)


def consumed(first: int, last: int) -> dict[str, Any]:
    return event("records_consumed", 0, first, last)


def test_record_below_earlier_commit_is_a_repetition() -> None:
    events = [assigned(10), consumed(4, 6)]
    assert find_repetitions(events, TOPIC, [(9, 0, 5)]) == ["partition 0: 5 was due, came 4"]
    assert find_repetitions(events, TOPIC, [(9, 0, 4)]) == []
    assert find_repetitions(events, TOPIC, [(9, 1, 5)]) == [], "of another partition"
    assert find_repetitions(events, "other", [(9, 0, 5)]) == []


def test_record_below_later_commit_is_no_repetition() -> None:
    """A member that was fenced may still have committed after the next one got its partition."""
    assert find_repetitions([assigned(10), consumed(4, 6)], TOPIC, [(10, 0, 5)]) == []


def test_record_twice_in_one_assignment_is_a_repetition() -> None:
    events = [assigned(10), consumed(0, 6), consumed(6, 8)]
    assert find_repetitions(events, TOPIC, []) == ["partition 0: 7 was due, came 6"]


def test_uncommitted_record_comes_again_in_next_assignment() -> None:
    events = [assigned(10), consumed(0, 6), event("partitions_revoked", 11), assigned(12), consumed(0, 8)]
    assert find_repetitions(events, TOPIC, []) == []


def test_record_of_an_ended_assignment_is_no_repetition() -> None:
    events = [assigned(10), event("partitions_revoked", 11), consumed(0, 1)]
    assert find_repetitions(events, TOPIC, [(9, 0, 5)]) == []


def test_late_record_of_a_stopped_member_is_no_repetition() -> None:
    """It begins where the former assignment ended. A record from anywhere else is still found."""
    events = [assigned(10), event("partitions_revoked", 20), assigned(40), consumed(9, 9), consumed(0, 9)]
    commits = [(30, 0, 9)]
    assert find_repetitions(events, TOPIC, commits, was_stopped=True) == []
    assert find_repetitions(events, TOPIC, commits) == ["partition 0: 10 was due, came 0"]
    events[-1] = consumed(1, 9)
    assert find_repetitions(events, TOPIC, commits, was_stopped=True) == ["partition 0: 10 was due, came 1"]
