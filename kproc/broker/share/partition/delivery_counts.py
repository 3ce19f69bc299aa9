"""Counts of the records that a share group has in flight, for the own operation `share-records`.

The owner of a topic's partition counts the records of its window. If it does not have the share partition in memory, no
member holds a record, and the counts come from the state at the share coordinator. A count only reads: it does not load
the share partition, and fences no owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import CountShareRecords
from kproc.broker.peers.coordinator_call import Item
from kproc.broker.peers.forwarding import Answer, OnAnswer, gather, operation
from kproc.broker.peers.share_call import READ_SUMMARY
from kproc.broker.share.state.messages import (
    PersistedState,
    ReadSummary,
    RecordState,
    SharePartitionKey,
    StateBatch,
    state_key,
)
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import Services

_OPERATION: Final = "share_records"
_FINISHED: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
# A window with more runs is counted in a duty cycle of its own: 40,000 of them take about 10 ms.
_RUNS_AT_ONCE: Final = 100


def count_share_records(
    services: Services, request: CountShareRecords, on_answer: Callable[[OwnAnswer], None]
) -> None:
    """Count the records of all requested partitions, and answer with a row for each.

    A partition has no row if it does not exist, or if its owner or its share coordinator is unavailable.
    """
    parts = []
    for name, index in request.partitions:
        topic = services.image.topic(name)
        if topic is not None:
            parts.append((name, index, SharePartitionKey(request.group, topic.topic_id, index)))

    def on_counted(answers: list[Answer]) -> None:
        rows: list[dict[str, Any]] = [
            {"topic": name, "partition": index, **answer["counts"]}
            for (name, index, _), answer in zip(parts, answers, strict=True)
            if not answer["error_code"]
        ]
        on_answer(OwnAnswer(result={"partitions": rows}))

    gather(services, _OPERATION, parts, on_counted)


def _failed(index: int, code: int, _message: str | None) -> Answer:
    return {"partition_index": index, "error_code": int(code), "counts": {}}


@operation(_OPERATION, _failed, SharePartitionKey)
def count_partition(
    services: Services,
    _owned: OwnedPartition,
    partition: PartitionImage,
    key: SharePartitionKey,
    on_answer: OnAnswer,
) -> None:
    """Answer with the counts of a share partition whose log this Handler owns."""
    found = services.owner.shares.find(key)
    if found is None or found.records is None or found.records.run_count <= _RUNS_AT_ONCE:
        _count(services, partition.index, key, on_answer)
    else:
        services.owner.purgatory.defer(partial(_count, services, partition.index, key, on_answer))


def _count(services: Services, index: int, key: SharePartitionKey, on_answer: OnAnswer) -> None:
    def on_states(outcomes: list[PersistedState | int]) -> None:
        (state,) = outcomes
        if isinstance(state, int):
            on_answer(_failed(index, state, None))
        else:
            on_answer(_counted(index, state.batches))

    found = services.owner.shares.find(key)
    if found is not None and found.records is not None:
        on_answer(_counted(index, found.records.states()))
    else:
        item = Item(state_key(*key), ReadSummary(has_batches=True))
        READ_SUMMARY.send_for_handler(services, [item], on_states)


def _counted(index: int, batches: Iterable[StateBatch]) -> Answer:
    return {"partition_index": index, "error_code": int(ErrorCode.NONE), "counts": count_records(batches)}


def count_records(batches: Iterable[StateBatch]) -> dict[str, Any]:
    """Return the numbers of records in flight, of acquired ones, and of those with each delivery count.

    A record is in flight from its first delivery until it is accepted or archived.
    """
    acquired = 0
    by_count: Counter[int] = Counter()
    for batch in batches:
        if batch.state in _FINISHED:
            continue
        size = batch.last - batch.first + 1
        by_count[batch.delivery_count] += size
        if batch.state == RecordState.ACQUIRED:
            acquired += size
    deliveries = [[count, by_count[count]] for count in sorted(by_count)]
    return {"in_flight": by_count.total(), "acquired": acquired, "deliveries": deliveries}
