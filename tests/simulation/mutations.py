"""Mutations of the code: each takes something away that the broker's promises rest on, and must be noticed.

`hunt` runs seeds with a mutation until one fails that passes without it, and says how many that took.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import structs

from kproc.broker.acceptor.handoff_queue import HandoffQueue
from kproc.broker.calls.call_links import Calls
from kproc.broker.cleaner import checkpoint_writer
from kproc.broker.cleaner.checkpoint_writer import CheckpointWriter
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.controller.pending_deletions import PendingDeletions
from kproc.broker.coordinator.coordinator_epochs import CoordinatorEpochs
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.recorded_states import RecordedGroups
from kproc.broker.group import classic_groups
from kproc.broker.group.classic_groups import ClassicGroups
from kproc.broker.group.consumer import group as consumer_group
from kproc.broker.group.consumer import reconciliation
from kproc.broker.group.consumer.records import MemberState
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.handler import checkpoint as handler_checkpoint
from kproc.broker.handler.handler import Handler
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.ipc.wait import Waker
from kproc.broker.ipc.words import read_row
from kproc.broker.processor.address_shares import share_key
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.handler_assignment import HandlerAssignment
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.handshakes import Handshakes, WaitingHello
from kproc.broker.processor.response_writer import ResponseWriter
from kproc.broker.processor.tls_connections import TlsConnections
from kproc.broker.processor.tls_transport import TlsShare, TlsTransport
from kproc.broker.request.divided_requests import DividedRequests
from kproc.broker.role.due_time import DueTime
from kproc.broker.role.partition_table import ROW_WORDS, PartitionRow, PartitionTable
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.role.role import Role
from kproc.broker.role.roles import HANDLER
from kproc.broker.security.authorizer import StandardAuthorizer
from kproc.broker.security.tls import make_context
from kproc.broker.share.partition.dead_letters import DeadLetterWriter
from kproc.broker.share.partition.in_flight import InFlightRecords, ToPersist
from kproc.broker.share.partition.locks import Locks
from kproc.broker.share.partition.share_partition import SharePartition
from kproc.broker.storage import checkpoints
from kproc.broker.storage import log as log_module
from kproc.broker.storage.log_append import AppendRun, LogAppender
from kproc.broker.storage.log_durability import LogDurability
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.results import AppendResult
from kproc.broker.streams import reconciliation as streams_reconciliation
from kproc.broker.streams.records import StreamsGroupEpoch, StreamsTargetEpoch
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.supervisor_operations import SupervisorOperations
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.marker_delivery import MarkerDelivery
from kproc.broker.transaction.state import PREPARED, State
from kproc.broker.transport.agent import AgentId
from tests.simulation import doubles
from tests.simulation.directed import DIRECTED
from tests.simulation.plan import Plan, plan_of
from tests.simulation.run import simulate

_QUIET: Final = 1 << 32
_FLAGS: Final = 3 << 32
_OPEN_HANDOFF: Final = HandoffQueue.detach
_SYNC_POINT: Final = LogDurability.sync_point
_MARK_SYNCED: Final = LogDurability.mark_synced
_WHEN_SYNCED: Final = OwnedPartition.when_synced
_SYNC: Final = doubles.OsDouble.fdatasync
_WRITE: Final = CoordinatorLog.write
_APPLY: Final = ClusterImage.apply_records
_STALL: Final = ConnectionTable.stall
_ENQUEUE: Final = ResponseWriter._enqueue
_HAS_ANSWERS: Final = HandlerSet.has_answers
_ADMIT: Final = ProducerTable.admit
_EXPORT: Final = ProducerTable.export
_REPLAY: Final = GroupCoordinator.replay
_SEND_DUE: Final = MarkerDelivery.send_due
_WRITE_STATE: Final = TransactionCoordinator._write
_UPDATE: Final = CheckpointWriter._update
_UNDO: Final = LogAppender._undo
_STEP_LARGE: Final = DividedRequests.work
_APPEND_TO_GROUP: Final = RecordedGroups.append
_ACKNOWLEDGE: Final = SharePartition.acknowledge
_WRITE_LETTERS: Final = DeadLetterWriter.write
_TO_PERSIST: Final = InFlightRecords.to_persist
_ACQUIRE_AGAIN: Final = InFlightRecords.acquire_again
_REQUEST_ALL: Final = SupervisorOperations._request_all
_ADD_UNWRITTEN: Final = ClassicGroups.add_unwritten


def _nothing(*_: Any, **__: Any) -> None:
    """Not done any more."""


def _mark_synced_with_the_active_segment(self: Any, point: Any) -> None:
    """A round's end strikes off the segment that was active at its point, though it grew since."""
    _MARK_SYNCED(self, point)
    self._state.unsynced.remove_segments(point.segments)


def _answered_at_once(self: Any, offset: int, on_done: Callable[[int], None]) -> None:
    if self.is_recovering:  # Readers would ask again for ever.
        _WHEN_SYNCED(self, offset, on_done)
        return
    if self.log.state.recovery_point < offset:
        self._unsynced[self] = None
    on_done(0)


def _append_visible(
    self: Any, batches: list[memoryview], origin: str, _hidden_from: int
) -> list[AppendResult]:
    """Records with acks=all are visible before their sync."""
    return self.append(batches, origin)  # type: ignore[no-any-return]


def _refused_but_not_undone(self: Any, run: Any, failure: Any, results: Any) -> None:
    """The producers of a write that failed count its batches as stored."""
    _UNDO(self, AppendRun(run.first, run.tail_count), failure, results)


def _all_slices_at_once(self: Any) -> int:
    work = 0
    while self.is_ready():
        work += _STEP_LARGE(self)
    return work


def _added_without_a_bound(self: Any, group_id: str) -> Any:
    bound = classic_groups.UNWRITTEN_GROUPS_MAX
    classic_groups.UNWRITTEN_GROUPS_MAX = 1 << 30  # type: ignore[misc]
    try:
        return _ADD_UNWRITTEN(self, group_id)
    finally:
        classic_groups.UNWRITTEN_GROUPS_MAX = bound  # type: ignore[misc]


def _appended_without_member_states(self: Any, group: Any, records: Any) -> None:
    """Apply the states of members (record 8) without writing them."""
    for key, value in records:
        if isinstance(value, MemberState):
            group.state.apply(key, value)
    _APPEND_TO_GROUP(self, group, [record for record in records if not isinstance(record[1], MemberState)])


def _appended_with_first_epochs(self: Any, group: Any, records: Any) -> None:
    """Apply all epochs of a streams group (records 17 and 20), and write only the first of each."""
    kept = []
    for key, value in records:
        is_known = isinstance(value, StreamsGroupEpoch) and group.state.epoch.epoch > 0
        is_known |= isinstance(value, StreamsTargetEpoch) and group.state.target_epoch.epoch > 0
        if is_known:
            group.state.apply(key, value)
        else:
            kept.append((key, value))
    _APPEND_TO_GROUP(self, group, kept)


def _row_of_any_generation(self: Any, partition: Any) -> PartitionRow | None:
    values = read_row(self._words, partition.slot * ROW_WORDS, 8)
    if values is None or not values[0]:
        return None
    word, generation, start, end, base, position, synced, visible = values
    return PartitionRow(
        (word & ~_FLAGS) - 2, generation, start, end, base, position, synced, visible, not word & _QUIET
    )


def _lose_without_closing(self: Any, handler: Any) -> None:
    handler.detach()
    self._handlers.links_changed()
    self._migration.handler_lost(handler)
    self._timed.discard_handler(handler.peer)
    self._blocks.release_all_of(handler)


def _answered_without_writing(self: Any) -> None:
    waiting, self._wait_for_checkpoint = self._wait_for_checkpoint, []
    for _, on_reply in waiting:
        on_reply({"error": None})


def _detach_without_requeue(self: Any, peer: Any) -> None:
    for target in [each for each in self._targets if each.peer == peer]:
        target.unacknowledged.clear()
    _OPEN_HANDOFF(self, peer)


def _delivered_in_any_order(
    self: Any, connection: Any, _sequence: int, kind: int, body: memoryview, touched: Any
) -> int:
    return int(_ENQUEUE(self, connection, connection.next_send, kind, body, touched))


def _sync_point_without_directories(self: Any, *, closes: bool = False) -> Any:
    self._state.unsynced.directories = []
    return _SYNC_POINT(self, closes=closes)


def _fdatasync_but_of_metadata(self: Any, fd: int) -> None:
    if "__cluster_metadata" not in doubles.host.kernel.file(fd).path:  # type: ignore[attr-defined]
        _SYNC(self, fd)


def _admit_duplicates(self: Any, *arguments: Any, **more: Any) -> Any:
    _ADMIT(self, *arguments, **more)


def _written_after_the_answer(self: Any, write: Any) -> None:
    write.on_done(0)
    write.on_done = _nothing
    _WRITE(self, write)


def _applied_twice(self: Any, records: Any, version: int) -> Any:
    _APPLY(self, records, version)
    return _APPLY(self, records, version)


def _some_deltas_lost(self: Any, records: Any, version: int) -> Any:
    return _APPLY(self, [] if version % 3 == 0 else records, version)


def _stalled_unseen(self: Any, connection: Any) -> None:
    _STALL(self, connection)
    self._state.is_pressed = False


def _nobody_asked(self: Any, roles: Any, what: str, body: Any, on_all: Any) -> None:
    on_all({})


def _all_but_one_asked(self: Any, roles: Any, what: str, body: Any, on_all: Any) -> None:
    told = [role for role in roles if role.agent != AgentId(HANDLER, 0)]
    _REQUEST_ALL(self, told, what, body, on_all)


def _found_and_forgotten(self: Any) -> bool:
    found = _HAS_ANSWERS(self)
    self.may_have_answers = False
    return found


def _detach_unheard(self: Any, role: Any, *, is_final: bool) -> None:
    """Peers are not told that it is gone; they learn of its successor."""
    for other in self.table:
        other.users.discard(role.agent)
        other.migrations.discard(role.agent)
        other.peers.discard(role.agent)
    self.regions.forget(role.agent, is_final=is_final)


def _markers_sent_at_once(self: Any, entry: Any, target: Any, on_done: Any) -> None:
    self._write(entry, target, on_done)
    self._log.flush()
    if entry.appended is target:
        self._markers.start(entry)


def _completed_at_once(self: Any) -> None:
    due = [entry for entry, at_ms in self._due.items() if at_ms <= self._now_ms()]
    _SEND_DUE(self)
    for entry in due:
        if entry.appended.state in PREPARED and not entry.is_pending:
            self._coordinator.complete(entry)


def _loaded_without_markers(self: Any, _topic_id_of: Any) -> None:
    for entry in self._entries.values():
        self._follow(entry, entry.appended)


def _answered_when_written(state: State) -> Any:
    def write(self: Any, entry: Any, target: Any, on_done: Any) -> None:
        if target.state == state:
            on_done(0)
            on_done = _nothing
        _WRITE_STATE(self, entry, target, on_done)

    return write


def _without_pending_offsets(self: Any, key: Any, value: Any, offset: int, producer: Any) -> None:
    if producer is None:
        _REPLAY(self, key, value, offset, producer)


def _without_open_transactions(self: Any) -> Any:
    kept, self._open = self._open, {}
    entries = dict(self._entries)
    self._entries = {each: structs.replace(entry, open_txn_offset=-1) for each, entry in entries.items()}
    try:
        return _EXPORT(self)
    finally:
        self._open, self._entries = kept, entries


# Those of transactions are looked for by seeds that have some.
OF_TRANSACTIONS: Final[dict[str, list[tuple[Any, str, Any]]]] = {
    "marker-before-decision-durable": [(TransactionCoordinator, "_prepare", _markers_sent_at_once)],
    "complete-before-markers-durable": [
        (MarkerDelivery, "send_due", _completed_at_once),
        (MarkerDelivery, "_on_result", _nothing),
    ],
    "revocation-not-awaited": [(reconciliation, "_owns_any", lambda *_: False)],
    "assignment-without-the-newcomer": [(consumer_group, "is_new_epoch_needed", lambda *_: False)],
    "streams-revocation-not-awaited": [(streams_reconciliation, "_can_own", lambda *_: False)],
    "streams-epochs-not-written": [(RecordedGroups, "append", _appended_with_first_epochs)],
    "member-state-not-written": [(RecordedGroups, "append", _appended_without_member_states)],
    "coordinator-epoch-not-raised": [(CoordinatorEpochs, "pop", lambda *_, **__: 0)],
    "markers-not-sent-after-loading": [(TransactionCoordinator, "finish_loading", _loaded_without_markers)],
    "pending-offsets-lost-with-handler": [(GroupCoordinator, "replay", _without_pending_offsets)],
    "joined-before-durable": [(TransactionCoordinator, "_write", _answered_when_written(State.ONGOING))],
    "new-epoch-before-durable": [(TransactionCoordinator, "_write", _answered_when_written(State.EMPTY))],
    "hand-over-forgets-open-transactions": [(ProducerTable, "export", _without_open_transactions)],
}


def _fail_none(_self: Any, _peer: Any) -> frozenset[str]:
    return frozenset()


def _closed_before_the_last_answer(self: Any) -> int:
    """A Processor that leaves closes what cannot move at once, whatever is in work."""
    for connection in list(self._table.by_fd.values()):
        if not connection.transport.can_move:
            self._table.close(connection, "the Processor leaves")
    return 0


def _closed_with_its_handshake(self: Any) -> None:
    self._share.unread.discard(self.fd)
    self.sock.close()


def _turn_without_a_call(self: Any, transport: Any) -> None:
    key = share_key(self._connections[transport.fd].origin.address)
    self._turns.setdefault(key, {})[transport.fd] = WaitingHello(transport, self._state.now_ns)


def _sent_in_the_clear(self: Any, file_fd: int, position: int, count: int) -> int:
    return doubles.OS.sendfile(self.fd, file_fd, position, count)


def _with_tickets_of_its_own(self: Any, name: str) -> Any:
    return make_context(name, self._value_of(name), ticket_secret=bytes([self._table._owner.index]) * 32)


# By seeds each of which has TLS.
OF_TLS: Final[dict[str, list[tuple[Any, str, Any]]]] = {
    "handshake-deadline-never-comes": [(Handshakes, "expire", _nothing)],
    "dropped-handshake-keeps-its-place": [(TlsTransport, "close", _closed_with_its_handshake)],
    "turn-for-a-handshake-never-comes": [(Handshakes, "wait_for_turn", _turn_without_a_call)],
    "closed-before-the-last-answer": [(TlsConnections, "_close_next", _closed_before_the_last_answer)],
    "file-ranges-in-the-clear": [(TlsTransport, "send_file", _sent_in_the_clear)],
    "rest-of-ciphertext-forgotten": [(TlsTransport, "_all_but_one", TlsTransport._sent)],
    "decrypted-and-forgotten": [(TlsShare, "has_more", _nothing)],
    "certificates-stay": [(TlsConnections, "_renew_changed", _nothing)],
    "tickets-of-each-processor": [(TlsConnections, "_make", _with_tickets_of_its_own)],
}


def _without_inherited(writer: CheckpointWriter, image: ClusterImage) -> None:
    """Checkpoints of what was opened in this run only."""
    writer._log_starts = {}
    _UPDATE(writer, image)


def _acknowledged_before_written(self: Any, holder: Any, batches: Any, now_ms: int, on_done: Any) -> None:
    """The answer does not wait for the share coordinator."""
    _ACKNOWLEDGE(self, holder, batches, now_ms, lambda _error: None)
    on_done(None)


def _nothing_persisted(self: Any, changes: Any) -> ToPersist:
    """A write says neither what was accepted nor where the window begins."""
    return _TO_PERSIST(self, changes)._replace(start_offset=self.start_offset, batches=())


def _acquired_uncounted(self: Any, run: Any, *arguments: Any) -> Any:
    """A record that comes again has the count of its last delivery."""
    taken = _ACQUIRE_AGAIN(self, run, *arguments)
    taken.delivery_count = max(1, taken.delivery_count - 1)
    return taken


def _dead_letters_unwritten(self: Any, partition: Any, letters: Any) -> None:
    """Rejected records are archived without a letter."""
    for each in letters:
        self._archive(partition, each.first, each.last, lambda: None)


def _dead_letters_repeated(self: Any, partition: Any, letters: Any) -> None:
    """Each letter is written twice."""
    _WRITE_LETTERS(self, partition, [*letters, *letters])


OF_SHARES: Final[dict[str, list[tuple[Any, str, Any]]]] = {
    "share-state-answered-before-written": [(SharePartition, "acknowledge", _acknowledged_before_written)],
    "share-state-not-written": [(InFlightRecords, "to_persist", _nothing_persisted)],
    "share-locks-never-end": [(Locks, "add", _nothing)],
    "dead-letters-not-written": [(DeadLetterWriter, "write", _dead_letters_unwritten)],
    "dead-letters-not-found": [(DeadLetterWriter, "write_again", DeadLetterWriter.write)],
    "dead-letters-written-twice": [(DeadLetterWriter, "write", _dead_letters_repeated)],
    "share-delivery-not-counted": [(InFlightRecords, "acquire_again", _acquired_uncounted)],
}


MUTATIONS: Final[dict[str, list[tuple[Any, str, Any]]]] = {
    "any-name-confirms-a-log-start": [
        (handler_checkpoint, "confirms_log_start", lambda *_: True),
        (checkpoint_writer, "confirms_log_start", lambda *_: True),
    ],
    "checkpoint-drops-untouched-logs": [(CheckpointWriter, "_update", _without_inherited)],
    "fsync-skipped": [(LogDurability, "run_sync", _nothing)],
    "answer-before-sync": [(OwnedPartition, "when_synced", _answered_at_once)],
    "visible-before-sync": [(LogAppender, "_append_hidden", _append_visible)],
    "sync-covers-what-came-later": [(LogDurability, "mark_synced", _mark_synced_with_the_active_segment)],
    "directory-not-synced": [(LogDurability, "sync_point", _sync_point_without_directories)],
    "metadata-not-synced": [(doubles.OsDouble, "fdatasync", _fdatasync_but_of_metadata)],
    "log-start-answered-before-written": [(Cleaner, "_answer_checkpoint", _answered_without_writing)],
    "wake-up-lost": [(Waker, "wake", _nothing)],
    "sequence-check-off": [(ProducerTable, "admit", lambda *_, **__: None)],
    "retry-stored-twice": [(ProducerTable, "admit", _admit_duplicates)],
    "producers-not-recovered": [(ProducerTable, "load", _nothing), (ProducerTable, "record", _nothing)],
    "stale-row-trusted": [(PartitionTable, "read", _row_of_any_generation)],
    "opened-while-another-has-it": [(PartitionTransfer, "_before_open", _nothing)],
    "hand-over-loses-who-waits": [(PartitionTransfer, "_release_waiters", _nothing)],
    "calls-of-the-dead-never-answered": [(Calls, "fail_all", _fail_none)],
    "connections-of-a-dead-handler-stay": [(HandlerAssignment, "_on_handler_death", _lose_without_closing)],
    "sockets-of-a-dead-processor-lost": [(HandoffQueue, "detach", _detach_without_requeue)],
    "answers-in-any-order": [(ResponseWriter, "_enqueue", _delivered_in_any_order)],
    "stalled-connection-forgotten": [(ConnectionTable, "stall", _stalled_unseen)],
    "answers-found-and-forgotten": [(HandlerSet, "has_answers", _found_and_forgotten)],
    "parked-never-expire": [(Purgatory, "expire", lambda _self: 0)],
    "rare-states-unseen": [(DueTime, "press", _nothing)],
    "deadline-always-past": [(Handler, "_due_ms", lambda _self, _now_ns: 0)],
    "commit-answered-before-written": [(CoordinatorLog, "write", _written_after_the_answer)],
    "delta-applied-twice": [(ClusterImage, "apply_records", _applied_twice)],
    "nobody-has-to-log-in": [(Connection, "require_login", _nothing)],
    "decisions-outlive-rules": [(StandardAuthorizer, "_clear_caches", _nothing)],
    "deltas-lost": [(ClusterImage, "apply_records", _some_deltas_lost)],
    "namesakes-directory-taken": [
        (log_module, "_is_of_another_topic", lambda *_: False),
        (PendingDeletions, "held", lambda *_: frozenset()),
    ],
    "clean-marker-stays": [(DataDirectory, "remove_clean_marker", lambda _self: False)],
    "clean-marker-comes-back": [(checkpoints, "sync_directory", _nothing)],
    "slices-without-a-turn": [(DividedRequests, "work", _all_slices_at_once)],
    "tables-without-a-bound": [(ClassicGroups, "add_unwritten", _added_without_a_bound)],
    "failed-write-not-undone": [(LogAppender, "_undo", _refused_but_not_undone)],
    "moved-time-not-followed": [(SupervisorOperations, "_request_all", _nobody_asked)],
    "handlers-miss-moved-time": [(Handler, "follow_time", Role.follow_time)],
    "moved-time-skips-a-handler": [(SupervisorOperations, "_request_all", _all_but_one_asked)],
    "cleaner-misses-moved-time": [(Cleaner, "follow_time", Role.follow_time)],
    "death-untold": [(Children, "_detach", _detach_unheard)],
    **OF_TRANSACTIONS,
    **OF_TLS,
    **OF_SHARES,
}


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """With that mutation."""
    kept = [(target, attribute, target.__dict__[attribute]) for target, attribute, _ in MUTATIONS[name]]
    for target, attribute, replacement in MUTATIONS[name]:
        setattr(target, attribute, replacement)
    try:
        yield
    finally:
        for target, attribute, before in kept:
            setattr(target, attribute, before)


def hunt(names: list[str], *, first: int, seeds: int, counts: bool = False) -> int:
    """Run seeds with each mutation until one notices it; return how many mutations no seed noticed.

    With `counts`, run all seeds and say how many notice it.
    """
    missed = 0
    for each in MUTATIONS if names == ["all"] else names:
        found: dict[int, str] = {}
        for seed in range(first, first + seeds):
            plan = _plan_for(each, seed)
            gc.collect()
            with mutated(each):
                violations = simulate(plan, stops_at_violation=True).violations
            if any(problem in violation for violation in violations for problem in _STALE):
                print(f"{each}: does not fit the code any more: {violations[0][:150]}")
            elif violations and not simulate(plan).violations:
                found[seed] = violations[0]
                if not counts:
                    break
        missed += not found
        print(_line_of(each, found, first, seeds, counts=counts), flush=True)
    return missed


def _line_of(name: str, found: dict[int, str], first: int, seeds: int, *, counts: bool) -> str:
    if not found:
        return f"{name}: NOT FOUND by {seeds} seeds from {first}"
    seed = min(found)
    line = f"found by seed {seed}, the {seed - first + 1}th: {found[seed][:150]}"
    return f"{name}: {len(found)} of {seeds} seeds; {line}" if counts else f"{name}: {line}"


def _plan_for(name: str, seed: int) -> Plan:
    """Return the plan of a seed in which a mutation is looked for."""
    if name in DIRECTED:
        return DIRECTED[name](seed)
    return plan_of(
        seed,
        power=MUTATED_POWER,
        transactions=name in OF_TRANSACTIONS or None,
        tls=name in OF_TLS or None,
        shares=name in OF_SHARES or None,
        **_RARE.get(name, {}),
    )


MUTATED_POWER: Final = 6.0
# Errors of a mutation itself, after a change of the code that it changes.
_STALE: Final = ("AttributeError", "NameError", "TypeError")
# What is noticed by one in 40 plans of a kind, and hardly by others.
_RARE: Final[dict[str, dict[str, float]]] = {"coordinator-epoch-not-raised": {"late_markers": 1.0}}
