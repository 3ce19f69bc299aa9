"""Search for hanging transactions: open in a partition although their coordinator should have ended them long ago."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from kproc.broker.request.context import PartitionKey

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.handler.owned_partition import OwnedPartition

logger = logging.getLogger(__name__)

# A transaction counts as hanging this many ms after transaction.max.timeout.ms, as in Kafka.
_LATE_MS: Final = 300_000

# A partition, and the id of the producer that has an open transaction there.
HangingTransaction = tuple[PartitionKey, int]


def find_hanging(
    owned: OwnedPartition, config: Config, now_ms: int, known: Container[HangingTransaction]
) -> set[HangingTransaction]:
    """Return the hanging transactions of a partition, and log those that are not in `known`.

    Only an operator can end them (kafka-transactions abort).
    """
    latest_ms = now_ms - config.transaction_max_timeout_ms - _LATE_MS
    found: set[HangingTransaction] = set()
    for entry in owned.log.state.producers.late_transactions(latest_ms):
        found.add((owned.key, entry.producer_id))
        if (owned.key, entry.producer_id) not in known:
            logger.warning(
                "a transaction hangs in %s-%d: producer %d with epoch %d has one open from offset %d on, and its "
                "coordinator does not end it; read_committed consumers wait there until an operator aborts it "
                "(kafka-transactions find-hanging, abort)",
                *owned.key, entry.producer_id, entry.epoch, entry.open_txn_offset,
            )  # fmt: skip
    return found
