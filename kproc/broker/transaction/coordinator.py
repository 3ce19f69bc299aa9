"""TransactionCoordinator: the transactional ids of one partition of `__transaction_state`. No I/O, no clock of its own.

The rules are those of Kafka's TransactionCoordinator, TransactionStateManager and TransactionMarkerChannelManager. What
must be durable before what:

    InitProducerId, AddPartitionsToTxn   the response is sent when the record is durable
    EndTxn                               the response and the first marker are sent when Prepare* is durable; a
                                         coordinator that has loaded Prepare* syncs it first, too
    Complete*                            written when the markers of all partitions are durable; nothing waits for it

The state follows the log: it changes when a record is appended. Until the record is durable, the id has a *pending*
state, and other requests get CONCURRENT_TRANSACTIONS, as in Kafka. Two things differ from Kafka, and clients do not
notice them:

- Partitions may be added while the record of an earlier add is not durable. Each record has all partitions so far.
- An add that arrives while the previous transaction is being completed waits for its end. In Kafka the client retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.coordinator.memory_limit import CountedMemory
from kproc.broker.coordinator.rules import Code, DueOf, KnownTopics, OnCode, Producer, Write, write_error
from kproc.broker.coordinator.steps import Steps, Work
from kproc.broker.transaction import rules
from kproc.broker.transaction.entry import (
    PARTITION_BYTES,
    Entry,
    Environment,
    WaitingAdd,
    bytes_of_id,
)
from kproc.broker.transaction.expiry import TransactionExpiry
from kproc.broker.transaction.marker_delivery import MARKERS, MarkerDelivery
from kproc.broker.transaction.messages import AddRequest, EndRequest, Granted, InitRequest, Overview
from kproc.broker.transaction.records import (
    FLEXIBLE,
    PLAIN,
    UnknownKey,
    decode_record,
    encode_key,
    encode_value,
)
from kproc.broker.transaction.state import (
    COMPLETED,
    FLEXIBLE_RECORDS,
    NO_ID,
    PREPARED,
    State,
    Transaction,
)
from kproc.common.clock import NS_PER_MS
from kproc.common.deadlines import Deadlines
from kproc.common.errors import RETRIABLE, ErrorCode, KafkaError
from kproc.common.log_rate import LogRate
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog

logger = logging.getLogger(__name__)

OnGranted = Callable[[Granted], None]

# Costs of work that runs in steps, in units of about 1 us: to check one transactional id, and to write one record.
_CHECK_COST: Final = 5
_WRITE_COST: Final = 60
# A transaction of at most this number of partitions may use the reserve of the limit of memory.
SMALL_TRANSACTION: Final = 100
# Names of deadlines: to check the timeouts of ongoing transactions, and to fail adds that wait for too long.
_TIMEOUTS, _WAITING = "timeouts", "waiting"
_CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinator:
    """The coordinator of one partition of `__transaction_state`.

    Its `epoch` is higher than that of every earlier coordinator of the partition.
    """

    def __init__(
        self, environment: Environment, log: CoordinatorLog[Any], deadlines: Deadlines[DueOf], epoch: int
    ) -> None:
        self._config = environment.config
        self._environment = environment
        self._timing = environment.timing
        self._log = log
        self._deadlines = deadlines
        self._entries: dict[str, Entry] = {}
        self._memory = CountedMemory(environment.memory)
        # By transactional id, the monotonic time in ms since which its ongoing transaction is known here.
        self._ongoing: dict[str, int] = {}
        self._markers = MarkerDelivery(self, environment, log, deadlines, epoch)
        self._expiry = TransactionExpiry(self, self._entries, environment, log)
        # By transactional id, the AddPartitionsToTxn requests that wait for the end of the previous transaction.
        self._waiting: dict[str, list[WaitingAdd]] = {}
        self.steps = Steps(log.flush)
        self._rejection_lines = LogRate(
            logger, "rejected %d more AddPartitionsToTxn with too many partitions"
        )
        self._is_sweeping = False
        self._is_over = False
        self.state_counts = [0] * len(State)  # The number of ids in each state.

    # -- loading -----------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay the last record of a transactional id. Raises Corrupt if the record cannot be decoded."""
        del offset, producer  # The latest record of an id is its state.
        try:
            name, transaction = decode_record(key, value)
        except UnknownKey as unknown:
            logger.warning("a record of __transaction_state is skipped: %s", unknown)
            return
        entry = self._entries[name] = Entry(name)
        self.set_appended(entry, transaction)

    def finish_loading(self, topics: KnownTopics) -> None:
        """Start the timeouts of ongoing transactions.

        Send the markers of decided transactions, because the last coordinator may not have sent them.
        """
        del topics  # Sending a marker shows whether its partition was deleted.
        self.steps.add(self._finish_loading())

    def _finish_loading(self) -> Work:
        decided: list[Entry] = []
        for entry in list(self._entries.values()):
            assert entry.appended is not None
            self._follow(entry, entry.appended)
            if entry.appended.state in PREPARED:
                decided.append(entry)
            yield _CHECK_COST
        self._environment.memory.accept_load()
        # Sync the decisions before their markers are sent, because the last coordinator may have died before the
        # decisions were durable.
        if decided:
            self._markers.start_after_sync(decided)

    # -- requests ----------------------------------------------------------------------------------------------

    def init(self, name: str, request: InitRequest, reply: OnGranted, spare_id: int = NO_ID) -> None:
        """Handle an InitProducerId with a transactional id.

        `spare_id` is an unused producer id. Without one, allocate it if rules.init needs it, and call this again.
        """
        entry = self._entries.get(name)
        if self._is_over or (entry is not None and entry.is_pending):
            reply(Granted(self._refusal()))
            return
        now_ms = self._timing.wall_ms()
        current = entry.appended if entry is not None else None
        decision = rules.init(current, request, now_ms, spare_id)
        if decision is rules.NEEDS_ID:
            self._retry_with_id(partial(self.init, name, request, reply), reply)
        elif isinstance(decision, Transaction):
            if entry is None:
                if not self._environment.memory.has_room(bytes_of_id(name, decision)):
                    reply(Granted(ErrorCode.POLICY_VIOLATION))
                    return
                entry = self._entries[name] = Entry(name)
            granted = Granted(ErrorCode.NONE, decision.producer_id, decision.epoch)
            self._write(entry, decision, lambda code: reply(Granted(code) if code else granted))
        # KIP-98: a new producer with this transactional id fences the old one. As in Kafka, abort its transaction with
        # a raised epoch, and answer CONCURRENT_TRANSACTIONS until the markers are written.
        elif entry is not None and entry.name in self._ongoing and decision == _CONCURRENT:
            # The new producer retries after CONCURRENT_TRANSACTIONS and then finds the transaction aborted.
            self.fence(entry, lambda code: reply(Granted(code or _CONCURRENT, has_aborted=not code)))
        else:
            assert isinstance(decision, ErrorCode)
            reply(Granted(decision))

    def add(self, name: str, request: AddRequest, on_code: OnCode) -> None:
        """Add partitions to a transaction. `on_code` gets NONE when they are durable, or an error.

        An add that arrives before the previous transaction is completed waits for its end, at most
        add.partitions.to.txn.retry.backoff.max.ms (KIP-890).
        """
        limit_ms = self._config.add_partitions_to_txn_retry_backoff_max_ms
        self._add(name, WaitingAdd(self._timing.now_ms() + limit_ms, request, on_code))

    def _add(self, name: str, add: WaitingAdd) -> None:
        if self._is_over:
            add.on_code(ErrorCode.NOT_COORDINATOR)
            return
        entry = self._entries.get(name)
        if entry is None:
            add.on_code(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        decision: Transaction | ErrorCode = _CONCURRENT
        if entry.may_grow:
            decision = rules.add(entry.latest, add.request, self._timing.wall_ms())
        if isinstance(decision, Transaction):
            is_small = len(decision.partitions) <= SMALL_TRANSACTION
            known = 0 if entry.appended is None else len(entry.appended.partitions)
            added = (len(decision.partitions) - known) * PARTITION_BYTES
            if not self._environment.memory.has_room(added, with_reserve=is_small):
                add.on_code(ErrorCode.POLICY_VIOLATION)
                return
            self._write(entry, decision, add.on_code)
        elif decision == _CONCURRENT and add.until_ms > self._timing.now_ms():
            self._waiting.setdefault(name, []).append(add)
            # KIP-890: the next transaction often begins before the markers of the previous one are written. A wait of
            # some ms is shorter than the client's backoff after CONCURRENT_TRANSACTIONS.
            self._deadlines.bring_forward((self, _WAITING), add.until_ms)
        elif decision == ErrorCode.NONE:
            # The partitions are in the transaction already, but their record may not be durable yet. An empty write is
            # confirmed after all earlier ones.
            self._log.write(Write([], lambda code: self._confirm_added(name, add, code)))
        else:
            # The response has no field for a message.
            if decision == ErrorCode.POLICY_VIOLATION and self._rejection_lines.has_room(
                self._timing.now_ms() * NS_PER_MS
            ):
                logger.warning(
                    "transactional id %s: rejected an AddPartitionsToTxn, because a transaction can have %d partitions",
                    printable(name),
                    rules.PARTITIONS_MAX,
                )
            add.on_code(decision)

    def _confirm_added(self, name: str, add: WaitingAdd, code: int) -> None:
        """Answer an AddPartitionsToTxn whose partitions were in the pending write of an earlier request.

        If that write failed, add the partitions.
        """
        entry = self._entries.get(name)
        current = entry.appended if entry is not None else None
        if code or rules.add(current, add.request, self._timing.wall_ms()) == ErrorCode.NONE:
            add.on_code(write_error(code))
        else:
            self._add(name, add)

    def verify(self, name: str, request: AddRequest) -> list[ErrorCode]:
        """Return NONE or an error for each partition that is to be verified (KIP-890)."""
        entry = self._entries.get(name)
        if entry is not None and entry.has_writes:
            # Queued writes may add the partitions to be verified, so append these writes first.
            self._log.flush()
            entry = self._entries.get(name)
        return rules.verify(entry.appended if entry is not None else None, request)

    def end(self, name: str, request: EndRequest, reply: OnGranted, spare_id: int = NO_ID) -> None:
        """Handle an EndTxn. Respond when the decision is durable. The markers are sent afterwards."""
        entry = self._entries.get(name)
        if self._is_over or (entry is not None and entry.is_pending):
            reply(Granted(self._refusal()))
            return
        decision = rules.end(
            entry.appended if entry is not None else None, request, self._timing.wall_ms(), spare_id
        )
        if decision is rules.NEEDS_ID:
            self._retry_with_id(partial(self.end, name, request, reply), reply)
        elif isinstance(decision, Transaction):
            assert entry is not None
            # KIP-890: the EndTxn response has the producer id and epoch of the next transaction, so compute the
            # completed state before the markers are sent.
            ended = rules.complete(decision, decision.updated_ms)
            granted = Granted(ErrorCode.NONE, ended.producer_id, ended.epoch)
            self._prepare(entry, decision, lambda code: reply(Granted(code) if code else granted))
        elif decision == ErrorCode.NONE:
            # The transaction has already ended as the request says: the client repeats an EndTxn whose response was
            # lost.
            assert entry is not None
            assert entry.appended is not None
            reply(Granted(ErrorCode.NONE, entry.appended.producer_id, entry.appended.epoch))
        else:
            assert isinstance(decision, ErrorCode)
            reply(Granted(decision))

    def _refusal(self) -> ErrorCode:
        # As in Kafka, a request gets CONCURRENT_TRANSACTIONS while a state is being written, because the client retries
        # then.
        return ErrorCode.NOT_COORDINATOR if self._is_over else _CONCURRENT

    def _retry_with_id(self, retry: Callable[[int], None], reply: OnGranted) -> None:
        """Allocate a producer id, then handle the whole request again, because the state may have changed meanwhile."""
        on_id = self._log.guarded(retry)
        self._environment.new_producer_id(on_id, lambda error: reply(Granted(_no_id(error))))

    # -- from state to state -----------------------------------------------------------------------------------

    def _write(self, entry: Entry, target: Transaction, on_done: OnCode) -> None:
        """Write a new state of an id. `on_done` gets NONE when the record is durable, or the error for the client."""
        entry.start_write(target)
        # A record of a producer id change needs the old and the new id, and only the flexible version has fields for
        # both.
        is_flexible = target.changes_its_id or self._environment.cluster_version() >= FLEXIBLE_RECORDS
        version = FLEXIBLE if is_flexible else PLAIN
        record = encode_key(entry.name), encode_value(target, version)

        is_appended = False

        def apply(_number: int, _offset: int) -> None:
            nonlocal is_appended
            is_appended = True
            entry.discard_unappended(target)
            self._follow(entry, target)

        def on_written(code: int) -> None:
            if not is_appended:
                entry.discard_unappended(target)
            self.finish_write(entry)
            on_done(write_error(code))

        # No request waits until Complete* is durable, because records that depend on it follow in the same log.
        is_awaited = target.state not in COMPLETED
        self._log.write(Write([record], on_written, apply, is_awaited=is_awaited))

    def finish_write(self, entry: Entry) -> None:
        """Count the end of a write. When the id has no other write, resume its waiting AddPartitionsToTxn requests."""
        if not entry.finish_write() or self._is_over:
            return
        if entry.appended is None:
            del self._entries[entry.name]  # Its first record could not be written.
        self._resume(entry.name)

    def _follow(self, entry: Entry, target: Transaction) -> None:
        """Set the current state of an id to an appended or replayed one. Start or stop the transaction's timeout.

        If the transaction was decided, note that its markers must be sent.
        """
        self.set_appended(entry, target)
        if target.state == State.ONGOING:
            if not self._ongoing:
                self._check_timeouts_later()
            self._ongoing.setdefault(entry.name, self._timing.now_ms())
        else:
            self._ongoing.pop(entry.name, None)
            if target.state in PREPARED:
                entry.owe_markers()

    def set_appended(self, entry: Entry, target: Transaction | None) -> None:
        """Set the last state of a transactional id in the log, and update the counts by state.

        `target` is None if the id was removed.
        """
        if target is entry.appended:
            return  # The end of a load follows the state that the replay has set.
        if entry.appended is not None:
            self.state_counts[entry.appended.state] -= 1
            self._memory.add(-bytes_of_id(entry.name, entry.appended))
        if target is not None:
            self.state_counts[target.state] += 1
            self._memory.add(bytes_of_id(entry.name, target))
        entry.appended = target

    def _resume(self, name: str) -> None:
        """Repeat the AddPartitionsToTxn requests that waited for the end of a transaction of `name`, in order."""
        for add in self._waiting.pop(name, ()):
            self._add(name, add)

    def _prepare(self, entry: Entry, target: Transaction, on_done: OnCode) -> None:
        """Write PrepareCommit or PrepareAbort. When it is durable, send the markers. Call `on_done` with its code."""

        def on_written(code: int) -> None:
            # An appended decision is final even if its sync failed: retry the sync before sending markers.
            if not self._is_over and entry.appended is target:
                if code:
                    self._markers.retry_sync(entry)
                else:
                    self._markers.start(entry)
            on_done(code)

        self._write(entry, target, on_written)

    def fence(self, entry: Entry, on_done: OnCode, spare_id: int = NO_ID) -> None:
        """Abort an ongoing transaction with a raised epoch, so that its producer cannot write any more.

        on_done: gets the error code, which is NONE when the abort is written.
        spare_id: a new producer id, needed if the epochs of the present one are used up. Without it one is requested.
        """
        current = entry.settled
        if self._is_over or current is None or current.state != State.ONGOING:
            on_done(self._refusal())
            return
        decision = rules.fence(current, self._environment.cluster_version(), self._timing.wall_ms(), spare_id)
        if isinstance(decision, Transaction):
            self._prepare(entry, decision, on_done)
            return
        on_id = self._log.guarded(partial(self.fence, entry, on_done))
        self._environment.new_producer_id(on_id, lambda error: on_done(_no_id(error)))

    def complete(self, entry: Entry) -> None:
        """Write Complete*, because every partition has its marker."""
        prepared = entry.appended
        assert prepared is not None

        def on_done(code: int) -> None:
            # A failed Complete* loses nothing: the markers are written, and Prepare* is still the state. Write it
            # again, or the id would answer CONCURRENT_TRANSACTIONS for ever.
            if code and not self._is_over and entry.appended is prepared:
                self._markers.retry(entry)

        self._write(entry, rules.complete(prepared, self._timing.wall_ms()), on_done)

    # -- time --------------------------------------------------------------------------------------------------

    def tick(self, name: str) -> None:
        """Handle one of the coordinator's deadlines: timeouts of transactions, waiting requests, or markers to send."""
        if name == MARKERS:
            self._markers.send_due()
        elif name == _TIMEOUTS:
            self.steps.add(self._abort_timed_out())
        else:
            self._expire_waiting()

    def _abort_timed_out(self) -> Work:
        yield from self._expiry.abort_timed_out(self._ongoing)
        if self._ongoing:
            self._check_timeouts_later()

    def _check_timeouts_later(self) -> None:
        interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._deadlines.bring_forward((self, _TIMEOUTS), self._timing.now_ms() + interval_ms)

    def _expire_waiting(self) -> None:
        """Handle all waiting AddPartitionsToTxn requests again.

        Requests beyond their time limit fail. The others wait again if their last transaction is still not completed.
        """
        for name in list(self._waiting):
            self._resume(name)

    def start_sweep(self) -> None:
        """Start to look for unused ids and for transactions beyond their timeout.

        Called every transaction.remove.expired.transaction.cleanup.interval.ms, and when a test has moved the broker's
        time, because the next regular check of the timeouts can be a whole interval away.
        """
        if not self._is_sweeping:
            self._is_sweeping = True
            self.steps.add(self._sweep())

    def _sweep(self) -> Work:
        yield from self._expiry.abort_timed_out(self._ongoing)
        yield from self._expiry.remove_unused()
        self._is_sweeping = False

    # -- descriptions ------------------------------------------------------------------------------------------

    def read(self, name: str, on_done: Callable[[Code, Transaction | None], None]) -> None:
        """Read the state of an id. `on_done` gets the state when its record is as durable as acks=all promises.

        Otherwise a power loss could undo a decision or a producer id that a client was already told.
        """
        found = self.describe(name)
        transaction = None if found is None else found.transaction
        if transaction is not None and transaction.state in PREPARED:
            # As in Kafka, a partition disappears from the description when it has its marker, so that an administrator
            # sees for which ones a transaction waits.
            unmarked = self._entries[name].unmarked
            transaction = msgspec.structs.replace(transaction, partitions=unmarked)
        self._log.write(Write([], lambda error: on_done(write_error(error), transaction)))

    def describe(self, name: str) -> Overview | None:
        """Return the state of an id in the log. None if it is unknown."""
        self._log.flush()
        entry = self._entries.get(name)
        return Overview(name, entry.appended) if entry is not None and entry.appended is not None else None

    def overviews(self) -> Iterator[Overview]:
        """Yield an overview of each id that exists at the call, for ListTransactions.

        The iterator reads the state of an id when it comes to that id.
        """
        self._log.flush()
        return (
            Overview(entry.name, entry.appended)
            for entry in list(self._entries.values())
            if entry.appended is not None
        )

    def count_retries(self) -> tuple[int, int]:
        """Return (number of transactions that will send markers again, number that will write Complete* again)."""
        return self._markers.count_retries()

    # -- release -----------------------------------------------------------------------------------------------

    def topics_deleted(self, topics: KnownTopics) -> None:
        """Do nothing, because a deleted partition answers a marker with an error that counts as written."""

    def resign(self) -> None:
        """Append the queued writes, and answer all waiting requests with NOT_COORDINATOR in the next steps.

        Called when another Handler takes over the partition.
        """
        self._log.flush()
        self.abandon()

    def abandon(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR in the next steps. Append no queued write.

        Called when an unexpected exception left the state half changed. The runtime then fails the queued
        writes and loads the coordinator again.
        """
        self._is_over = self._markers.is_over = True
        # The next coordinator may be loaded before the ids are freed.
        self._memory.resize(0)
        for name in (_TIMEOUTS, MARKERS, _WAITING):
            self._deadlines.discard((self, name))
        self.steps.replace_all(self._answer_waiting())

    def _answer_waiting(self) -> Work:
        for name in list(self._waiting):
            self._resume(name)
            yield _WRITE_COST
        # Free the ids in steps, because freeing 100,000 at once would delay the Handler's other work.
        while self._entries:
            self._entries.popitem()
            yield 1


def _no_id(error: KafkaError) -> ErrorCode:
    """Return the error for the client if no producer id can be allocated. As in Kafka, clients retry after it."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.code in RETRIABLE else error.code
