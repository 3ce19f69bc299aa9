"""Transaction: the stored state of a transactional id (Kafka's TransactionMetadata). Immutable values.

    Empty --add--> Ongoing --end--> PrepareCommit --markers are durable--> CompleteCommit --add--> Ongoing ...
                           --end, timeout, new epoch--> PrepareAbort --> CompleteAbort --add--> Ongoing ...

Kafka has one more state, PrepareEpochFence, which is never stored: an abort that raises the epoch. Here the
PrepareAbort record has the raised epoch. After a failed write the next attempt raises the same epoch again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
EPOCH_MAX: Final = 32_767
# No producer gets an epoch above this one. The coordinator needs the epoch 32767 to fence the producer that has 32766.
EXHAUSTED_EPOCH: Final = EPOCH_MAX - 1
# Levels of the feature transaction.version. From level 1 on, record values are flexible. From level 2 on (KIP-890),
# every transaction has an epoch of its own, and Produce adds its partitions.
FLEXIBLE_RECORDS: Final = 1
EPOCH_PER_TRANSACTION: Final = 2

PartitionKey = tuple[str, int]


class State(IntEnum):
    """The states with Kafka's numbers, which the records contain."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def word(self) -> str:
        """The name that DescribeTransactions and ListTransactions show, such as PrepareCommit."""
        return "".join(part.capitalize() for part in self.name.split("_"))


COMPLETED: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
STORED: Final = tuple(state for state in State if state < State.DEAD)
IDLE: Final = COMPLETED | {State.EMPTY}
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
# By state, the states that may precede it. PrepareAbort may follow an idle state: the abort of a transaction without
# partitions (KIP-890).
PREDECESSORS: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: IDLE,
    State.ONGOING: IDLE | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: IDLE | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: IDLE,
}


class Transaction(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The state of one transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    state: State = State.EMPTY
    partitions: frozenset[PartitionKey] = frozenset()
    started_ms: int = NO_TIME  # The time at which the first partition was added.
    # The previous epoch, to recognise a retry of the request that raised the epoch. As in Kafka, it is not stored.
    last_epoch: int = NO_EPOCH
    # The producer ids before and after a change of the id, which is necessary when its epochs are exhausted.
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    # The transaction.version of the last client that added partitions or ended the transaction.
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no epochs left."""
        return self.epoch >= EXHAUSTED_EPOCH

    @property
    def changes_its_id(self) -> bool:
        """True if the producer id changes at the end of this transaction, or changed at the end of an earlier one.

        Only in transaction version 2 (KIP-890).
        """
        return self.client_version >= EPOCH_PER_TRANSACTION and (
            self.next_producer_id != NO_ID or self.previous_producer_id != NO_ID
        )

    @property
    def ends_at_ms(self) -> int:
        """The time in ms after which the coordinator aborts an ongoing transaction."""
        return self.started_ms + self.timeout_ms
