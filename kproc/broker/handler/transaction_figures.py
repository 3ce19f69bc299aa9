"""The metrics of transactions in a Handler's row. The Handler stores them once a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
from kproc.broker.handler.partitions import Partitions
from kproc.broker.metrics.spec import SLOT
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.state import State
from kproc.common.clock import NS_PER_US

_STATE_SLOTS: Final = {
    State.EMPTY: SLOT["transactions_empty"],
    State.ONGOING: SLOT["transactions_ongoing"],
    State.PREPARE_COMMIT: SLOT["transactions_prepare_commit"],
    State.PREPARE_ABORT: SLOT["transactions_prepare_abort"],
    State.COMPLETE_COMMIT: SLOT["transactions_complete_commit"],
    State.COMPLETE_ABORT: SLOT["transactions_complete_abort"],
}


def store_transaction_figures(
    values: list[int], coordinators: CoordinatorRuntime, partitions: Partitions
) -> None:
    """Set the gauges of transactions in a Handler's row."""
    for slot, value in _figures(coordinators, partitions):
        values[slot] = value


def _figures(coordinators: CoordinatorRuntime, partitions: Partitions) -> Iterator[tuple[int, int]]:
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
