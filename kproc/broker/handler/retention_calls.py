"""Handles the cleaner's call to delete the segments of a partition that are past their retention."""

from __future__ import annotations

import logging

from kproc.broker.calls.calls import OnResult
from kproc.broker.calls.cleaner_calls import Deleted, PartitionAsked
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.handler.partitions import Partitions
from kproc.broker.request.context import PartitionMoving
from kproc.common.errors import KafkaError

logger = logging.getLogger(__name__)


def serve_retention(
    partitions: Partitions, transfers: PartitionTransfer, body: PartitionAsked, on_reply: OnResult[Deleted]
) -> None:
    """Delete expired segments of a partition and reply with their number.

    A partition that is being transferred to this Handler is handled when it has arrived.
    """

    def go_on(is_ready: bool) -> None:
        if is_ready:
            serve_retention(partitions, transfers, body, on_reply)
        else:
            on_reply(Deleted(0))

    try:
        count = partitions.enforce_retention((body.topic, body.partition))
    except PartitionMoving as moving:
        transfers.when_ready(moving.key, go_on)
        return
    except (KafkaError, OSError) as error:
        logger.warning("retention of %s-%d: %s", body.topic, body.partition, error)
        count = 0
    on_reply(Deleted(count))
