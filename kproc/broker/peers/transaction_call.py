"""Calls to the coordinators of transactions, from the APIs of transactions and from the owners of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.metrics.histogram import bucket_of
from kproc.broker.metrics.requests import UNVERIFIED, VERIFIED, VERIFYING
from kproc.broker.peers.coordinator_call import Caller, CoordinatorCalls, Fields, Item, OnOutcome, Outcome
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.messages import AddRequest, Granted
from kproc.broker.transaction.state import EPOCH_PER_TRANSACTION, PartitionKey
from kproc.common.clock import NS_PER_US
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.request.context import Services

TRANSACTIONS: Final[CoordinatorCalls[TransactionCoordinator]] = CoordinatorCalls(
    "transaction", TRANSACTION_STATE_TOPIC
)

ADD: Final = "add"
VERIFY: Final = "verify"
# The caller of a verification is a Handler, so it has no client id and no host.
_BROKER: Final = Caller(0, "", "")


class TxnProducer(NamedTuple):
    """The producer of a transaction."""

    transactional_id: str
    producer_id: int
    epoch: int


def ask_to_join(
    services: Services,
    txn: TxnProducer,
    partitions: Sequence[PartitionKey],
    *,
    adds: bool,
    on_code: Callable[[int], None],
) -> None:
    """Verify with the coordinator that partitions are in a producer's transaction (KIP-890).

    adds: add the partitions to the transaction. This is for producers of transaction version 2, which have an epoch per
    transaction and send no AddPartitionsToTxn. Other producers have added the partitions before.
    on_code: called once with NONE, or with the first error among the partitions.
    """
    if not txn.transactional_id:
        on_code(int(ErrorCode.INVALID_REQUEST))
        return
    request = AddRequest(txn.producer_id, txn.epoch, tuple(partitions), EPOCH_PER_TRANSACTION if adds else 0)
    item = to_add(txn.transactional_id, request)
    counts, clock, began_ns = services.counts, services.clock, services.clock.now_ns()

    def on_outcomes(outcomes: list[Outcome]) -> None:
        (outcome,) = outcomes
        codes = outcome["codes"] if isinstance(outcome, dict) else [outcome] * len(partitions)
        refused = sum(code != ErrorCode.NONE for code in codes) if any(codes) else 0
        took_us = (clock.now_ns() - began_ns) // NS_PER_US
        counts.add(VERIFIED, bucket_of(took_us))
        counts.add(VERIFYING, 0, count=took_us)
        counts.add(UNVERIFIED, 0, count=refused)
        on_code(next(code for code in codes if code) if refused else int(ErrorCode.NONE))

    TRANSACTIONS.send_for_handler(services, _BROKER, ADD if adds else VERIFY, [item], on_outcomes)


def as_known(code: int, version: int, fenced_since: int) -> int:
    """Return `code` for a client of this API version. Versions before `fenced_since` do not know PRODUCER_FENCED."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)


def fields_of(granted: Granted) -> Fields:
    """Return the fields of InitProducerId's and EndTxn's responses: error, producer id and epoch."""
    return {
        "error_code": int(granted.error_code),
        "producer_id": granted.producer_id,
        "producer_epoch": granted.epoch,
    }


def to_add(transactional_id: str, request: AddRequest) -> Item:
    """Return the item of an add or a verification."""
    return Item(transactional_id, request)


@TRANSACTIONS.operation(ADD, AddRequest)
def handle_add(
    coordinator: TransactionCoordinator,
    _caller: Caller,
    name: str,
    request: AddRequest,
    on_outcome: OnOutcome,
) -> None:
    """Add partitions to a transaction. The outcome is an error code."""
    coordinator.add(name, request, lambda code: on_outcome(int(code)))


@TRANSACTIONS.operation(VERIFY, AddRequest)
def handle_verify(
    coordinator: TransactionCoordinator,
    _caller: Caller,
    name: str,
    request: AddRequest,
    on_outcome: OnOutcome,
) -> None:
    """Verify that partitions are in a transaction. The outcome has an error code for each partition."""
    on_outcome({"codes": [int(code) for code in coordinator.verify(name, request)]})
