"""The reconciliation of one member of a streams group (KIP-1071): from its present tasks to its target, step by step.

A task is active in one process at any time, and a process has a task in one role only, because its state directory has
one lock. A member therefore first gives up the tasks that its target lacks, and confirms that in a heartbeat. Then the
member gets the tasks that other members have given up.

    STABLE at the target's epoch
      | new target
      v                     the member still owns          others still own
    lose tasks? --yes-------> UNREVOKED --confirmed--> gain? --------------> UNRELEASED --released--> STABLE
      | no                                              ^                       |
      +-------------------------------------------------+                       +-- each heartbeat adds free tasks

A member need not give up a task whose role changes: active becomes standby and a standby becomes warm-up, or the
reverse, at once. A standby or warm-up becomes active when the former owner of the task has given it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kproc.broker.coordinator.member_phase import MemberPhase, ReconciledState
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, Task, TaskSet
from kproc.common.errors import ErrorCode, KafkaError


class StreamsMemberState(ReconciledState, frozen=True):
    """A member's epochs, and the tasks that it owns or must give up."""

    owned: OwnedTasks = OwnedTasks()
    pending_revocation: OwnedTasks = OwnedTasks()


class Holders(NamedTuple):
    """The ids of the processes that have each task, by role. A process has a task until it has given it up."""

    active: Mapping[Task, str]
    standby: Mapping[Task, set[str]]
    warmup: Mapping[Task, set[str]]


def reconcile(
    state: StreamsMemberState,
    *,
    target_epoch: int,
    target: MemberTasks,
    holders: Holders,
    process_id: str,
    reported: MemberTasks | None,
) -> StreamsMemberState:
    """Return the next state of a member; `state` itself if nothing changes.

    `reported` are the tasks that the member reports as owned, or None if its heartbeat does not have them. Raises
    FENCED_MEMBER_EPOCH for a state that a newer Kafka has written, unless the member owns nothing.
    """
    epoch = state.epoch
    match state.phase:
        case MemberPhase.STABLE if epoch == target_epoch:
            return state
        case MemberPhase.UNREVOKED:
            # Wait: the member has not confirmed the revocation. If its tasks were given away now, two
            # processes would run them.
            if _can_own(reported, state.pending_revocation):
                return state
            epoch += 1
        case MemberPhase.UNKNOWN:
            if reported is None or not reported.is_empty:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                )
            epoch = target_epoch
    return _next_state(
        state, epoch, target_epoch, target, _Blocked(state.owned, holders, process_id), reported
    )


class _Blocked:
    """The tasks that the member cannot get yet, because other members still have them."""

    def __init__(self, owned: OwnedTasks, holders: Holders, process_id: str) -> None:
        self._owned = owned
        self._holders = holders
        self._process_id = process_id

    def _is_in_process(self, task: Task, held: Mapping[Task, set[str]], own: TaskSet) -> bool:
        """Return True if another member of the member's process has the task as standby, or as warm-up.

        held: the processes that have each task in this role. own: the tasks that the member itself has in it.
        """
        return self._process_id in held.get(task, ()) and task not in own

    def active(self, task: Task) -> bool:
        return (
            task in self._holders.active
            or self._is_in_process(task, self._holders.standby, self._owned.standby)
            or self._is_in_process(task, self._holders.warmup, self._owned.warmup)
        )

    def standby(self, task: Task) -> bool:
        is_active_here = self._holders.active.get(task) == self._process_id and task not in self._owned.active
        return (
            is_active_here
            or self._process_id in self._holders.standby.get(task, ())
            or self._is_in_process(task, self._holders.warmup, self._owned.warmup)
        )

    def warmup(self, task: Task) -> bool:
        return (
            self._holders.active.get(task) == self._process_id
            or self._is_in_process(task, self._holders.standby, self._owned.standby)
            or self._process_id in self._holders.warmup.get(task, ())
        )


def _next_state(
    state: StreamsMemberState,
    epoch: int,
    target_epoch: int,
    target: MemberTasks,
    blocked: _Blocked,
    reported: MemberTasks | None,
) -> StreamsMemberState:
    owned = state.owned
    kept = {task: since for task, since in owned.active.items() if task in target.active}
    lost = {task: since for task, since in owned.active.items() if task not in target.active}
    standby, warmup = owned.standby & target.standby, owned.warmup & target.warmup
    missing = target.active - kept.keys(), target.standby - standby, target.warmup - warmup
    gained = {task for task in missing[0] if not blocked.active(task)}
    new_standby = {task for task in missing[1] if not blocked.standby(task)}
    new_warmup = {task for task in missing[2] if not blocked.warmup(task)}
    is_unreleased = len(gained) + len(new_standby) + len(new_warmup) < sum(map(len, missing))
    # A task that changes its role inside the member is not revoked.
    standby |= new_standby & (owned.active.keys() | owned.warmup)
    warmup |= new_warmup & owned.standby
    revoked = OwnedTasks(
        lost,
        owned.standby - standby - warmup - target.active,
        owned.warmup - warmup - standby - target.active,
    )
    must_revoke = revoked != OwnedTasks() and _can_own(reported, revoked)
    # A standby or warm-up that will become active keeps its role until the member gets the active task.
    promoted = frozenset() if must_revoke else frozenset(gained)
    standby |= (owned.standby & target.active) - promoted
    warmup |= (owned.warmup & target.active) - promoted
    if must_revoke:
        return state.changed(
            epoch=epoch,
            phase=MemberPhase.UNREVOKED,
            owned=OwnedTasks(kept, standby, warmup),
            pending_revocation=revoked,
        )
    owned = OwnedTasks(
        {**kept, **dict.fromkeys(gained, target_epoch)}, standby | new_standby, warmup | new_warmup
    )
    phase = MemberPhase.UNRELEASED if is_unreleased else MemberPhase.STABLE
    return state.changed(epoch=target_epoch, phase=phase, owned=owned, pending_revocation=OwnedTasks())


def _can_own(reported: MemberTasks | None, tasks: OwnedTasks) -> bool:
    """Return True if the member reports one of the tasks as owned, or does not report its tasks."""
    return reported is None or reported.has_any_of(tasks.plain)
