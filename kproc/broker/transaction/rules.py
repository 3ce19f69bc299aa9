"""The rules of transactions: what a request makes of a transactional id's state. Pure functions, Kafka 4.3's tables.

Each gives the state to write, or a code to answer without a write (NONE for a repeated request), or NEEDS_ID: ask again
with an unused producer id. None of them looks at pending writes: whoever keeps those answers CONCURRENT_TRANSACTIONS
before it asks, which is the order of Kafka's checks. Times are wall-clock ms.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec.structs import replace

from kproc.broker.transaction.messages import AddRequest, EndRequest, InitRequest
from kproc.broker.transaction.state import (
    COMPLETED,
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    EXHAUSTED_EPOCH,
    IDLE,
    NO_EPOCH,
    NO_ID,
    NO_TIME,
    PREPARED,
    State,
    Transaction,
)
from kproc.common.errors import ErrorCode


class Needs(Enum):
    """The information that a decision still needs."""

    ID = "an unused producer id"


NEEDS_ID: Final = Needs.ID
Decision = Transaction | ErrorCode | Needs


# ---- InitProducerId ---------------------------------------------------------------------------------------


def init(current: Transaction | None, request: InitRequest, now_ms: int, spare_id: int = NO_ID) -> Decision:
    """A producer begins. An ongoing transaction is not touched: the code is CONCURRENT_TRANSACTIONS, and `fence` is
    what must be done about it first."""
    if current is None:
        if spare_id == NO_ID:
            return NEEDS_ID
        return Transaction(producer_id=spare_id, epoch=0, timeout_ms=request.timeout_ms, updated_ms=now_ms)
    if request.producer_id != NO_ID and not _may_go_on(current, request):
        return ErrorCode.PRODUCER_FENCED
    if current.state not in IDLE:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    begun = replace(
        current,
        state=State.EMPTY,
        partitions=frozenset(),
        started_ms=NO_TIME,
        timeout_ms=request.timeout_ms,
        updated_ms=now_ms,
    )
    names_itself = request.producer_id != NO_ID
    if current.is_exhausted and (not names_itself or request.epoch == current.epoch):
        if spare_id == NO_ID:
            return NEEDS_ID
        return replace(
            begun,
            producer_id=spare_id,
            epoch=0,
            previous_producer_id=current.producer_id,
            last_epoch=current.epoch if names_itself else NO_EPOCH,
        )
    if not names_itself:
        return replace(begun, epoch=current.epoch + 1, last_epoch=NO_EPOCH)
    if request.epoch == current.epoch:
        return replace(begun, epoch=current.epoch + 1, last_epoch=current.epoch)
    if request.epoch == current.last_epoch:
        return begun  # The answer to its first request was lost.
    return ErrorCode.PRODUCER_FENCED


def _may_go_on(current: Transaction, request: InitRequest) -> bool:
    """Return True if a request names the current producer id, or the previous one whose epochs were exhausted."""
    return request.producer_id == current.producer_id or (
        request.producer_id == current.previous_producer_id and request.epoch >= EXHAUSTED_EPOCH
    )


def fence(current: Transaction, cluster_version: int, now_ms: int, spare_id: int = NO_ID) -> Decision:
    """The coordinator aborts an ongoing transaction: its time is over, or another producer begins.

    The epoch is raised by one. With an epoch for each transaction the old one is kept: the old producer's abort is then
    answered as a repeated one, with the epoch to go on with.
    """
    if cluster_version >= EPOCH_PER_TRANSACTION:
        return _with_next_epoch(current, State.PREPARE_ABORT, now_ms, spare_id, cluster_version)
    return replace(
        current,
        state=State.PREPARE_ABORT,
        epoch=min(current.epoch + 1, EPOCH_MAX),
        last_epoch=NO_EPOCH,
        client_version=cluster_version,
        updated_ms=now_ms,
    )


# ---- adding partitions ------------------------------------------------------------------------------------


def add(current: Transaction | None, request: AddRequest, now_ms: int) -> Transaction | ErrorCode:
    """Partitions become part of the transaction; the first begin it."""
    if (
        current is not None
        and request.producer_id == current.next_producer_id != NO_ID
        and request.epoch == 0
    ):
        return ErrorCode.CONCURRENT_TRANSACTIONS  # EndTxn has told it; it is not the current one yet.
    if current is None or request.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.epoch != current.epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.state == State.ONGOING and current.partitions.issuperset(request.partitions):
        return ErrorCode.NONE
    return replace(
        current,
        state=State.ONGOING,
        partitions=current.partitions.union(request.partitions),
        started_ms=current.started_ms if current.state == State.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=request.client_version,
    )


def verify(current: Transaction | None, request: AddRequest) -> list[ErrorCode]:
    """A code for each partition: whether it is part of the transaction."""
    refusal = ErrorCode.NONE
    if current is None or request.producer_id != current.producer_id:
        refusal = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif request.epoch != current.epoch:
        refusal = ErrorCode.PRODUCER_FENCED
    elif current.state in PREPARED:
        refusal = ErrorCode.CONCURRENT_TRANSACTIONS
    if refusal or current is None:
        return [refusal] * len(request.partitions)
    known = current.partitions if current.state == State.ONGOING else frozenset()
    return [ErrorCode.NONE if key in known else ErrorCode.TRANSACTION_ABORTABLE for key in request.partitions]


# ---- EndTxn -----------------------------------------------------------------------------------------------


def end(current: Transaction | None, request: EndRequest, now_ms: int, spare_id: int = NO_ID) -> Decision:
    """A producer commits or aborts."""
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # In Kafka Complete* is pending while the markers are on their way: who ends the next transaction, which may have no
    # partition yet, only has to wait.
    is_ending = current.state in PREPARED
    if request.client_version >= EPOCH_PER_TRANSACTION:
        if is_ending:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return _end_with_next_epoch(current, request, now_ms, spare_id)
    if request.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.epoch != current.epoch:
        return ErrorCode.PRODUCER_FENCED
    prepared, completed = _ends_of(request)
    if current.state == State.ONGOING:
        return replace(current, state=prepared, updated_ms=now_ms, client_version=request.client_version)
    if is_ending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE if current.state == completed else ErrorCode.INVALID_TXN_STATE


def _ends_of(request: EndRequest) -> tuple[State, State]:
    if request.is_commit:
        return State.PREPARE_COMMIT, State.COMPLETE_COMMIT
    return State.PREPARE_ABORT, State.COMPLETE_ABORT


def _end_with_next_epoch(current: Transaction, request: EndRequest, now_ms: int, spare_id: int) -> Decision:
    """With an epoch for each transaction, who repeats the end of the last one carries the epoch before."""
    is_over_the_change = (
        request.producer_id == current.previous_producer_id
        and request.epoch == EXHAUSTED_EPOCH
        and current.epoch == 0
    )
    if request.producer_id != current.producer_id and not is_over_the_change:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    state = current.state
    # A fence below that version may have raised to the last epoch, which no producer may have: nothing could fence it.
    is_repeated = state in COMPLETED and (
        is_over_the_change or request.epoch == current.epoch - 1 != EXHAUSTED_EPOCH
    )
    is_current = request.epoch == current.epoch
    if not is_repeated and (is_over_the_change or not is_current):
        return ErrorCode.PRODUCER_FENCED
    prepared, completed = _ends_of(request)
    if is_repeated:
        return ErrorCode.NONE if state == completed else ErrorCode.INVALID_TXN_STATE
    if state != State.ONGOING and request.is_commit:
        return ErrorCode.INVALID_TXN_STATE
    return _with_next_epoch(current, prepared, now_ms, spare_id, request.client_version)


def _with_next_epoch(
    current: Transaction, prepared: State, now_ms: int, spare_id: int, client_version: int
) -> Decision:
    """The markers carry the next epoch, so that nothing late of this transaction counts for the next one."""
    if current.is_exhausted and spare_id == NO_ID:
        return NEEDS_ID
    return replace(
        current,
        state=prepared,
        epoch=min(current.epoch + 1, EPOCH_MAX),
        last_epoch=current.epoch,
        next_producer_id=spare_id if current.is_exhausted else NO_ID,
        # An abort of nothing begins and ends at once.
        started_ms=current.started_ms if current.state == State.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker."""
    done = replace(
        current,
        state=State.COMPLETE_COMMIT if current.state == State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        partitions=frozenset(),
        next_producer_id=NO_ID,
        updated_ms=now_ms,
    )
    if current.next_producer_id == NO_ID:
        return done
    return replace(
        done,
        producer_id=current.next_producer_id,
        epoch=0,
        previous_producer_id=current.producer_id,
    )
