"""Transaction: what is stored about a transactional id, and the states that it goes through. Immutable values.

    Empty --add--> Ongoing --end--> PrepareCommit --markers are durable--> CompleteCommit --add--> Ongoing ...
                           --end, timeout, new epoch--> PrepareAbort --> CompleteAbort --add--> Ongoing ...

Kafka knows one more, PrepareEpochFence, in memory alone: an abort that raises the epoch. Here the raised epoch is in
the PrepareAbort record, so a failed write needs no such memory: the next try raises the same epoch again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
EPOCH_MAX: Final = 32_767
# An epoch that is not handed on: the last one is left for the coordinator, to fence whoever has this one.
EXHAUSTED_EPOCH: Final = EPOCH_MAX - 1
# Levels of the feature transaction.version: record values are flexible from the first on; with the second (KIP-890)
# every transaction has an epoch of its own, and Produce adds partitions.
FLEXIBLE_RECORDS: Final = 1
EPOCH_PER_TRANSACTION: Final = 2

PartitionKey = tuple[str, int]


class State(IntEnum):
    """Kafka's numbers, which stand in the records."""

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
        """As DescribeTransactions and ListTransactions show it: PrepareCommit."""
        return "".join(part.capitalize() for part in self.name.split("_"))


COMPLETED: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
STORED: Final = tuple(state for state in State if state < State.DEAD)
IDLE: Final = COMPLETED | {State.EMPTY}
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
# By each state, those that it may follow. Abort of a transaction without records follows an idle state.
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
    """The state of one transactional id at one time."""

    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    state: State = State.EMPTY
    partitions: frozenset[PartitionKey] = frozenset()
    started_ms: int = NO_TIME  # Since the first partition was added.
    # The epoch before, for whoever repeats the request that raised it. Not stored, as in Kafka.
    last_epoch: int = NO_EPOCH
    # Before and after a change of the producer id, which comes when its epochs are exhausted.
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0  # The transaction.version of who added or ended last.

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no epochs left."""
        return self.epoch >= EXHAUSTED_EPOCH

    @property
    def changes_its_id(self) -> bool:
        """True if a producer with an epoch for each transaction (KIP-890) gets or got another id at the end."""
        return self.client_version >= EPOCH_PER_TRANSACTION and (
            self.next_producer_id != NO_ID or self.previous_producer_id != NO_ID
        )

    @property
    def ends_at_ms(self) -> int:
        """When the coordinator aborts it, if it is ongoing."""
        return self.started_ms + self.timeout_ms
