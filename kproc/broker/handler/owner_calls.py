"""OwnerCalls: handles the calls of other Handlers, the controller and the cleaner to the owner of partitions.

The table of peers/registered_calls.py has the calls that Handlers make for their clients.

A call from a sender with newer metadata than ours waits until ours are as new. If the sender ends meanwhile, the call
is discarded, as if it had never been read. The sender's clients have lost their connections and may have retried, and
the old call must not undo the retry.

Calls of one sender with a version of the metadata are handled in their order, because a sender's version never goes
back and those that wait are called back in order. Calls without a version can overtake them, and depend on no earlier
call: CLIENT_BYTES adds to a sum, READ_WATCH reads lines of requests that were answered, RELOAD_FAULTS reads
files, and the two calls of a compaction name the log by its topic id and the segments by their inodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

import kproc.broker.share.partition.owner  # noqa: F401 - it registers the calls of share sessions
from kproc.broker.calls.call_links import CallHandlers, IsGone, Payload
from kproc.broker.calls.calls import Call, ForOwner, FromImage, Lost, OnResult
from kproc.broker.calls.cleaner_calls import (
    ENFORCE_RETENTION,
    PREPARE_COMPACTION,
    SWAP_SEGMENTS,
    Deleted,
    PartitionRequest,
)
from kproc.broker.handler import handler_figures
from kproc.broker.handler.compaction_calls import CompactionCalls
from kproc.broker.handler.partition_claims import TAKE_PARTITIONS
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.handler.partitions import Partitions
from kproc.broker.observe.broker_figures import FIGURES
from kproc.broker.observe.topic_traffic import TOPIC_TRAFFIC
from kproc.broker.peers.registered_calls import REGISTERED_CALLS
from kproc.broker.produce.forward import PRODUCE, PRODUCE_RECORDS
from kproc.broker.produce.produce import RecordRouter
from kproc.broker.request.client_rates import CLIENT_BYTES
from kproc.broker.request.context import PartitionMoving, Services
from kproc.common.errors import KafkaError

logger = logging.getLogger(__name__)

# Calls that change a log's files or its owner. If one fails half way, only a successor of this role can repair that, so
# an exception ends the role.
_UNCONTAINED: Final = frozenset(
    call.name for call in (PREPARE_COMPACTION, SWAP_SEGMENTS, TAKE_PARTITIONS, ENFORCE_RETENTION)
)


class OwnerCalls:
    """The calls that one Handler handles, by operation."""

    __slots__ = ("_by_op", "_containment", "_services", "_transfers")

    def __init__(
        self,
        services: Services,
        *,
        produce: RecordRouter,
        compaction: CompactionCalls,
    ) -> None:
        partitions, transfers = services.owner.partitions, services.owner.transfers
        self._services = services
        self._containment = services.containment
        self._transfers = transfers
        served = CallHandlers(services.containment)
        self._by_op = served.by_op
        for each in REGISTERED_CALLS.values():
            served.add(each.call, partial(each.handle, services))
        served.add_with_payload(PRODUCE, produce.handle_forwarded)
        served.add_with_payload(PRODUCE_RECORDS, produce.handle_returned)
        served.add(TAKE_PARTITIONS, transfers.handle_claim)
        served.add(CLIENT_BYTES, services.client_rates.handle_charges)
        served.add(FIGURES, partial(handler_figures.handle_call, services))
        served.add(TOPIC_TRAFFIC, partial(handler_figures.handle_traffic, services))
        served.add(PREPARE_COMPACTION, compaction.prepare)
        served.add(SWAP_SEGMENTS, compaction.swap)
        served.add(ENFORCE_RETENTION, partial(enforce_retention, partitions, transfers))

    def handle_raw(
        self, op: str, raw: msgspec.Raw, payload: Payload, on_reply: OnResult[Any], is_gone: IsGone
    ) -> None:
        """Handle a call from a link, with an encoded body."""
        try:
            body = self._by_op[op].decode(raw)
        except Exception as error:
            # Do not reply Lost to a claim of partitions. The Handler that claims them would believe that this one died,
            # and open a log that has a writer.
            if op in _UNCONTAINED:
                raise
            self._fail(op, error, on_reply)
        else:
            self.handle(op, body, payload, on_reply, is_gone)

    def handle(self, op: str, body: Any, payload: Payload, on_reply: OnResult[Any], is_gone: IsGone) -> None:
        """Handle a call, now or when our metadata are as new as the sender's.

        An exception in work for a client ends only that client's request: the calling Handler gets Lost, as if we had
        died.
        """
        try:
            version = body.image if isinstance(body, FromImage) else 0
            if version > self._services.image.version:
                # Copy the payload, because the view ends with this duty cycle, and the log writes offsets into the
                # bytes.
                kept = bytearray(payload)

                def on_image() -> None:
                    if not is_gone():
                        self.handle(op, body, kept, on_reply, is_gone)

                self._transfers.when_image(version, on_image)
            else:
                self._by_op[op].handle(body, payload, on_reply)
        except Exception as error:
            if op in _UNCONTAINED:
                raise
            self._fail(op, error, on_reply)

    def answer_for_nobody(
        self, call: Call[Any, Any], body: Any, payload: Payload, on_reply: Callable[[Any], None]
    ) -> None:
        """Reply to a call of this Handler whose receiver was scaled away before it read the call.

        If the call is for an owner (ForOwner), handle it here. This rejects the parts that are not ours, and the
        operation routes them again by our metadata, which have changed since. Other calls are lost.
        """
        if isinstance(body, msgspec.Raw):
            body = call.decode_body(body)
        if not isinstance(body, ForOwner):
            on_reply(Lost())
            return

        def reply(result: Any) -> None:
            on_reply(Lost() if result is None else result)

        self.handle(call.name, body, payload, reply, lambda: False)

    def _fail(self, op: str, error: Exception, on_reply: OnResult[Any]) -> None:
        self._containment.caught(f"{op}, forwarded by another role,", error)
        on_reply(None)


def enforce_retention(
    partitions: Partitions, transfers: PartitionTransfer, body: PartitionRequest, on_reply: OnResult[Deleted]
) -> None:
    """Delete the segments of a partition that are past their retention, and reply with their number.

    A partition that is being transferred to this Handler is handled when it has arrived. Every call waits until the
    directories of deleted partitions are renamed, because the cleaner also uses it as a barrier (Cleaner._when_let_go).
    """
    if partitions.deletions.waiting:
        partitions.deletions.when_done(partial(enforce_retention, partitions, transfers, body, on_reply))
        return

    def on_ready(is_ready: bool) -> None:
        if is_ready:
            enforce_retention(partitions, transfers, body, on_reply)
        else:
            on_reply(Deleted(0))

    try:
        count = partitions.enforce_retention((body.topic, body.partition))
    except PartitionMoving as moving:
        transfers.when_ready(moving.key, on_ready)
        return
    except (KafkaError, OSError) as error:
        # The cleaner requests this again at its next check of retention.
        logger.warning(
            "cannot delete old segments of %s-%d, the next retention check tries again: %s",
            body.topic,
            body.partition,
            error,
        )
        count = 0
    on_reply(Deleted(count))
