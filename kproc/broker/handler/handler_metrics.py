"""HandlerMetrics: stores the counts of a Handler's parts in its metrics row, at each tick and once a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kproc.broker.cluster.internal_topics import (
    GROUP_METADATA_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kproc.broker.metrics.spec import SLOT
from kproc.broker.transaction.state import State
from kproc.common.clock import NS_PER_US

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
    from kproc.broker.handler.client_requests import ClientRequests
    from kproc.broker.handler.partitions import Partitions
    from kproc.broker.handler.processor_peer import ProcessorPeer
    from kproc.broker.produce.append_queue import AppendQueue
    from kproc.broker.produce.produce import RecordRouter
    from kproc.broker.request.context import Services
    from kproc.broker.transaction.coordinator import TransactionCoordinator
    from kproc.broker.transport.agent import AgentId

_STATE_SLOTS: Final = {
    State.EMPTY: SLOT["transactions_empty"],
    State.ONGOING: SLOT["transactions_ongoing"],
    State.PREPARE_COMMIT: SLOT["transactions_prepare_commit"],
    State.PREPARE_ABORT: SLOT["transactions_prepare_abort"],
    State.COMPLETE_COMMIT: SLOT["transactions_complete_commit"],
    State.COMPLETE_ABORT: SLOT["transactions_complete_abort"],
}
# The metrics' slots, in the order of GroupCoordinator.drain_rebalances.
_REBALANCES: Final = (
    SLOT["consumer_group_rebalances"],
    SLOT["share_group_rebalances"],
    SLOT["streams_group_rebalances"],
)
# The metrics' slots, in the order of ShareCounters.drain.
_SHARED: Final = (
    SLOT["share_records_accepted"],
    SLOT["share_records_released"],
    SLOT["share_records_rejected"],
    SLOT["share_locks_expired"],
    SLOT["share_dead_letters"],
    SLOT["share_dead_letters_lost"],
)
# Limit of counted records of a ring, because they are counted ten times a second.
_COUNTED_MAX: Final = 1000


class HandlerMetrics:
    """Adds the counts of a Handler's parts to its metrics row, and sets the gauges. One per Handler."""

    __slots__ = (
        "_clients",
        "_coordinators",
        "_partitions",
        "_produce",
        "_queue",
        "_requests",
        "_services",
        "_values",
    )

    def __init__(
        self,
        values: list[int],
        services: Services,
        *,
        partitions: Partitions,
        requests: ClientRequests,
        produce: RecordRouter,
        queue: AppendQueue,
        coordinators: CoordinatorRuntime,
        clients: Mapping[AgentId, ProcessorPeer],
    ) -> None:
        """Create the object for a Handler's row `values`.

        `clients` has the Processors with a link. The Handler changes it when a link comes or goes.
        """
        self._values, self._services, self._partitions = values, services, partitions
        self._requests, self._produce, self._queue = requests, produce, queue
        self._coordinators, self._clients = coordinators, clients

    def store(self) -> None:
        """Add what was counted since the last tick, and set the gauges."""
        values, partitions = self._values, self._partitions
        self._add(self._services.client_rates.drain_throttles().items())
        queue, group_commit = self._queue, partitions.group_commit
        served, refused = self._requests.count()
        self._services.counts.store()
        values[SLOT["requests"]] += served
        values[SLOT["malformed"]] += refused
        self._add(self._requests.logins.drain_counts())
        values[SLOT["batches_appended"]] += queue.batches
        values[SLOT["bytes_appended"]] += queue.bytes
        values[SLOT["append_calls"]] += queue.append_calls
        values[SLOT["forwarded"]] += self._produce.forwarded
        values[SLOT["syncs"]] += group_commit.rounds
        queue.batches = queue.bytes = queue.append_calls = 0
        self._produce.forwarded = group_commit.rounds = 0
        values[SLOT["ring_records"]] = sum(
            client.outbox.waiting(_COUNTED_MAX) for client in self._clients.values()
        )
        values[SLOT["parked"]] = len(self._services.owner.purgatory)
        values[SLOT["logs_open"]] = len(partitions)

    def store_coordinators(self) -> None:
        """Store the metrics of transactions, groups and share sessions.

        Called once a second, because this visits every coordinator.
        """
        values = self._values
        for slot, value in _transaction_gauges(self._coordinators, self._partitions):
            values[slot] = value
        for groups in self._coordinators.loaded(GROUP_METADATA_TOPIC):
            self._add(zip(_REBALANCES, groups.drain_rebalances(), strict=True))
        values[SLOT["share_state_writes"]] += sum(
            each.drain_writes() for each in self._coordinators.loaded(SHARE_STATE_TOPIC)
        )
        self._store_shares()

    def _store_shares(self) -> None:
        """Store the metrics of share sessions and of our share partitions."""
        values, owner = self._values, self._services.owner
        values[SLOT["share_sessions"]] = len(owner.share_sessions)
        values[SLOT["share_session_partitions"]] = owner.share_sessions.partition_count
        values[SLOT["share_partitions"]] = len(owner.shares)
        values[SLOT["share_ranges_in_flight"]] = owner.shares.run_count
        self._add(zip(_SHARED, owner.shares.counters.drain(), strict=True))

    def _add(self, counts: Iterable[tuple[int, int]]) -> None:
        for slot, count in counts:
            self._values[slot] += count


def _transaction_gauges(
    coordinators: CoordinatorRuntime, partitions: Partitions
) -> Iterator[tuple[int, int]]:
    """Yield (slot, value) of each gauge of transactions."""
    yield SLOT["hanging_transactions"], len(partitions.hanging)
    yield SLOT["late_transaction_partitions"], len({key for key, _ in partitions.hanging})
    ours: list[TransactionCoordinator] = coordinators.loaded(TRANSACTION_STATE_TOPIC)
    for state, slot in _STATE_SLOTS.items():
        yield slot, sum(each.state_counts[state] for each in ours)
    again = [each.count_retries() for each in ours]
    yield SLOT["transactions_unmarked"], sum(unmarked for unmarked, _ in again)
    yield SLOT["transactions_unfinished"], sum(unfinished for _, unfinished in again)
    loads_us = [took_ns // NS_PER_US for took_ns in coordinators.recent_loads(TRANSACTION_STATE_TOPIC)]
    yield SLOT["transaction_loads"], len(loads_us)
    yield SLOT["transaction_load_us"], sum(loads_us)
    yield SLOT["transaction_load_us_max"], max(loads_us, default=0)
