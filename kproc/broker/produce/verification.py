"""Produce in transactions (KIP-890): a transaction begins in a partition only as its coordinator knows.

The owner of the partition asks, wherever the client is connected. The first batch of a transaction waits until the
coordinator says that it has the partition, and that is durable: else the data could be on the disk, and nobody would
ever end the transaction. From transaction version 2 on (Produce 12) the question itself adds the partition. All that
the same producer sends for the partition meanwhile, by this request's connection or another, waits behind that batch,
and is appended or refused with it: as many requests of a connection are in work at a time, it could overtake it
otherwise. If the partition gets another owner, what waits goes there, in order, and is asked for anew.

A batch of a transaction that is open already waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kproc.broker.peers import transaction_call
from kproc.broker.peers.transaction_call import TxnProducer
from kproc.broker.produce.produce_answers import Pending, failed
from kproc.broker.produce.produce_order import Later
from kproc.broker.request.context import OwnedPartition, PartitionKey, Services
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.storage.producer_state import Verification
from kproc.broker.storage.validate import CONFIRMED, TRANSACTION
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.batch_header import HEADER, HEADER_BYTES
from kproc.wire.record_batch import MAGIC, TRANSACTIONAL, check_batch

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.wire.hot import ProduceRequest

# The Produce of transaction version 2, which no AddPartitionsToTxn comes before.
_FIRST_THAT_ADDS: Final = 12
_FIRST_WITH_ABORTABLE: Final = 11  # An older client does not know TRANSACTION_ABORTABLE.
_ASKING: Final = "asking a transaction's coordinator"
_SETTLING: Final = "what waited for a transaction's coordinator"
# The coordinator's troubles, as errors after which any producer tries again without looking for another broker.
_UNREACHED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22  # Their low byte.


class AskToJoin(Protocol):
    """How the coordinator of a transaction is asked."""

    def __call__(
        self,
        services: Services,
        txn: TxnProducer,
        partitions: Sequence[PartitionKey],
        *,
        adds: bool,
        on_code: Callable[[int], None],
    ) -> None:
        """`on_code` gets NONE if the transaction has them all: `adds` puts them in, and waits until that is durable."""


class Appender(Protocol):
    """What is needed of the ProduceBatcher."""

    def add_many(
        self, context: RequestContext, body: memoryview, request: ProduceRequest, refusal: int = ...
    ) -> None: ...
    def gather(
        self, owned: OwnedPartition, records: memoryview, pending: Pending, at: int, origin: str = ...
    ) -> None: ...
    def flush(self) -> None: ...
    def place(self, later: Later) -> None: ...


def _is_transactional(records: memoryview | bytearray) -> bool:
    return bool(records[_ATTRIBUTES_AT] & TRANSACTIONAL) and records[_MAGIC_AT] == MAGIC


def _producer_of(records: memoryview) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence of a batch."""
    return HEADER.unpack_from(records)[9:12]


class _Waiting:
    """One producer's batches for one partition, in order: the first one of a transaction, and what came behind it."""

    __slots__ = ("adds", "guard", "laters", "owned", "producer")

    def __init__(
        self, owned: OwnedPartition, producer: TxnProducer, guard: Verification, first: Later, *, adds: bool
    ) -> None:
        self.owned = owned
        self.producer = producer
        self.guard = guard
        self.laters = [first]
        self.adds = adds

    @property
    def place(self) -> tuple[OwnedPartition, int]:
        """Where later batches find it."""
        return self.owned, self.producer.producer_id

    def refuse(self, code: int) -> None:
        """Answer them all: if one got into the log, the others could not when they are sent again."""
        for later in self.laters:
            seen, message = _told(code, later.version)
            later.pending.decide(later.at, failed(later.partition, seen, message))

    def fail(self) -> None:
        """A surprise came up."""
        for later in self.laters:
            later.pending.fail()


def _told(code: int, version: int) -> tuple[int, str | None]:
    """A coordinator's error as a producer of that version is told, and why."""
    adds = version >= _FIRST_THAT_ADDS
    if code in _UNREACHED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        why = "Unable to verify the partition has been added to the transaction. Underlying error: "
        return ErrorCode.NOT_ENOUGH_REPLICAS, why + ErrorCode(code).name
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH, None
    if code == ErrorCode.INVALID_TXN_STATE or (
        code == ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE
    ):
        return ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction"
    return code, None


class TransactionalProduce:
    """Produce batches of a Handler that wait until their transaction is verified. Part of its ProduceBatcher."""

    def __init__(self, services: Services, appender: Appender) -> None:
        self._services = services
        self._appender = appender
        self._ask_to_join: AskToJoin = transaction_call.ask_to_join
        self._waiting: dict[tuple[OwnedPartition, int], _Waiting] = {}
        self._to_ask: list[_Waiting] = []  # Of the request that is being taken.
        # What its coordinator has confirmed, until the next flush has appended it.
        self._confirmed: dict[OwnedPartition, dict[int, _Waiting]] = {}  # And by producer id.

    def add(self, context: RequestContext, body: memoryview, request: ProduceRequest) -> None:
        """Take one request with a transactional id, or with batches of transactions."""
        self._appender.add_many(context, body, request, self._refusal_of(context, request))
        self.ask()

    @staticmethod
    def _refusal_of(context: RequestContext, request: ProduceRequest) -> int:
        """Why it is refused as a whole; 0 if it is not."""
        producers: set[tuple[int, int]] = set()
        has_any = False
        for topic in request.topics:
            for _, records in topic.partitions:
                if records is None or len(records) <= _ATTRIBUTES_AT or not _is_transactional(records):
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
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if len(producers) > 1 else ErrorCode.NONE

    def take(
        self,
        owned: OwnedPartition,
        topic_id: bytes,
        records: memoryview,
        pending: Pending,
        at: int,
        version: int,
    ) -> None:
        """Records of any request for a partition of ours; `ask` must follow if it has a transactional id."""
        transactional_id = pending.transactional_id
        if transactional_id is None or len(records) < HEADER_BYTES or not _is_transactional(records):
            self._appender.gather(owned, records, pending, at)
        else:
            later = Later(topic_id, owned.key[1], records, pending, at, version)
            self._take(owned, transactional_id, records, later)

    def _take(self, owned: OwnedPartition, transactional_id: str, records: memoryview, later: Later) -> None:
        """A batch of a transaction: for the log, or for those that wait for its coordinator."""
        pending = later.pending
        producer_id, epoch, sequence = _producer_of(records)
        if producer_id in self._confirmed.get(owned, ()):
            self._appender.flush()  # What it is after that, the log knows.
        waiting = self._still_waiting(owned, producer_id, epoch)
        if waiting is not None and waiting.producer.epoch > epoch:
            pending.decide(later.at, failed(later.partition, ErrorCode.INVALID_PRODUCER_EPOCH))
            return
        if waiting is not None:
            waiting.laters.append(later._replace(records=bytearray(records)))
            return
        adds = later.version >= _FIRST_THAT_ADDS
        if self._is_fenced(owned, producer_id, epoch, adds=adds):
            pending.decide(later.at, failed(later.partition, ErrorCode.INVALID_PRODUCER_EPOCH))
            return
        if not self._is_first(owned, producer_id, epoch, records, adds=adds):
            self._appender.gather(owned, records, pending, later.at, TRANSACTION)
            return
        guard = owned.log.producers.begin_verification(
            producer_id, epoch, sequence, owns_epoch=adds, now_ms=self._services.clock.wall_ms()
        )
        producer = TxnProducer(transactional_id, producer_id, epoch)
        waiting = _Waiting(owned, producer, guard, later._replace(records=bytearray(records)), adds=adds)
        self._waiting[waiting.place] = waiting
        self._to_ask.append(waiting)

    def _still_waiting(self, owned: OwnedPartition, producer_id: int, epoch: int) -> _Waiting | None:
        """What a producer waits for here, unless that is over already."""
        waiting = self._waiting.get((owned, producer_id))
        if waiting is None:
            return None
        if waiting.producer.epoch < epoch:
            code = ErrorCode.PRODUCER_FENCED  # It has a successor.
        elif not owned.log.producers.is_verifying(producer_id, waiting.guard):
            code = ErrorCode.INVALID_TXN_STATE  # A marker has ended its transaction.
        else:
            return waiting
        del self._waiting[waiting.place]
        waiting.refuse(code)
        return None

    @staticmethod
    def _is_fenced(owned: OwnedPartition, producer_id: int, epoch: int, *, adds: bool) -> bool:
        """Whether the coordinator need not be asked: the log knows a successor. Its records are not looked at."""
        entry = owned.log.producers.get(producer_id)
        return entry is not None and epoch < entry.epoch and (adds or owned.log.config.verifies_transactions)

    @staticmethod
    def _is_first(
        owned: OwnedPartition, producer_id: int, epoch: int, records: memoryview, *, adds: bool
    ) -> bool:
        """Whether the coordinator must be asked, and the log would not refuse the batch anyway."""
        log = owned.log
        if (
            producer_id < 0
            or log.producers.in_transaction(producer_id, epoch)
            or not (adds or log.config.verifies_transactions)
        ):
            return False
        try:
            check_batch(records)
        except KafkaError:
            return False
        return True

    def ask(self) -> None:
        """Ask the coordinator about the partitions of a request, all at once."""
        to_ask, self._to_ask = self._to_ask, []
        by_producer: dict[tuple[TxnProducer, bool], list[_Waiting]] = {}  # One, but for what a surprise left.
        for each in to_ask:
            by_producer.setdefault((each.producer, each.adds), []).append(each)
        for asked in by_producer.values():
            self._ask(asked)

    def _ask(self, asked: list[_Waiting]) -> None:
        first, answered = asked[0], partial(self._answered, asked)
        work = partial(
            self._ask_to_join,
            self._services,
            first.producer,
            [each.owned.key for each in asked],
            adds=first.adds,
            on_code=answered,
        )
        if not self._services.containment.run(_ASKING, None, work):
            answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _answered(self, asked: list[_Waiting], code: int) -> None:
        """What the coordinator says."""
        if code == ErrorCode.TRANSACTION_ABORTABLE and len(asked) > 1:
            for each in asked:  # It has not got them all: which ones?
                self._ask([each])
            return
        for each in asked:
            if self._waiting.get(each.place) is each:  # Else it was answered, or has gone to another owner.
                del self._waiting[each.place]
                self._services.containment.run(_SETTLING, each, self._settle, each, code)

    def _settle(self, waiting: _Waiting, code: int) -> None:
        if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            # Nobody has this id, and there are 2^63 of them: no try of it is to be remembered.
            waiting.owned.log.producers.end_verification(waiting.producer.producer_id)
        if code:
            waiting.refuse(code)
            return
        first = waiting.laters[0]
        if first.topic_id not in self._services.image.topics_by_id:  # It was deleted meanwhile.
            self._place_anew(waiting)
            return
        # Behind what was gathered before, whatever that is; the first batches of many producers become one write.
        for later in waiting.laters:
            records = memoryview(later.records)
            self._appender.gather(waiting.owned, records, later.pending, later.at, CONFIRMED)
        waiting.guard.is_confirmed = True  # Says nothing if a marker has ended this guard meanwhile.
        self._confirmed.setdefault(waiting.owned, {})[waiting.producer.producer_id] = waiting

    def appended(self, owned: OwnedPartition) -> None:
        """They are in the log, or refused: a confirmation is for what waited, and for nothing else."""
        producers = owned.log.producers
        for producer_id, waiting in self._confirmed.pop(owned, {}).items():
            waiting.guard.is_confirmed = False
            if producers.in_transaction(producer_id, waiting.producer.epoch):
                producers.end_verification(producer_id)

    def on_moved(self, moved: Collection[PartitionKey]) -> None:
        """These have new owners, who ask for themselves."""
        for waiting in [each for each in self._waiting.values() if each.owned.key in moved]:
            del self._waiting[waiting.place]
            self._place_anew(waiting)

    def _place_anew(self, waiting: _Waiting) -> None:
        for later in waiting.laters:
            self._appender.place(later)
