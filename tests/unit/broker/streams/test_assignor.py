"""The sticky assignor: every task once, balance of members and processes, stickiness, standby tasks (KIP-1071)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from random import Random

from kproc.broker.streams import assignor
from kproc.broker.streams.assignor import SubtopologyTasks, TaskMember
from kproc.broker.streams.configured_topology import TASKS_MAX
from kproc.broker.streams.tasks import MemberTasks, Task
from tests.support.computations import undivided

Result = Mapping[str, MemberTasks]
assign_sticky = undivided(assignor.assign_sticky)


def stateless(count: int) -> dict[str, SubtopologyTasks]:
    return {"0": SubtopologyTasks(count, is_stateful=False)}


def stateful(*counts: int) -> dict[str, SubtopologyTasks]:
    return {str(number): SubtopologyTasks(count, is_stateful=True) for number, count in enumerate(counts)}


def of(*partitions: int, subtopology: str = "0") -> frozenset[Task]:
    return frozenset((subtopology, partition) for partition in partitions)


def new_members(processes: Mapping[str, int]) -> dict[str, TaskMember]:
    """Return members without tasks: process -> number of members."""
    return {
        f"{process}-{number}": TaskMember(process)
        for process, count in processes.items()
        for number in range(count)
    }


def again(members: Mapping[str, TaskMember], result: Result) -> dict[str, TaskMember]:
    """Return the members with the tasks that they got."""
    none = MemberTasks()
    return {
        member_id: TaskMember(
            member.process_id, result.get(member_id, none).active, result.get(member_id, none).standby
        )
        for member_id, member in members.items()
    }


def sizes(result: Result) -> list[int]:
    return sorted(len(tasks.active) + len(tasks.standby) for tasks in result.values())


def test_new_members_get_ranges_of_a_single_subtopology() -> None:
    result = assign_sticky(new_members({"a": 1, "b": 1, "c": 1}), stateless(6), 0)
    assert [len(tasks.active) for tasks in result.values()] == [2, 2, 2]


def test_members_of_one_process_share_its_load() -> None:
    """Each member of two processes with three and one members gets the same number of tasks."""
    result = assign_sticky(new_members({"a": 3, "b": 1}), stateless(8), 0)
    assert sizes(result) == [2, 2, 2, 2]


def test_more_members_than_tasks() -> None:
    assert sizes(assign_sticky(new_members({"a": 2, "b": 2}), stateless(2), 0)) == [0, 0, 1, 1]


def test_assignment_without_members_is_empty() -> None:
    assert assign_sticky({}, stateful(3), 1) == {}


def test_active_tasks_stay_with_their_owners() -> None:
    members = {"m1": TaskMember("a", of(0, 2)), "m2": TaskMember("b", of(1)), "m3": TaskMember("c")}
    result = assign_sticky(members, stateless(3), 0)
    assert {member_id: tasks.active for member_id, tasks in result.items()} == {
        "m1": of(0),
        "m2": of(1),
        "m3": of(2),
    }


def test_standby_gets_the_task_of_a_member_that_left() -> None:
    members = {
        "m1": TaskMember("a", of(0), of(2)),
        "m2": TaskMember("b", of(1), of(3)),
    }
    result = assign_sticky(members, stateful(4), 0)
    assert (result["m1"].active, result["m2"].active) == (of(0, 2), of(1, 3))


def test_member_whose_state_is_newest_gets_the_task() -> None:
    """A restarted member has a new id, but its disk has the state of its tasks."""
    members = {
        "m1": TaskMember("a", offsets={("0", 0): 10}),
        "m2": TaskMember("b", offsets={("0", 0): 90, ("0", 1): 5}),
    }
    result = assign_sticky(members, stateful(2), 0)
    assert (result["m1"].active, result["m2"].active) == (of(1), of(0))


def test_standby_counts_before_old_state_on_disk() -> None:
    members = {
        "m1": TaskMember("a", offsets={("0", 0): 90}),
        "m2": TaskMember("b", standby=of(0)),
    }
    assert assign_sticky(members, stateful(1), 0)["m2"].active == of(0)


def test_standby_is_in_another_process_than_its_active_task() -> None:
    result = assign_sticky(new_members({"a": 2, "b": 1}), stateful(3), 1)
    for process in ("a", "b"):
        held = [
            task for member_id, tasks in result.items() if member_id[0] == process for task in tasks.active
        ]
        held += [
            task for member_id, tasks in result.items() if member_id[0] == process for task in tasks.standby
        ]
        assert sorted(held) == sorted(of(0, 1, 2))


def test_stateless_tasks_have_no_standby() -> None:
    result = assign_sticky(new_members({"a": 1, "b": 1}), stateless(4), 2)
    assert not any(tasks.standby for tasks in result.values())


def test_one_process_has_no_standby() -> None:
    result = assign_sticky(new_members({"a": 3}), stateful(4), 2)
    assert not any(tasks.standby for tasks in result.values())


def test_new_tasks_leave_the_others_with_their_owners() -> None:
    members = {"m1": TaskMember("a", of(1, 2)), "m2": TaskMember("b", of(0, 3))}
    result = assign_sticky(members, stateless(6), 0)
    assert (result["m1"].active > of(1, 2), result["m2"].active > of(0, 3)) == (True, True)
    # A new member gets them all.
    result = assign_sticky({**members, "m3": TaskMember("c")}, stateless(6), 0)
    assert [result[each].active for each in ("m1", "m2", "m3")] == [of(1, 2), of(0, 3), of(4, 5)]


def test_standby_tasks_are_balanced_with_the_active_ones() -> None:
    result = assign_sticky(new_members({f"p{number}": 1 for number in range(6)}), stateful(3), 1)
    assert sizes(result) == [1] * 6


def test_joining_member_gets_tasks_of_each_subtopology() -> None:
    """It gets an active task of both subtopologies, and a standby task of both."""
    both = of(0, 1) | of(0, 1, subtopology="1")
    for active in (both, frozenset[Task]()):
        result = assign_sticky({"m1": TaskMember("a", active), "m2": TaskMember("b")}, stateful(2, 2), 1)
        for tasks in result.values():
            for kind in (tasks.active, tasks.standby):
                assert sorted(subtopology for subtopology, _ in kind) == ["0", "1"]


def test_standby_task_stays_below_the_share_of_its_process() -> None:
    """The new member has less load, but the other one has the state already."""
    members = {"m1": TaskMember("a", of(0), of(1)), "m2": TaskMember("b", of(1)), "m3": TaskMember("c")}
    result = assign_sticky(members, stateful(2), 1)
    assert result["m1"] == MemberTasks(of(0), of(1))


def random_group(random: Random) -> tuple[dict[str, TaskMember], dict[str, SubtopologyTasks], int]:
    processes = {f"p{number}": random.randint(1, 4) for number in range(random.randint(1, 5))}
    subtopologies = {
        str(number): SubtopologyTasks(random.randint(1, 9), is_stateful=random.random() < 0.6)
        for number in range(random.randint(1, 4))
    }
    return new_members(processes), subtopologies, random.randint(0, 2)


def check_valid(
    members: Mapping[str, TaskMember],
    subtopologies: Mapping[str, SubtopologyTasks],
    standby_count: int,
    result: Result,
) -> None:
    assert result.keys() == members.keys()
    active = Counter(task for tasks in result.values() for task in tasks.active)
    wanted = {
        (each_id, partition) for each_id, each in subtopologies.items() for partition in range(each.count)
    }
    assert active == Counter(wanted)
    process_count = len({member.process_id for member in members.values()})
    standby = Counter(task for tasks in result.values() for task in tasks.standby)
    copies = min(standby_count, process_count - 1)
    assert standby == Counter(
        {task: copies for task in wanted if subtopologies[task[0]].is_stateful and copies}
    )
    held = Counter(
        (members[member_id].process_id, task)
        for member_id, tasks in result.items()
        for task in tasks.active | tasks.standby
    )
    assert not held or max(held.values()) == 1


def test_random_groups_are_valid_and_sticky() -> None:
    """Any group gets every task once. Equal groups get equal results, and a result is stable."""
    for seed in range(60):
        random = Random(seed)
        members, subtopologies, standby_count = random_group(random)
        result: Result = {}
        for _ in range(4):
            result = assign_sticky(members, subtopologies, standby_count)
            check_valid(members, subtopologies, standby_count, result)
            shuffled = dict(random.sample(sorted(members.items()), len(members)))
            assert assign_sticky(shuffled, subtopologies, standby_count) == result
            settled = assign_sticky(again(members, result), subtopologies, standby_count)
            assert {each: tasks.active for each, tasks in settled.items()} == {
                each: tasks.active for each, tasks in result.items()
            }
            members = again(members, result)
            if len(members) > 1 and random.random() < 0.5:
                del members[random.choice(sorted(members))]
            else:
                members[f"new-{random.random()}"] = TaskMember(random.choice(["p0", "p9"]))


def test_active_tasks_are_balanced() -> None:
    """New members of processes of the same size have equally many active tasks, or one more."""
    for seed in range(30):
        random = Random(seed)
        members = new_members(
            {f"p{number}": size for size in [random.randint(1, 3)] for number in range(random.randint(1, 5))}
        )
        result = assign_sticky(members, stateless(random.randint(1, 40)), 0)
        found = sizes(result)
        assert found[-1] - found[0] <= 1


def test_joining_member_takes_only_its_share() -> None:
    for seed in range(30):
        random = Random(seed)
        count, tasks = random.randint(1, 6), random.randint(6, 40)
        members = new_members({f"p{number}": 1 for number in range(count)})
        before = again(members, assign_sticky(members, stateless(tasks), 0))
        result = assign_sticky({**before, "new": TaskMember("q")}, stateless(tasks), 0)
        moved = sum(len(before[each].active - result[each].active) for each in before)
        assert moved == len(result["new"].active) <= -(-tasks // (count + 1))


def test_largest_group_takes_less_than_a_second() -> None:
    members = new_members({f"p{number}": 4 for number in range(50)})
    subtopologies = stateful(*[TASKS_MAX // 10] * 10)
    started = time.process_time()
    result = assign_sticky(members, subtopologies, 1)
    assert time.process_time() - started < 1.5
    assert sum(len(tasks.active) for tasks in result.values()) == TASKS_MAX
