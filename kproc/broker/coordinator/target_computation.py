"""TargetComputation: the computation of a group's next target assignment, divided into steps (KIP-1263).

The target of a group with 20,000 partitions needs more than 0.1 s. Kafka computes it in a thread of its own, and the
members keep their present targets meanwhile. Here the request that finds the target stale runs the first part, which
is enough for most groups, and the coordinator runs the rest in its steps.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

from kproc.broker.coordinator.member_deadlines import TRY_AGAIN_MS, MemberDeadlines
from kproc.broker.coordinator.recorded_states import RecordedState
from kproc.broker.coordinator.steps import Work
from kproc.common.errors import KafkaError

logger = logging.getLogger(__name__)

# Cost of the part that a request runs itself, in units of about 1 us. The targets of 40 groups can become stale in one
# duty cycle.
FIRST_COST: Final = 1_000


class TargetComputation:
    """The unfinished computation of one group's target assignment, if there is one.

    Its last step appends the target.
    """

    __slots__ = ("_deadlines", "_group_id", "_unscheduled", "is_running")

    def __init__(self, group_id: str, deadlines: MemberDeadlines[Any]) -> None:
        self._group_id = group_id
        self._deadlines = deadlines
        self._unscheduled: Work | None = None
        self.is_running = False

    def must_wait(self, last_ms: int, interval_ms: int, *, wall_ms: int, now_ms: int) -> bool:
        """Return True if the last target is more recent than the interval between targets permits (KIP-1263).

        In that case, schedule the next computation. `last_ms` is the wall time in ms of the last target.
        """
        age_ms = wall_ms - last_ms
        # A negative age means that the host's clock was set back. The interval then counts as over.
        if 0 <= age_ms < interval_ms:
            self._deadlines.schedule_assignment(now_ms + interval_ms - age_ms)
            return True
        self._deadlines.discard_assignment()
        return False

    def start(self, work: Work, now_ms: int) -> bool:
        """Run the first part of `work`. Return True if no part is left.

        Raises KafkaError if this first part raises it. A later part logs the error, and the computation starts again
        after a pause.
        """
        cost = 0
        for part in work:
            cost += part
            if cost >= FIRST_COST:
                self.is_running = True
                self._unscheduled = self._rest(work, now_ms)
                return False
        return True

    def pop_unscheduled(self) -> Work | None:
        """Return the rest of the work, which the coordinator adds to its steps.

        Return None if there is none, or if an earlier call has returned it.
        """
        work, self._unscheduled = self._unscheduled, None
        return work

    def _rest(self, work: Work, now_ms: int) -> Work:
        due_ms = now_ms
        try:
            yield from work
        except KafkaError as error:
            logger.warning(
                "group %s: target assignment not written, trying again: %s", self._group_id, error.code.name
            )
            due_ms += TRY_AGAIN_MS
        self.is_running = False
        # The group's epoch may have risen meanwhile. The tick then computes the next target.
        self._deadlines.schedule_assignment(due_ms)


def is_applicable(target_ids: Collection[str], epoch: int, state: RecordedState[Any, Any]) -> bool:
    """Return True if a computed target assignment can become the target of its group.

    target_ids: ids of the members in the computed target. epoch: the group epoch for which it was computed. state: the
    group's present state.

    The group's present target must be of an older epoch. If the group epoch is still `epoch`, each member in the
    computed target must still exist. If the group epoch has risen meanwhile, missing members are allowed, and the next
    computation corrects the target. Otherwise a group whose members join and leave all the time would never get a
    target.
    """
    if state.target_epoch.epoch >= epoch:
        return False  # All members have left, so the group has an empty target.
    # At the same epoch, a missing member was a static one whose replacement did not raise the epoch. The target has
    # nothing for its successor, so the target must be computed again.
    return state.epoch.epoch > epoch or all(member_id in state.members for member_id in target_ids)
