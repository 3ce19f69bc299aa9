"""What may be asked of the coordinators of transactions: by the transactions' APIs, and by the owners of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
# A Handler asks, no client.
_BROKER: Final = Caller(0, "", "")


class TxnProducer(NamedTuple):
    """Who writes in a transaction."""

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
    """Ask the coordinator whether partitions are in a producer's transaction; with `adds` they become part of it.

    `on_code` gets the coordinator's code, once: NONE, or why not all of them are. Producers with an epoch for each
    transaction add by writing; others have added before, and are verified.
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

    TRANSACTIONS.ask_for(services, _BROKER, ADD if adds else VERIFY, [item], on_outcomes)


def as_known(code: int, version: int, fenced_since: int) -> int:
    """Versions before `fenced_since` of an API do not know PRODUCER_FENCED."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)


def fields_of(granted: Granted) -> Fields:
    """What a producer goes on with, as InitProducerId and EndTxn answer it."""
    return {
        "error_code": int(granted.error_code),
        "producer_id": granted.producer_id,
        "producer_epoch": granted.epoch,
    }


def to_add(transactional_id: str, request: AddRequest) -> Item:
    """An add or a verification, as it is asked here or travels."""
    return Item(transactional_id, request)


def _asked(wanted: Any) -> AddRequest:
    if isinstance(wanted, AddRequest):  # It has not travelled.
        return wanted
    producer_id, epoch, keys, client_version = wanted
    return AddRequest(producer_id, epoch, tuple((topic, index) for topic, index in keys), client_version)


@TRANSACTIONS.operation(ADD)
def serve_add(
    coordinator: TransactionCoordinator, _caller: Caller, name: str, wanted: Any, on_outcome: OnOutcome
) -> None:
    """Partitions join; the outcome is a code."""
    coordinator.add(name, _asked(wanted), lambda code: on_outcome(int(code)))


@TRANSACTIONS.operation(VERIFY)
def serve_verify(
    coordinator: TransactionCoordinator, _caller: Caller, name: str, wanted: Any, on_outcome: OnOutcome
) -> None:
    """The outcome has a code for each partition."""
    on_outcome({"codes": [int(code) for code in coordinator.verify(name, _asked(wanted))]})
