"""StateCalls: reads and writes of the states of share partitions at the share coordinators, with retries.

A coordinator is unavailable for a short time when its Handler dies or when its partition is transferred. Writes are
idempotent, so a repeated write does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.peers.coordinator_call import Item, ItemOperation
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.request.context import Services
    from kproc.broker.share.partition.share_partition import SharePartition

# A call is repeated after these errors, because they pass.
RETRIED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_PAUSE_NS: Final = 50 * NS_PER_MS
# Retries end after this time. It is shorter than the clients' request timeout of 30 s, which also covers the wait for
# the disk.
RETRIES_NS: Final = 10_000 * NS_PER_MS

# Limit of the calls of `send_in_turn` in one duty cycle. A call, with the load of the state that it reads, takes 50 us.
CALLS_AT_ONCE: Final = 200

OnOutcome = Callable[["SharePartition", Any], None]


class StateCall(NamedTuple):
    """One call: the operation and its arguments for a share partition, and the callback for its outcome."""

    partition: SharePartition
    operation: ItemOperation[Any, Any, Any]
    arguments: Any
    on_outcome: OnOutcome
    give_up_ns: int


class StateCalls:
    """The calls of one Handler for its share partitions."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.is_stopping = False
        self._started_count = 0  # Calls that `send_in_turn` has sent in this duty cycle.
        self._queued: deque[StateCall] = deque()

    def send_in_turn(
        self,
        operation: ItemOperation[Any, Any, Any],
        partition: SharePartition,
        arguments: Any,
        on_outcome: OnOutcome,
    ) -> None:
        """Send an operation now, or in a later duty cycle if this one has sent CALLS_AT_ONCE of them.

        A ShareFetch can add 2,000 share partitions, whose states take 0.1 s to read.
        """
        if not self._started_count:
            self._services.owner.purgatory.defer(self._send_queued)
        give_up_ns = self._services.clock.now_ns() + RETRIES_NS
        call = StateCall(partition, operation, arguments, on_outcome, give_up_ns)
        if self._started_count < CALLS_AT_ONCE:
            self._started_count += 1
            self._send(operation, [call])
        else:
            self._queued.append(call)

    def _send_queued(self) -> None:
        calls = [self._queued.popleft() for _ in range(min(CALLS_AT_ONCE, len(self._queued)))]
        self._started_count = len(calls)
        if calls:
            self._services.owner.purgatory.defer(self._send_queued)
        for call in calls:
            if not call.partition.is_dropped:
                self._send(call.operation, [call])

    def send(
        self,
        operation: ItemOperation[Any, Any, Any],
        parts: Sequence[tuple[SharePartition, Any]],
        on_outcome: OnOutcome,
    ) -> None:
        """Send an operation for several share partitions, with one call to each coordinator's Handler.

        `on_outcome` is called for each of them with the operation's result or an error code, unless the share
        partition is dropped first.
        """
        give_up_ns = self._services.clock.now_ns() + RETRIES_NS
        self._send(
            operation,
            [
                StateCall(partition, operation, arguments, on_outcome, give_up_ns)
                for partition, arguments in parts
            ],
        )

    def send_after_pause(
        self,
        operation: ItemOperation[Any, Any, Any],
        partition: SharePartition,
        arguments: Any,
        on_outcome: OnOutcome,
    ) -> None:
        """Send an operation after the pause between two attempts."""
        now_ns = self._services.clock.now_ns()
        call = StateCall(partition, operation, arguments, on_outcome, now_ns + RETRIES_NS)
        self._pause(call, now_ns)

    def drain(self) -> None:
        """Repeat no call any more, because this Handler stops.

        The coordinators stop, too. Clients wait for the outcomes, and the stop waits for the clients' responses.
        """
        self.is_stopping = True

    def _send(self, operation: ItemOperation[Any, Any, Any], calls: Sequence[StateCall]) -> None:
        items = [Item(call.partition.name, call.arguments) for call in calls]
        operation.send_for_handler(self._services, items, partial(self._on_outcomes, calls))

    def _on_outcomes(self, calls: Sequence[StateCall], outcomes: Sequence[Any]) -> None:
        now_ns = self._services.clock.now_ns()
        for call, outcome in zip(calls, outcomes, strict=True):
            if call.partition.is_dropped:
                continue
            # The coordinator's Handler has died, is loading, or has passed the partition on. The pause lets
            # it finish, and a retry finds the new coordinator through the image.
            is_passing = isinstance(outcome, int) and outcome in RETRIED
            if is_passing and not self.is_stopping and now_ns < call.give_up_ns:
                self._pause(call, now_ns)
            else:
                call.on_outcome(call.partition, outcome)

    def _pause(self, call: StateCall, now_ns: int) -> None:
        self._services.owner.purgatory.call_at(now_ns + _PAUSE_NS, partial(self._resume, call))

    def _resume(self, call: StateCall) -> None:
        """Send a call again, because its pause has ended."""
        if not call.partition.is_dropped:
            self._send(call.operation, [call])
