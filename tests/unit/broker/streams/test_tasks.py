"""Sets of tasks of Kafka Streams: a task counts in its role only."""

from __future__ import annotations

from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, partitions_by_subtopology

ACTIVE = MemberTasks(active=frozenset({("0", 1), ("0", 2)}))
STANDBY = MemberTasks(standby=frozenset({("0", 1)}))


def test_same_task_in_another_role_is_another_one() -> None:
    both = MemberTasks(active=ACTIVE.active, standby=STANDBY.standby)
    assert ACTIVE.is_part_of(both)
    assert STANDBY.is_part_of(both)
    assert not STANDBY.is_part_of(ACTIVE)
    assert not STANDBY.has_any_of(ACTIVE)
    assert STANDBY.has_any_of(both)
    assert MemberTasks().is_part_of(STANDBY)
    assert not MemberTasks().has_any_of(both)
    assert [each.is_empty for each in (MemberTasks(), STANDBY)] == [True, False]


def test_owned_tasks_are_compared_without_their_epochs() -> None:
    assert OwnedTasks(active={("0", 1): 5, ("0", 2): 7}).plain == ACTIVE


def test_partitions_of_subtopologies_are_sorted() -> None:
    assert partitions_by_subtopology([("1", 4), ("0", 9), ("1", 0)]) == {"0": [9], "1": [0, 4]}
