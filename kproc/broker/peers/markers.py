"""Transaction markers: send the control records that end a transaction to the owners of its partitions.

Each owner gets one call for all of its partitions. An owner that hangs delays only the transactions with partitions
there, and the number of its unanswered markers is bounded. The owner answers when the marker is as durable as acks=all
promises, because only then may the coordinator forget that it owes the marker. A marker that is appended twice does no
harm, so the coordinator sends it again when a partition has moved or its owner has died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.coordinator.rules import Marker
from kproc.broker.peers.forwarding import Answer, OnAnswer, gather, operation
from kproc.broker.request.context import PartitionKey, Services
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition

_OPERATION: Final = "append_marker"

OnCode = Callable[[int], None]
OnCodes = Callable[[list[int]], None]
# (position of a marker in `parts`, its error code)
OnCodeOf = Callable[[int, int], None]
Parts = Sequence[tuple[PartitionKey, Marker]]

# Limit of unanswered markers per owner. 2,000 fit into the ring to the owner, so an owner that hangs costs no memory
# besides its ring.
IN_FLIGHT_MAX: Final = 2_000


class MarkerSender:
    """Sends the markers of one Handler's coordinators to the owners of the partitions. One per Handler."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._in_flight: dict[int, int] = {}  # Unanswered markers by owner, without this Handler.

    def send(self, parts: Parts, on_code: OnCodeOf) -> None:
        """Send markers. `on_code` gets each marker's error code once; see `send_markers` for the codes.

        NOT_LEADER_OR_FOLLOWER also means that the marker was not sent, because its owner has IN_FLIGHT_MAX to answer.
        """
        services = self._services
        by_owner: dict[int, list[int]] = {}
        for at, (key, _) in enumerate(parts):
            partition = services.image.partition(*key)
            owner = services.handler_index if partition is None else partition.owner
            by_owner.setdefault(owner, []).append(at)
        # A marker that cannot be appended now, for example because its log is in transfer, is sent again by the
        # coordinator. So our own partitions need no OwnersRequest, which would wait for the log.
        for at in by_owner.pop(services.handler_index, ()):
            append_marker(services, *parts[at], partial(on_code, at))
        for owner, ats in by_owner.items():
            in_flight = self._in_flight.get(owner, 0)
            sent, left = ats[: IN_FLIGHT_MAX - in_flight], ats[IN_FLIGHT_MAX - in_flight :]
            self._in_flight[owner] = in_flight + len(sent)
            if sent:
                on_codes = partial(self._on_codes, owner, sent, on_code)
                send_markers(services, [parts[at] for at in sent], on_codes)
            # These markers are above the limit of unanswered markers and are not sent. A coordinator that gets this
            # code keeps the marker and sends it again.
            for at in left:
                on_code(at, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _on_codes(self, owner: int, sent: list[int], on_code: OnCodeOf, codes: list[int]) -> None:
        self._in_flight[owner] -= len(sent)
        for at, code in zip(sent, codes, strict=True):
            on_code(at, code)


def send_markers(services: Services, parts: Parts, on_codes: OnCodes) -> None:
    """Append markers to partitions of any Handler. `on_codes` gets the error codes in the order of `parts`, once.

    UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist, or not any more. NOT_LEADER_OR_FOLLOWER: the owner died or
    is unknown, or the partition's coordinator is being loaded, so the marker may be in the log or not. Other codes: the
    append failed.
    """

    def on_done(answers: list[Answer]) -> None:
        on_codes([answer["error_code"] for answer in answers])

    gather(services, _OPERATION, [(*key, marker) for key, marker in parts], on_done)


def append_marker(services: Services, key: PartitionKey, marker: Marker, on_code: OnCode) -> None:
    """Append a marker to a partition of this Handler.

    `on_code` gets NONE when the marker is as durable as acks=all promises, or the error.
    """
    name, index = key
    partition = services.image.partition(name, index)
    if partition is None:
        on_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return
    coordinators = services.owner.coordinators.get(name)
    if coordinators is not None:
        # A coordinator must also apply the marker: transactional offset commits become visible or are discarded.
        try:
            coordinators.append_marker(index, marker, on_code)
        except KafkaError:
            # The coordinator is being loaded, or has another owner. The sender sends the marker again after this code.
            on_code(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    try:
        owned = services.owner.partitions.get(name, partition)
    # The log is in transfer, or its directory is offline. The coordinator sends the marker again.
    except KafkaError as error:
        on_code(error.code)
        return
    _append_to_log(owned, marker, on_code, waits_for_sync=services.config.waits_for_sync)


def _append_to_log(owned: OwnedPartition, marker: Marker, on_code: OnCode, *, waits_for_sync: bool) -> None:
    """Append a marker to the log of a partition that has no coordinator, and respond when it is durable."""
    # KIP-98: from the marker on the records of the transaction are committed or aborted. With acks=all durability the
    # marker stays hidden until its sync, as the records themselves.
    result = owned.log.appender.append_marker(
        marker.producer_id,
        marker.epoch,
        marker.coordinator_epoch,
        is_commit=marker.is_commit,
        transaction_version=marker.transaction_version,
        is_hidden=waits_for_sync,
    )
    if result.error_code:
        on_code(result.error_code)
        return
    owned.after_append()
    if waits_for_sync:
        owned.when_synced(result.last_offset + 1, on_code)
    else:
        on_code(ErrorCode.NONE)


def _answer(_index: int, code: int, _message: str | None) -> Answer:
    return {"error_code": int(code)}


@operation(_OPERATION, _answer, Marker)
def handle_marker(
    services: Services, owned: OwnedPartition, partition: PartitionImage, marker: Marker, on_answer: OnAnswer
) -> None:
    """Append a marker that a transaction coordinator sent, of this or another Handler."""

    def on_code(code: int) -> None:
        on_answer(_answer(partition.index, code, None))

    append_marker(services, owned.key, marker, on_code)
