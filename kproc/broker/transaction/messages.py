"""Requests of producers to a transaction's coordinator, and its responses."""

from __future__ import annotations

import msgspec

from kproc.broker.transaction.state import NO_EPOCH, NO_ID, PartitionKey, State, Transaction


class InitRequest(msgspec.Struct, frozen=True):
    """InitProducerId with a transactional id. A producer that goes on names the id and epoch that it has."""

    timeout_ms: int
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH


class AddRequest(msgspec.Struct, frozen=True, array_like=True):
    """AddPartitionsToTxn, AddOffsetsToTxn, and the partitions of a Produce or TxnOffsetCommit.

    It reaches a coordinator of another Handler as the list of its fields.
    """

    producer_id: int
    epoch: int
    partitions: tuple[PartitionKey, ...]
    client_version: int = 0


class EndRequest(msgspec.Struct, frozen=True):
    """EndTxn."""

    producer_id: int
    epoch: int
    is_commit: bool
    client_version: int = 0


class Granted(msgspec.Struct, frozen=True):
    """The producer id and epoch to go on with; none of both with an error."""

    error_code: int
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH


class Overview(msgspec.Struct, frozen=True):
    """One transactional id for those who look in from outside."""

    transactional_id: str
    transaction: Transaction

    @property
    def is_open(self) -> bool:
        """True if partitions wait for the end of the transaction."""
        return self.transaction.state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
