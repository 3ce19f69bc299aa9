"""Requests of producers to a transaction's coordinator, and its responses."""

from __future__ import annotations

import msgspec

from kproc.broker.transaction.state import NO_EPOCH, NO_ID, PartitionKey, State, Transaction


class InitRequest(msgspec.Struct, frozen=True):
    """An InitProducerId with a transactional id.

    A producer that recovers from an error sends its current producer id and epoch (KIP-360). A new one sends -1.
    """

    timeout_ms: int
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH


class AddRequest(msgspec.Struct, frozen=True, array_like=True):
    """Partitions to add to a transaction, or to verify: to check that they belong to the transaction.

    Requests for AddPartitionsToTxn, AddOffsetsToTxn, Produce and TxnOffsetCommit cause it. It is encoded as a list of
    its fields in calls to other Handlers.
    """

    producer_id: int
    epoch: int
    partitions: tuple[PartitionKey, ...]
    client_version: int = 0


class EndRequest(msgspec.Struct, frozen=True):
    """The fields of an EndTxn request, without its transactional id."""

    producer_id: int
    epoch: int
    is_commit: bool
    client_version: int = 0


class Granted(msgspec.Struct, frozen=True):
    """The response to InitProducerId and EndTxn: the producer's next id and epoch, or an error without both."""

    error_code: int
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH
    has_aborted: bool = False
    """The InitProducerId has aborted the open transaction of another producer. Only for the log."""


class Overview(msgspec.Struct, frozen=True):
    """A transactional id with its state, for ListTransactions and metrics."""

    transactional_id: str
    transaction: Transaction

    @property
    def is_open(self) -> bool:
        """True if the transaction is ongoing or its markers are being written. Consumers may wait for its end."""
        return self.transaction.state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
