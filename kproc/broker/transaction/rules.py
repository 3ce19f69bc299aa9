"""The rules of transactions: the next state of a transactional id for each request. Pure functions.

The tables are those of Kafka 4.3 (TransactionCoordinator, TransactionMetadata). Each function returns the state to
write, or an error code to answer without a write (NONE for a repeated request), or NEEDS_ID: call it again with an
unused producer id. No function considers pending writes. While a write is pending, the coordinator answers
CONCURRENT_TRANSACTIONS before it calls a rule. Kafka checks in this order, too. Times are in ms of the wall clock.
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
    """Information that must be requested before a decision can be made, such as a new producer id."""

    ID = "an unused producer id"


NEEDS_ID: Final = Needs.ID
# Limit of partitions in one transaction. Each AddPartitionsToTxn writes a record with all of them, which takes 1.2 us
# per partition in one step of the coordinator. In Kafka a record with about 250,000 partitions exceeds
# max.message.bytes of __transaction_state.
PARTITIONS_MAX: Final = 20_000
Decision = Transaction | ErrorCode | Needs


# ---- InitProducerId ---------------------------------------------------------------------------------------


def init(current: Transaction | None, request: InitRequest, now_ms: int, spare_id: int = NO_ID) -> Decision:
    """Return the state after an InitProducerId: with a raised epoch, or a new producer id if no epoch is left.

    An ongoing transaction is not changed: the error is CONCURRENT_TRANSACTIONS, and the caller must `fence` it first.
    """
    if current is None:
        if spare_id == NO_ID:
            return NEEDS_ID
        return Transaction(producer_id=spare_id, epoch=0, timeout_ms=request.timeout_ms, updated_ms=now_ms)
    # KIP-360: a request with a producer id that is not the current one any more comes from a fenced producer.
    if request.producer_id != NO_ID and not _may_go_on(current, request):
        return ErrorCode.PRODUCER_FENCED
    # An ongoing or decided transaction must get its markers first. If the epoch rose now, partitions that have
    # seen the new epoch could reject the markers of the former one.
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
    # KIP-98: epochs are int16. The highest is reserved for the coordinator's fence, so replace a producer id that has
    # reached the one before it.
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
    return _raise_epoch(begun, request)


def _raise_epoch(begun: Transaction, request: InitRequest) -> Decision:
    """Return the initialized state: with the next epoch, or unchanged if the request repeats the last one.

    A request with the current epoch or without a producer id gets the next epoch. One with the previous epoch is a
    retry. Any other epoch is PRODUCER_FENCED.
    """
    # A request without a producer id comes from a new process, which must fence the former one by a higher epoch.
    # Without a last_epoch, a retry of the former process cannot match either.
    if request.producer_id == NO_ID:
        return replace(begun, epoch=begun.epoch + 1, last_epoch=NO_EPOCH)
    if request.epoch == begun.epoch:
        return replace(begun, epoch=begun.epoch + 1, last_epoch=begun.epoch)
    if request.epoch == begun.last_epoch:
        return begun  # A retry, because the client has not received the first response (KIP-360).
    return ErrorCode.PRODUCER_FENCED


def _may_go_on(current: Transaction, request: InitRequest) -> bool:
    """Return True if a request has the current producer id, or the previous one after that has used up its epochs."""
    return request.producer_id == current.producer_id or (
        request.producer_id == current.previous_producer_id and request.epoch >= EXHAUSTED_EPOCH
    )


def fence(current: Transaction, cluster_version: int, now_ms: int, spare_id: int = NO_ID) -> Decision:
    """Abort an ongoing transaction, because its timeout has expired or another producer was initialized.

    The epoch is raised by one. In transaction version 2 (KIP-890) the old epoch is stored, too. The abort of the old
    producer then counts as a retry, and its response has the new epoch, with which it can continue.
    """
    # As in Kafka, the level of the cluster decides and not the version that the client speaks. So an older
    # client on such a cluster is fenced by the new epoch, too.
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
    """Return the state with the request's partitions added, NONE if it has them already, or an error.

    current: the id's state, None for an unknown id. The first partitions start the transaction.
    """
    if (
        current is not None
        and request.producer_id == current.next_producer_id != NO_ID
        and request.epoch == 0
    ):
        # The producer got its next producer id from the EndTxn response, but the current transaction's Complete* is not
        # written yet.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current is None or request.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.epoch != current.epoch:
        return ErrorCode.PRODUCER_FENCED
    # Markers may already be on their way. A partition that is added after the decision would never get one.
    if current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    # A retry, or another batch to the same partitions. No write is needed, because the record with them is in
    # the log.
    if current.state == State.ONGOING and current.partitions.issuperset(request.partitions):
        return ErrorCode.NONE
    partitions = current.partitions.union(request.partitions)
    if len(partitions) > PARTITIONS_MAX:
        return ErrorCode.POLICY_VIOLATION
    return replace(
        current,
        state=State.ONGOING,
        partitions=partitions,
        started_ms=current.started_ms if current.state == State.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=request.client_version,
    )


def verify(current: Transaction | None, request: AddRequest) -> list[ErrorCode]:
    """Return the error code of each partition: NONE if it is in the transaction, else TRANSACTION_ABORTABLE (KIP-890).

    If the producer id or epoch is wrong, or the transaction is ending, all partitions get the error for that.
    current: the state of the transactional id, None for an unknown id.
    """
    refusal = ErrorCode.NONE
    if current is None or request.producer_id != current.producer_id:
        refusal = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif request.epoch != current.epoch:
        refusal = ErrorCode.PRODUCER_FENCED
    elif current.state in PREPARED:
        refusal = ErrorCode.CONCURRENT_TRANSACTIONS
    if refusal or current is None:
        return [refusal] * len(request.partitions)
    # KIP-890: TRANSACTION_ABORTABLE lets the client abort and continue. The partition was never added, so it would
    # never get a marker, and a batch in it would block read_committed consumers.
    known = current.partitions if current.state == State.ONGOING else frozenset()
    return [ErrorCode.NONE if key in known else ErrorCode.TRANSACTION_ABORTABLE for key in request.partitions]


# ---- EndTxn -----------------------------------------------------------------------------------------------


def end(current: Transaction | None, request: EndRequest, now_ms: int, spare_id: int = NO_ID) -> Decision:
    """Return the Prepare* state for an EndTxn, NONE if the request is a retry, or an error.

    current: the id's state, None for an unknown id. spare_id: a producer id to use when the epoch is exhausted, NO_ID
    if none was allocated.
    """
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # While markers are sent, Kafka has Complete* as a pending state and answers CONCURRENT_TRANSACTIONS. A producer
    # that already ends its next transaction, perhaps without partitions, gets that error.
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
    # The decision. From its sync on the outcome is fixed, whatever crashes: the next coordinator reads it and
    # sends the markers again.
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
    """End a transaction of version 2 (KIP-890), where each EndTxn raises the epoch.

    A retry of the last EndTxn therefore has the epoch before the current one.
    """
    is_over_the_change = (
        request.producer_id == current.previous_producer_id
        and request.epoch == EXHAUSTED_EPOCH
        and current.epoch == 0
    )
    if request.producer_id != current.producer_id and not is_over_the_change:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    state = current.state
    # A fence of transaction version 1 may have raised the epoch to 32767. A request with the epoch before is then no
    # retry, because that producer was fenced.
    is_repeated = state in COMPLETED and (
        is_over_the_change or request.epoch == current.epoch - 1 != EXHAUSTED_EPOCH
    )
    is_current = request.epoch == current.epoch
    if not is_repeated and (is_over_the_change or not is_current):
        return ErrorCode.PRODUCER_FENCED
    prepared, completed = _ends_of(request)
    if is_repeated:
        return ErrorCode.NONE if state == completed else ErrorCode.INVALID_TXN_STATE
    # A commit without partitions is a client error. An abort without partitions is usual after an error, and only
    # raises the epoch.
    if state != State.ONGOING and request.is_commit:
        return ErrorCode.INVALID_TXN_STATE
    return _with_next_epoch(current, prepared, now_ms, spare_id, request.client_version)


def _with_next_epoch(
    current: Transaction, prepared: State, now_ms: int, spare_id: int, client_version: int
) -> Decision:
    """Return the decision (Prepare*) with the next epoch.

    The markers get this epoch, so that partitions reject late batches of this transaction.
    """
    if current.is_exhausted and spare_id == NO_ID:
        return NEEDS_ID
    return replace(
        current,
        state=prepared,
        epoch=min(current.epoch + 1, EPOCH_MAX),
        last_epoch=current.epoch,
        next_producer_id=spare_id if current.is_exhausted else NO_ID,
        # An abort without partitions has no start time yet: it starts and ends at `now_ms`.
        started_ms=current.started_ms if current.state == State.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    """Return the Complete* state that follows a decision, when every partition has its marker."""
    done = replace(
        current,
        state=State.COMPLETE_COMMIT if current.state == State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        partitions=frozenset(),
        next_producer_id=NO_ID,
        updated_ms=now_ms,
    )
    # The usual case: the producer id has epochs left.
    if current.next_producer_id == NO_ID:
        return done
    return replace(
        done,
        producer_id=current.next_producer_id,
        epoch=0,
        previous_producer_id=current.producer_id,
    )
