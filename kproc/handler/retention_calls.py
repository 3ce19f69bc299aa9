"""Serves the cleaner's call to delete the segments of a partition that are past their retention."""

from __future__ import annotations

import logging

from kproc.api.context import OnReply, PartitionKey, PartitionMoving
from kproc.errors import KafkaError
from kproc.handler.partition_transfer import PartitionTransfer
from kproc.handler.partitions import Partitions

logger = logging.getLogger(__name__)


def serve_retention(
    partitions: Partitions, transfers: PartitionTransfer, key: PartitionKey, on_reply: OnReply
) -> None:
    """Delete, and answer how many segments; if the partition is being transferred to here, when it has arrived."""

    def go_on(is_ready: bool) -> None:
        if is_ready:
            serve_retention(partitions, transfers, key, on_reply)
        else:
            on_reply({"count": 0})

    try:
        count = partitions.enforce_retention(key)
    except PartitionMoving as moving:
        transfers.when_ready(moving.key, go_on)
        return
    except (KafkaError, OSError) as error:
        logger.warning("retention of %s-%d: %s", *key, error)
        count = 0
    on_reply({"count": count})
