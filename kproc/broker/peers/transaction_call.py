"""Calls to the coordinators of transactions, from the APIs of transactions and from the owners of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.metrics.histogram import bucket_of
from kproc.broker.metrics.requests import UNVERIFIED, VERIFIED, VERIFYING
from kproc.broker.peers.coordinator_call import CoordinatorCalls, Fields, Item, OnOutcome
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

# The outcome of ADD is one code for all partitions, because all or none of them are added to the transaction.
ADD: Final = TRANSACTIONS.operation("add", AddRequest, int)
# The result of VERIFY is a code for each partition.
VERIFY: Final = TRANSACTIONS.operation("verify", AddRequest, list[int])


class TxnProducer(NamedTuple):
    """The producer of a transaction: its transactional id, producer id and epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


def request_join(
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
    counts, clock, began_ns = services.counts, services.clock, services.clock.host_ns()

    def on_outcomes(outcomes: Sequence[list[int] | int]) -> None:
        codes = codes_of(outcomes[0], len(partitions))
        refused = sum(code != ErrorCode.NONE for code in codes) if any(codes) else 0
        took_us = (clock.host_ns() - began_ns) // NS_PER_US
        counts.add(VERIFIED, bucket_of(took_us))
        counts.add(VERIFYING, 0, count=took_us)
        counts.add(UNVERIFIED, 0, count=refused)
        on_code(next(code for code in codes if code) if refused else int(ErrorCode.NONE))

    operation: Any = ADD if adds else VERIFY
    operation.send_for_handler(services, [Item(txn.transactional_id, request)], on_outcomes)


def codes_of(outcome: list[int] | int, count: int) -> list[int]:
    """Return the code of each of `count` partitions from the outcome of ADD or VERIFY."""
    return [outcome] * count if isinstance(outcome, int) else outcome


def as_known(code: int, version: int, fenced_since: int) -> int:
    """Return `code` as a client of this API version knows it.

    Versions before `fenced_since` do not know PRODUCER_FENCED and get INVALID_PRODUCER_EPOCH instead.
    """
    # KIP-588 introduced PRODUCER_FENCED. Older clients know it only as INVALID_PRODUCER_EPOCH, and treat unknown codes
    # as fatal.
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)


def fields_of(outcome: Granted | int, version: int, fenced_since: int) -> Fields:
    """Return the fields of InitProducerId's and EndTxn's responses. See `as_known` for the last two arguments."""
    granted = Granted(outcome) if isinstance(outcome, int) else outcome
    return {
        "error_code": as_known(granted.error_code, version, fenced_since),
        "producer_id": granted.producer_id,
        "producer_epoch": granted.epoch,
    }


@ADD.handler
def handle_add(
    coordinator: TransactionCoordinator, name: str, request: AddRequest, on_outcome: OnOutcome[int]
) -> None:
    """Add partitions to a transaction."""
    coordinator.add(name, request, lambda code: on_outcome(int(code)))


@VERIFY.handler
def handle_verify(
    coordinator: TransactionCoordinator, name: str, request: AddRequest, on_outcome: OnOutcome[list[int]]
) -> None:
    """Verify that partitions are in a transaction. The outcome is an error code, or NONE, for each partition."""
    on_outcome([int(code) for code in coordinator.verify(name, request)])
