"""One member's steps towards its target tasks: revocation, tasks of others, changes of a task's role (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.streams.reconciliation import (
    Holders,
    StreamsMemberState,
    reconcile,
)
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, Task, TaskSet
from kproc.common.errors import ErrorCode, KafkaError

STABLE, UNREVOKED = MemberPhase.STABLE, MemberPhase.UNREVOKED
UNRELEASED, UNKNOWN = MemberPhase.UNRELEASED, MemberPhase.UNKNOWN
NOBODY = Holders({}, {}, {})


def of(*partitions: int) -> TaskSet:
    return frozenset(("0", partition) for partition in partitions)


def at(epoch: int, *partitions: int) -> dict[Task, int]:
    return dict.fromkeys(of(*partitions), epoch)


def step(
    state: StreamsMemberState,
    target: MemberTasks,
    *,
    target_epoch: int = 9,
    holders: Holders = NOBODY,
    reported: MemberTasks | None = None,
) -> StreamsMemberState:
    return reconcile(
        state,
        target_epoch=target_epoch,
        target=target,
        holders=holders,
        process_id="me",
        reported=reported,
    )


def test_new_member_gets_free_tasks_at_once() -> None:
    target = MemberTasks(of(0, 1), of(2), of(3))
    assert step(StreamsMemberState(0), target) == StreamsMemberState(
        9, 0, STABLE, OwnedTasks(at(9, 0, 1), of(2), of(3))
    )


def test_stable_member_at_the_target_epoch_stays() -> None:
    state = StreamsMemberState(9, 8, STABLE, OwnedTasks(at(7, 0)))
    assert step(state, MemberTasks(of(1))) is state


def test_member_keeps_the_epochs_of_its_tasks() -> None:
    state = StreamsMemberState(7, 6, STABLE, OwnedTasks(at(5, 0)))
    assert step(state, MemberTasks(of(0, 1))).owned == OwnedTasks({**at(5, 0), **at(9, 1)})


def test_member_gives_up_tasks_before_it_gets_others() -> None:
    state = StreamsMemberState(7, 6, STABLE, OwnedTasks(at(7, 0, 1), of(5)))
    target = MemberTasks(of(0, 2), of(6))
    waiting = step(state, target)
    # The epoch stands still, so that commits of the tasks which the member gives up are valid.
    assert waiting == StreamsMemberState(7, 7, UNREVOKED, OwnedTasks(at(7, 0)), OwnedTasks(at(7, 1), of(5)))
    assert step(waiting, target) is waiting
    assert step(waiting, target, reported=MemberTasks(of(0, 1), of(5))) is waiting
    assert step(waiting, target, reported=MemberTasks(of(0), of(5))) is waiting
    assert step(waiting, target, reported=MemberTasks(of(0))) == StreamsMemberState(
        9, 7, STABLE, OwnedTasks({**at(7, 0), **at(9, 2)}, of(6))
    )


def test_confirmed_member_gives_up_more_for_a_later_target() -> None:
    """Its epoch rises by one, because the first revocation is done."""
    waiting = StreamsMemberState(7, 7, UNREVOKED, OwnedTasks(at(7, 0)), OwnedTasks(at(7, 1)))
    assert step(waiting, MemberTasks(), reported=MemberTasks(of(0))) == StreamsMemberState(
        8, 7, UNREVOKED, OwnedTasks(), OwnedTasks(at(7, 0))
    )


def test_member_that_does_not_own_what_it_loses_goes_on_at_once() -> None:
    state = StreamsMemberState(7, 6, STABLE, OwnedTasks(at(7, 0, 1)))
    assert step(state, MemberTasks(of(2)), reported=MemberTasks()).phase is STABLE


@pytest.mark.parametrize("process", ["me", "other"])
def test_active_task_of_another_member_is_not_free(process: str) -> None:
    holders = Holders({("0", 1): process}, {}, {})
    waiting = step(StreamsMemberState(0), MemberTasks(of(0, 1)), holders=holders)
    assert waiting == StreamsMemberState(9, 0, UNRELEASED, OwnedTasks(at(9, 0)))
    assert step(waiting, MemberTasks(of(0, 1)), holders=holders) == waiting
    assert step(waiting, MemberTasks(of(0, 1))).phase is STABLE


@pytest.mark.parametrize(
    ("target", "holders", "is_free"),
    [
        pytest.param(
            MemberTasks(of(0)), Holders({}, {("0", 0): {"me"}}, {}), False, id="active, standby here"
        ),
        pytest.param(
            MemberTasks(of(0)), Holders({}, {}, {("0", 0): {"me"}}), False, id="active, warm-up here"
        ),
        pytest.param(
            MemberTasks(of(0)), Holders({}, {("0", 0): {"x"}}, {}), True, id="active, standby there"
        ),
        pytest.param(
            MemberTasks((), of(0)), Holders({("0", 0): "me"}, {}, {}), False, id="standby, active here"
        ),
        pytest.param(
            MemberTasks((), of(0)), Holders({("0", 0): "x"}, {}, {}), True, id="standby, active there"
        ),
        pytest.param(MemberTasks((), of(0)), Holders({}, {("0", 0): {"me"}}, {}), False, id="standby twice"),
        pytest.param(
            MemberTasks((), (), of(0)), Holders({}, {("0", 0): {"me"}}, {}), False, id="warm-up, standby here"
        ),
        pytest.param(
            MemberTasks((), (), of(0)), Holders({("0", 0): "x"}, {}, {}), True, id="warm-up, active there"
        ),
    ],
)
def test_process_has_a_task_in_one_role(target: MemberTasks, holders: Holders, is_free: bool) -> None:
    target = MemberTasks(frozenset(target.active), frozenset(target.standby), frozenset(target.warmup))
    state = step(StreamsMemberState(0), target, holders=holders)
    assert state.phase is (STABLE if is_free else UNRELEASED)
    assert state.owned.plain == (target if is_free else MemberTasks())


def test_standby_becomes_active_when_the_owner_gave_it_up() -> None:
    state = StreamsMemberState(7, 6, STABLE, OwnedTasks({}, of(0)))
    holders = Holders({("0", 0): "other"}, {("0", 0): {"me"}}, {})
    # Until then the member keeps the copy up to date.
    waiting = step(state, MemberTasks(of(0)), holders=holders)
    assert waiting == StreamsMemberState(9, 7, UNRELEASED, OwnedTasks({}, of(0)))
    released = Holders({}, {("0", 0): {"me"}}, {})
    assert step(waiting, MemberTasks(of(0)), holders=released) == StreamsMemberState(
        9, 9, STABLE, OwnedTasks(at(9, 0))
    )


def test_active_becomes_standby_while_the_member_gives_it_up() -> None:
    state = StreamsMemberState(7, 6, STABLE, OwnedTasks(at(7, 0)))
    target = MemberTasks(frozenset(), of(0))
    holders = Holders({("0", 0): "me"}, {}, {})
    waiting = step(state, target, holders=holders)
    assert waiting == StreamsMemberState(7, 7, UNREVOKED, OwnedTasks({}, of(0)), OwnedTasks(at(7, 0)))
    confirmed = step(
        waiting, target, holders=Holders({("0", 0): "me"}, {("0", 0): {"me"}}, {}), reported=target
    )
    assert confirmed == StreamsMemberState(9, 7, STABLE, OwnedTasks({}, of(0)))


def test_standby_and_warmup_change_at_once() -> None:
    state = StreamsMemberState(7, 6, STABLE, OwnedTasks({}, of(0), of(1)))
    holders = Holders({}, {("0", 0): {"me"}}, {("0", 1): {"me"}})
    assert step(state, MemberTasks(frozenset(), of(1), of(0)), holders=holders) == StreamsMemberState(
        9, 7, STABLE, OwnedTasks({}, of(1), of(0))
    )


def test_state_of_a_newer_kafka_is_fenced_unless_it_owns_nothing() -> None:
    state = StreamsMemberState(7, 6, UNKNOWN, OwnedTasks(at(7, 0)))
    for reported in (None, MemberTasks(of(0))):
        with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.FENCED_MEMBER_EPOCH):
            step(state, MemberTasks(of(1)), reported=reported)
    assert step(state, MemberTasks(of(1)), reported=MemberTasks()).epoch == 9


def test_random_targets_never_give_a_task_to_two_members() -> None:
    """Members of three processes follow random targets: an active task has one owner, a process one role of a task."""
    for seed in range(60):
        random = Random(seed)
        process_of = {f"m{number}": f"p{random.randrange(3)}" for number in range(4)}
        states = {member_id: StreamsMemberState(0) for member_id in process_of}
        owned = {member_id: MemberTasks() for member_id in process_of}
        epoch = 0
        targets: Mapping[str, MemberTasks] = {}
        for _ in range(6):
            epoch += 1
            targets = random_targets(random, process_of)
            for _ in range(random.choice([3, 40])):
                move(random.choice(sorted(process_of)), states, owned, targets, process_of, epoch)
                check_exclusive(owned, process_of)
        for _ in range(12):
            for member_id in process_of:
                move(member_id, states, owned, targets, process_of, epoch)
                check_exclusive(owned, process_of)
        assert owned == targets, seed


def random_targets(random: Random, process_of: Mapping[str, str]) -> dict[str, MemberTasks]:
    roles: dict[str, tuple[set[Task], set[Task], set[Task]]] = {
        each: (set(), set(), set()) for each in process_of
    }
    for task in of(0, 1, 2, 3, 4):
        members = random.sample(sorted(process_of), 3)
        used: set[str] = set()
        for role, member_id in enumerate(members):
            if process_of[member_id] not in used:
                roles[member_id][role].add(task)
                used.add(process_of[member_id])
    return {each: MemberTasks(*map(frozenset, found)) for each, found in roles.items()}


def move(
    member_id: str,
    states: dict[str, StreamsMemberState],
    owned: dict[str, MemberTasks],
    targets: Mapping[str, MemberTasks],
    process_of: Mapping[str, str],
    epoch: int,
) -> None:
    """Let a member send a heartbeat with what it owns, and obey the response."""
    active: dict[Task, str] = {}
    standby: dict[Task, set[str]] = {}
    warmup: dict[Task, set[str]] = {}
    for other_id, state in states.items():
        for tasks in (state.owned, state.pending_revocation):
            active.update(dict.fromkeys(tasks.active, process_of[other_id]))
            for held, found in ((tasks.standby, standby), (tasks.warmup, warmup)):
                for task in held:
                    found.setdefault(task, set()).add(process_of[other_id])
    states[member_id] = reconcile(
        states[member_id],
        target_epoch=epoch,
        target=targets[member_id],
        holders=Holders(active, standby, warmup),
        process_id=process_of[member_id],
        reported=owned[member_id],
    )
    owned[member_id] = states[member_id].owned.plain


def check_exclusive(owned: Mapping[str, MemberTasks], process_of: Mapping[str, str]) -> None:
    active = [task for tasks in owned.values() for task in tasks.active]
    assert len(active) == len(set(active))
    held = [
        (process_of[member_id], task)
        for member_id, tasks in owned.items()
        for role in (tasks.active, tasks.standby, tasks.warmup)
        for task in role
    ]
    assert len(held) == len(set(held))
