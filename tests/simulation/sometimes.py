"""Sometimes: rare states that a run over many seeds must have reached.

A simulation that never gets into a state proves nothing about it. Each state here is noticed from outside, by a
function of the broker that is called in it. `python -m tests.simulation --sometimes all` counts the seeds that
reached each state, and fails if no seed did.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.coordinator.target_computation import TargetComputation
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.handler import checkpoint
from kproc.broker.handler.compaction_calls import CompactionCalls
from kproc.broker.handler.migrating_connections import MigratingConnections
from kproc.broker.handler.partitions import Partitions
from kproc.broker.produce.append_queue import AppendQueue
from kproc.broker.produce.verification import TransactionalProduce
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.storage.log_append import LogAppender
from kproc.broker.storage.log_durability import LogDurability
from kproc.broker.storage.log_end import LogEndFinder
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.supervisor.supervisor_operations import SupervisorOperations
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.entry import Entry
from kproc.broker.transaction.marker_delivery import MarkerDelivery
from tests.support.memory_disk import MemoryDisk


class RareState(NamedTuple):
    """A state, and the call in which it is noticed."""

    name: str
    owner: Any
    function: str
    # (result, arguments): whether the call shows the state. `is_before`: looked at before the call, without a result.
    is_reached: Callable[..., bool] = lambda *_, **__: True
    is_before: bool = False


def _failed_beside_unsynced(_result: object, appender: Any, *_: Any, **__: Any) -> bool:
    state = appender._state
    return bool(state.recovery_point < state.end_offset)


def _swapped_while_parked(_result: object, calls: Any, body: Any) -> bool:
    return bool(calls._partitions.purgatory.is_watched((body.topic, body.partition)))


def _moved_while_verified(_result: object, produce: Any, moved: Any) -> bool:
    return any(each.owned.key in moved for each in produce._waiting.values())


STATES: Final = (
    RareState(
        "recovery cut a torn tail", LogEndFinder, "find_end", lambda _, finder, __: finder.truncated_bytes > 0
    ),
    RareState("the metadata was compacted", MetadataLog, "_write_snapshot"),
    RareState(
        "power was lost with data that no sync had confirmed",
        MemoryDisk,
        "crash",
        lambda _, disk, *__, **___: bool(list(disk.unsynced())),
        is_before=True,
    ),
    RareState(
        "a write failed while another waited for its sync", LogAppender, "_undo", _failed_beside_unsynced
    ),
    RareState("a sync failed", LogDurability, "sync_failed"),
    RareState("a segment was full", LogState, "roll"),
    RareState("compaction swapped while a fetch was parked", CompactionCalls, "_swap", _swapped_while_parked),
    RareState(
        "an append woke a parked fetch",
        Purgatory,
        "check",
        lambda _, purgatory, key: purgatory.is_watched(key),
        is_before=True,
    ),
    RareState("a batch was sent twice", ProducerTable, "admit", lambda result, *_, **__: result is not None),
    RareState(
        "a checkpoint of another topic was ignored",
        checkpoint,
        "confirms_log_start",
        lambda result, *_, **__: not result,
    ),
    RareState(
        "a connection moved with requests in work",
        MigratingConnections,
        "move_in",
        lambda _, moving, peer, connection_id, sequences: bool(sequences),
    ),
    RareState("a partition was transferred to another Handler", Partitions, "import_state"),
    RareState(
        "a partition moved while a batch waited for its coordinator",
        TransactionalProduce,
        "on_moved",
        _moved_while_verified,
        is_before=True,
    ),
    RareState("decisions were loaded or synced again", MarkerDelivery, "start_after_sync"),
    RareState(
        "a target assignment was computed in several steps",
        TargetComputation,
        "pop_unscheduled",
        lambda result, *_: result is not None,
    ),
    RareState(
        "a slow Fetch was woken by an event", Purgatory, "_try_again", lambda _, __, operation: operation.is_slow
    ),
    RareState("produced batches waited until their records could be read", AppendQueue, "resume"),
    RareState("every role followed a jump of time", SupervisorOperations, "_follow_cleaner"),
    RareState("a transaction was fenced", TransactionCoordinator, "fence"),
    RareState("an add waited for the write of another add", TransactionCoordinator, "_confirm_added"),
    RareState("a marker was refused and sent again", Entry, "retry_marker"),
    RareState(
        "offsets of an open transaction were loaded",
        GroupCoordinator,
        "replay",
        lambda _, group, key, value, offset, producer: producer is not None,
    ),
)
# The states that sixty seeds reach; the others take hundreds or thousands.
FREQUENT: Final = (
    "power was lost with data that no sync had confirmed",
    "a segment was full",
    "an append woke a parked fetch",
    "a batch was sent twice",
    "a partition was transferred to another Handler",
    "a transaction was fenced",
)


def watch(states: Iterable[RareState] = STATES) -> Counter[str]:
    """Count how often each state is reached from now on, in this Python process."""
    reached: Counter[str] = Counter()
    for state in states:
        setattr(state.owner, state.function, _counting(state, reached))
    return reached


def _counting(state: RareState, reached: Counter[str]) -> Callable[..., Any]:
    original = getattr(state.owner, state.function)

    @functools.wraps(original)
    def counting(*arguments: Any, **more: Any) -> Any:
        if state.is_before:
            reached[state.name] += state.is_reached(None, *arguments, **more)
            return original(*arguments, **more)
        result = original(*arguments, **more)
        reached[state.name] += state.is_reached(result, *arguments, **more)
        return result

    return counting


def never_reached(seeds_of: Counter[str], which: str) -> list[str]:
    """Return the states, all or the frequent ones, that no seed has reached."""
    wanted = FREQUENT if which == "frequent" else [each.name for each in STATES]
    return sorted(name for name in wanted if not seeds_of[name])
