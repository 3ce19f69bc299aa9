"""Verification of transactional Produce batches with the transaction's coordinator (KIP-890).

The owner of the partition verifies, whichever Handler the client is connected to. It parks the first batch of a
transaction until the coordinator confirms that the partition is durably part of the transaction. Without this, the
batch could be on disk and no coordinator would ever end its transaction. From transaction version 2 on (Produce 12) the
verification itself adds the partition.

Later batches of the same producer for the partition are parked behind the first one, from every connection, and are
appended or rejected together with it. Otherwise they could overtake it, because a connection has several requests in
flight. If the partition gets another owner, the parked batches are routed there in order and verified again.

A batch of a transaction that is already open in the partition does not wait.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from kproc.broker.peers import transaction_call
from kproc.broker.peers.transaction_call import TxnProducer
from kproc.broker.produce.forward import DeferredRecords
from kproc.broker.produce.reply import failed, unknown_topic
from kproc.broker.request.context import PartitionKey, Services
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.storage.producer_state import Verification
from kproc.broker.storage.validate import CONFIRMED, TRANSACTION
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.batch_header import ATTRIBUTES_AT, HEADER, HEADER_BYTES, MAGIC_AT
from kproc.wire.record_batch import MAGIC, TRANSACTIONAL, check_batch

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.produce.append_queue import AppendQueue
    from kproc.broker.produce.reply import ProduceTarget
    from kproc.broker.request.context import RequestContext
    from kproc.wire.hot import ProduceRequest

# First Produce version of transaction version 2 (KIP-890 part 2). Clients that use it send no AddPartitionsToTxn.
_FIRST_THAT_ADDS: Final = 12
_FIRST_WITH_ABORTABLE: Final = 11  # An older client does not know TRANSACTION_ABORTABLE.
_ASKING: Final = "asking a transaction's coordinator"
_FINISHING: Final = "a Produce that waited for a transaction's coordinator"
# Errors that say the coordinator is unavailable. Producers get NOT_ENOUGH_REPLICAS instead: they retry after it
# without looking for another broker.
_UNREACHED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def _is_transactional(records: memoryview | bytearray) -> bool:
    return bool(records[ATTRIBUTES_AT] & TRANSACTIONAL) and records[MAGIC_AT] == MAGIC


def _producer_of(records: memoryview) -> tuple[int, int, int]:
    """Return producer id, epoch and first sequence of a batch."""
    return HEADER.unpack_from(records)[9:12]


def refusal_of_transaction(context: RequestContext, request: ProduceRequest) -> int:
    """Return the error code for the whole request, or 0 if its transactional batches are permitted.

    As in Kafka, transactional batches need WRITE on the transactional id, and all must be of one producer.
    """
    producers: set[tuple[int, int]] = set()
    has_any = False
    for topic in request.topics:
        for _, records in topic.partitions:
            if records is None or len(records) <= ATTRIBUTES_AT or not _is_transactional(records):
                continue
            has_any = True
            if len(records) >= HEADER_BYTES:
                producer_id, epoch, _ = _producer_of(records)
                if producer_id >= 0:
                    producers.add((producer_id, epoch))
    name = request.transactional_id
    if has_any and (
        name is None or not context.is_allowed(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # As in Kafka's ReplicaManager, all transactional batches of a request must be of one producer, because the request
    # has only one transactional id.
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING if len(producers) > 1 else ErrorCode.NONE


class _ParkedBatches:
    """Parked batches of one producer for one partition, in order. The first one starts a transaction."""

    __slots__ = ("adds", "batches", "guard", "owned", "producer")

    def __init__(
        self,
        owned: OwnedPartition,
        producer: TxnProducer,
        guard: Verification,
        first: DeferredRecords,
        *,
        adds: bool,
    ) -> None:
        self.owned = owned
        self.producer = producer
        self.guard = guard
        self.batches = [first]
        self.adds = adds

    @property
    def key(self) -> tuple[OwnedPartition, int]:
        """The key in `TransactionalProduce._waiting`: partition and producer id."""
        return self.owned, self.producer.producer_id

    def reject(self, code: int) -> None:
        """Fail all batches with `code`. If a later one were appended, the log would reject retries of the others."""
        for deferred in self.batches:
            deferred.fail(*_error_for_producer(code, deferred.version))

    def fail(self) -> None:
        """Fail all requests after an unexpected exception."""
        for deferred in self.batches:
            deferred.target.fail()


def _error_for_producer(code: int, version: int) -> tuple[int, str | None]:
    """Translate a coordinator's error for a producer that uses this version of Produce. Return the code and a message.

    The codes and messages are those of Kafka's ReplicaManager.
    """
    adds = version >= _FIRST_THAT_ADDS
    # Clients older than KIP-890 know none of these codes in a Produce response. They retry NOT_ENOUGH_REPLICAS, and
    # their next attempt may find the coordinator.
    if code in _UNREACHED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        why = "Unable to verify the partition has been added to the transaction. Underlying error: "
        return ErrorCode.NOT_ENOUGH_REPLICAS, why + ErrorCode(code).name
    # KIP-588: in a Produce response INVALID_PRODUCER_EPOCH means that the producer was fenced, too. The client then
    # aborts its transaction, while PRODUCER_FENCED would be fatal for it.
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH, None
    # KIP-890 gave TRANSACTION_ABORTABLE to clients from Produce 11 on. Older ones know INVALID_TXN_STATE
    # only.
    if code == ErrorCode.INVALID_TXN_STATE or (
        code == ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE
    ):
        return ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction"
    return code, None


class TransactionalProduce:
    """Produce batches of a Handler that wait until their transaction is verified. Part of its RecordRouter."""

    def __init__(self, services: Services, queue: AppendQueue) -> None:
        self._services = services
        self._queue = queue
        queue.on_confirmed = self._on_confirmed
        self._request_join = transaction_call.request_join
        self._waiting: dict[tuple[OwnedPartition, int], _ParkedBatches] = {}
        # Batches of the current request whose coordinator must be called. `send_requests` sends one call for all of
        # them.
        self._to_verify: list[_ParkedBatches] = []
        # Confirmed batches until the next flush has appended them, by partition and producer id.
        self._confirmed: dict[OwnedPartition, dict[int, _ParkedBatches]] = {}

    def enqueue(
        self, owned: OwnedPartition, topic_id: bytes, records: memoryview, target: ProduceTarget, version: int
    ) -> None:
        """Queue records, park them if their transaction must be verified, or reject them if their producer was fenced.

        Only for requests with a transactional id. The caller must call `send_requests` after the last partition of the
        request.
        """
        transactional_id = target.transactional_id
        if transactional_id is None or len(records) < HEADER_BYTES or not _is_transactional(records):
            self._queue.enqueue(owned, records, target)
            return
        producer_id, epoch, sequence = _producer_of(records)
        if self._follows_confirmed(owned, producer_id, epoch):
            self._queue.enqueue(owned, records, target, CONFIRMED)
            return
        waiting = self._still_waiting(owned, producer_id, epoch)
        index = owned.key[1]
        # Batches with a newer epoch of this producer id are parked already, so the producer of this batch was fenced.
        if waiting is not None and waiting.producer.epoch > epoch:
            target.decide(failed(index, ErrorCode.INVALID_PRODUCER_EPOCH))
            return
        adds = version >= _FIRST_THAT_ADDS
        if waiting is None and self._is_fenced(owned, producer_id, epoch, adds=adds):
            target.decide(failed(index, ErrorCode.INVALID_PRODUCER_EPOCH))
            return
        if waiting is None and not self._is_first(owned, producer_id, epoch, records, adds=adds):
            self._queue.enqueue(owned, records, target, TRANSACTION)
            return
        deferred = DeferredRecords(topic_id, index, bytearray(records), target, version)
        if waiting is not None:
            waiting.batches.append(deferred)
            return
        producer = TxnProducer(transactional_id, producer_id, epoch)
        self._start_verification(owned, producer, sequence, deferred, adds=adds)

    def _start_verification(
        self,
        owned: OwnedPartition,
        producer: TxnProducer,
        sequence: int,
        first: DeferredRecords,
        *,
        adds: bool,
    ) -> None:
        """Park the first batch of a transaction until its coordinator confirms it. `send_requests` sends the call.

        adds: the producer uses transaction version 2 (KIP-890), so the coordinator adds the partition instead of
        verifying it.
        """
        guard = owned.log.state.producers.start_verification(
            producer.producer_id,
            producer.epoch,
            sequence,
            owns_epoch=adds,
            now_ms=self._services.clock.wall_ms(),
        )
        waiting = _ParkedBatches(owned, producer, guard, first, adds=adds)
        self._waiting[waiting.key] = waiting
        self._to_verify.append(waiting)

    def _follows_confirmed(self, owned: OwnedPartition, producer_id: int, epoch: int) -> bool:
        """Return True if a batch of this producer follows its confirmed first batch, which the queue has paused.

        If the first batch is queued without a pause, append it now, so that the log can tell whether the transaction is
        open.
        """
        if producer_id not in self._confirmed.get(owned, ()):
            return False
        self._queue.flush()
        # The queue may have paused the first batch, so that this one follows it, as if both had waited together.
        paused = self._confirmed.get(owned, {}).get(producer_id)
        return paused is not None and paused.producer.epoch == epoch

    def _still_waiting(self, owned: OwnedPartition, producer_id: int, epoch: int) -> _ParkedBatches | None:
        """Return the producer's parked batches, or None if it has none.

        If a newer epoch or a marker has ended their transaction, reject and remove them first.
        """
        waiting = self._waiting.get((owned, producer_id))
        if waiting is None:
            return None
        if waiting.producer.epoch < epoch:
            code = ErrorCode.PRODUCER_FENCED  # A newer instance of the producer has taken over.
        elif not owned.log.state.producers.is_verifying(producer_id, waiting.guard):
            code = ErrorCode.INVALID_TXN_STATE  # A marker has ended its transaction.
        else:
            return waiting
        del self._waiting[waiting.key]
        waiting.reject(code)
        return None

    @staticmethod
    def _is_fenced(owned: OwnedPartition, producer_id: int, epoch: int, *, adds: bool) -> bool:
        """Return True if the log knows a newer epoch of the producer, so that the coordinator need not be called.

        Called before the records are validated. adds: the producer uses transaction version 2 (KIP-890), so the
        coordinator adds the partition instead of verifying it.
        """
        entry = owned.log.state.producers.get(producer_id)
        return (
            entry is not None
            and epoch < entry.epoch
            and (adds or owned.log.state.config.verifies_transactions)
        )

    @staticmethod
    def _is_first(
        owned: OwnedPartition, producer_id: int, epoch: int, records: memoryview, *, adds: bool
    ) -> bool:
        """Return True if the transaction must be verified before this batch is appended.

        Invalid batches need no verification, because the log rejects them anyway. adds: the producer uses transaction
        version 2 (KIP-890), so the coordinator adds the partition instead of verifying it.
        """
        log = owned.log
        if (
            producer_id < 0
            or log.state.producers.in_transaction(producer_id, epoch)
            or not (adds or log.state.config.verifies_transactions)
        ):
            return False
        try:
            check_batch(records)
        except KafkaError:
            return False
        return True

    def send_requests(self) -> None:
        """Send the coordinator one call for all partitions of a request."""
        to_verify, self._to_verify = self._to_verify, []
        # A request has one producer. Batches of another one are left only if an exception kept an earlier request from
        # calling send_requests.
        by_producer: dict[tuple[TxnProducer, bool], list[_ParkedBatches]] = {}
        for each in to_verify:
            by_producer.setdefault((each.producer, each.adds), []).append(each)
        for parked in by_producer.values():
            self._request(parked)

    def _request(self, parked: list[_ParkedBatches]) -> None:
        first, on_code = parked[0], partial(self._on_code, parked)
        work = partial(
            self._request_join,
            self._services,
            first.producer,
            [each.owned.key for each in parked],
            adds=first.adds,
            on_code=on_code,
        )
        if not self._services.containment.run(_ASKING, None, work):
            on_code(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _on_code(self, parked: list[_ParkedBatches], code: int) -> None:
        """Append the batches that are still parked, or reject them if their transaction was not confirmed.

        code: the coordinator's error code, NONE for a confirmation.
        """
        if code == ErrorCode.TRANSACTION_ABORTABLE and len(parked) > 1:
            # Some partitions are missing from the transaction, but the one code does not say which. Verify each alone.
            for each in parked:
                self._request([each])
            return
        for each in parked:
            # Skip batches that were rejected or routed to another owner while the coordinator was called.
            if self._waiting.get(each.key) is each:
                del self._waiting[each.key]
                self._services.containment.run(_FINISHING, each, self._finish, each, code)

    def _finish(self, waiting: _ParkedBatches, code: int) -> None:
        if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            # No producer has this id. Discard the verification, because a client could fill the memory with random ids.
            waiting.owned.log.state.producers.finish_verification(waiting.producer.producer_id)
        if code:
            waiting.reject(code)
            return
        first = waiting.batches[0]
        if first.topic_id not in self._services.image.topics_by_id:  # The topic was deleted meanwhile.
            for deferred in waiting.batches:
                deferred.fail(unknown_topic(deferred.version))
            return
        # Queue the confirmed batches for the flush at the end of this duty cycle, so that the first batches of many
        # producers share one write.
        for deferred in waiting.batches:
            records = memoryview(deferred.records)
            self._queue.enqueue(waiting.owned, records, deferred.target, CONFIRMED)
        # If a marker has ended the transaction meanwhile, the log has discarded this guard and the flag has no effect.
        waiting.guard.is_confirmed = True
        self._confirmed.setdefault(waiting.owned, {})[waiting.producer.producer_id] = waiting

    def _on_confirmed(self, owned: OwnedPartition) -> None:
        """Revoke the confirmations of a partition after its flush, so that they hold for the parked batches only."""
        producers = owned.log.state.producers
        for producer_id, waiting in self._confirmed.pop(owned, {}).items():
            waiting.guard.is_confirmed = False
            if producers.in_transaction(producer_id, waiting.producer.epoch):
                producers.finish_verification(producer_id)

    def on_moved(self, moved: Collection[PartitionKey]) -> list[DeferredRecords]:
        """Remove and return the parked batches of these partitions, in order. Their new owners verify them again."""
        leaving = [each for each in self._waiting.values() if each.owned.key in moved]
        for waiting in leaving:
            del self._waiting[waiting.key]
        return [deferred for waiting in leaving for deferred in waiting.batches]
