"""Markers: what ends a transaction in each of its partitions, brought to their owners.

One call for each owner, whatever the number of its partitions. A marker is answered when it is as durable as acks=all
promises: only then may the coordinator forget that it owes it. One that is sent twice does no harm, so whoever hears
that a partition has moved or that its owner died sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import astuple

from kproc.api.context import PartitionKey, Services
from kproc.api.forwarding import Answer, OnAnswer, gather, operation
from kproc.cluster.image import PartitionImage
from kproc.coordinator.marker import Marker
from kproc.errors import ErrorCode, KafkaError

_OPERATION: Final = "append_marker"

OnCode = Callable[[int], None]
OnCodes = Callable[[list[int]], None]


def send_markers(services: Services, parts: Sequence[tuple[PartitionKey, Marker]], on_codes: OnCodes) -> None:
    """End transactions in partitions, wherever they are; `on_codes` gets the outcomes in that order, once.

    UNKNOWN_TOPIC_OR_PARTITION: there is no such partition (any more). NOT_LEADER_OR_FOLLOWER: its owner died or is not
    known, so it may have the marker or not.
    """

    def on_done(answers: list[Answer]) -> None:
        on_codes([answer["error_code"] for answer in answers])

    gather(services, _OPERATION, [(*key, astuple(marker)) for key, marker in parts], on_done)


def append_marker(services: Services, key: PartitionKey, marker: Marker, on_code: OnCode) -> None:
    """End a transaction in a partition of ours."""
    name, index = key
    partition = services.image.partition(name, index)
    if partition is None:
        on_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return
    try:
        coordinators = services.coordinators.get(name)
        if coordinators is not None:  # It has offsets of its own to show or to drop.
            coordinators.append_marker(index, marker, on_code)
            return
    except KafkaError:
        on_code(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    try:
        owned = services.partitions.get(name, partition)
    except KafkaError as error:
        on_code(error.code)
        return
    result = owned.log.append_marker(
        marker.producer_id,
        marker.epoch,
        marker.coordinator_epoch,
        is_commit=marker.is_commit,
        transaction_version=marker.transaction_version,
    )
    if result.error_code:
        on_code(result.error_code)
        return
    owned.after_append()  # Readers of what is committed wait for it, too.
    if services.waits_for_sync:
        owned.when_synced(result.last_offset + 1, on_code)
    else:
        on_code(ErrorCode.NONE)


def _answer(_index: int, code: int, _message: str | None) -> Answer:
    return {"error_code": int(code)}


@operation(_OPERATION, _answer)
def serve(services: Services, name: str, partition: PartitionImage, marker: Any, on_answer: OnAnswer) -> None:
    """The same, by whichever Handler it is asked."""

    def on_code(code: int) -> None:
        on_answer(_answer(partition.index, code, None))

    append_marker(services, (name, partition.index), Marker(*marker), on_code)
