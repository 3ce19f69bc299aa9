"""Controller: the single writer of the cluster's metadata; it also serves kproc's own operations.

ControllerState decides about a change. The controller writes and syncs it to the metadata log, applies it to its image,
and sends it to every Handler as a numbered delta. It responds when all Handlers have acknowledged the delta, so that a
client that created a topic finds it on every connection. A Handler that is being restarted causes no delay, because it
starts with a snapshot that contains the change.
"""

from __future__ import annotations

import logging
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.call_links import CallHandlers, handle_raw_call
from kproc.broker.calls.calls import B, Call, Lost, OnResult, R
from kproc.broker.calls.controller_calls import (
    OWN,
    SET_LOG_LEVELS,
    LogLevels,
    Outcome,
    OwnAnswer,
    OwnRequest,
)
from kproc.broker.cluster.broker_config import is_store
from kproc.broker.cluster.controller import ControllerState, failure_of, failure_reply
from kproc.broker.cluster.delegation_tokens import REMOVE_EXPIRED
from kproc.broker.cluster.dynamic_settings import settings_in_force
from kproc.broker.cluster.host_names import RESOLVABLE, host_names
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.cluster.records import BrokerConfigSet, Record
from kproc.broker.cluster.topic_changes import HELD
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.controller.change_calls import add_change_calls
from kproc.broker.controller.control_plane import ControlPlane
from kproc.broker.controller.orphaned_directories import OrphanedDirectories
from kproc.broker.controller.pending_deletions import PendingDeletions, created_names
from kproc.broker.metrics.requests import CONTROLLER_PART
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.observe.offline_partitions import REPORT_OFFLINE, OfflineNoted, OfflineReport
from kproc.broker.observe.uncleanable_partitions import (
    REPORT_UNCLEANABLE,
    UncleanableNoted,
    UncleanableReport,
)
from kproc.broker.role.control_requests import OnReply
from kproc.broker.role.linked_role import LinkedPeer, LinkedRole
from kproc.broker.role.listeners import look_up
from kproc.broker.role.lookups import Found, Lookups
from kproc.broker.role.roles import CLEANER, CONTROL_PROCESSOR, HANDLER, handler_id
from kproc.broker.storage.counting_fs import count_shortage
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.transport.agent import STORE_MS, AgentId, Link
from kproc.broker.transport.envelope import CALL, DELTA, DELTA_ACK, REPLY, SNAPSHOT, TOKEN
from kproc.broker.transport.outbox import Outbox
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.controller.operations import Operations
    from kproc.broker.ipc.wait import Sleeper
    from kproc.broker.observe.metrics_http import Scrapes
    from kproc.broker.observe.status import Status
    from kproc.broker.role.plan import BrokerPlan

logger = logging.getLogger(__name__)

# Pause after a removal of expired tokens that could not be written.
_TOKEN_RETRY_NS: Final = 5 * NS_PER_S


class PendingCommit:
    """A change that is on disk and waits for the acknowledgements of some Handlers."""

    __slots__ = ("on_reply", "reply", "version", "waiting_for")

    def __init__(
        self, version: int, waiting_for: set[AgentId], reply: dict[str, Any], on_reply: OnReply
    ) -> None:
        self.version = version
        self.waiting_for = waiting_for
        self.reply = reply
        self.on_reply = on_reply


class Controller(LinkedRole):
    """The controller role: decides on changes of the metadata, logs them and sends them to the other roles.

    One per broker.
    """

    def __init__(
        self,
        agent_id: AgentId,
        *,
        plan: BrokerPlan,
        doze: Sleeper,
        metrics: MetricsRow,
        state: ControllerState,
        image: ClusterImage,
        log: MetadataLog,
        operations: Operations,
        on_settings: Callable[[DynamicSettings], None],
        is_restart: bool,
    ) -> None:
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=plan.clock)
        self._plan = plan
        self._state = state
        self._lookups = Lookups(plan.clock.now_ns)
        # Look-ups for the supervisor have their own thread, so that clients' look-ups cannot delay them.
        self._listener_lookups = Lookups(plan.clock.now_ns, look_up)
        self.image = image
        self._log = log
        self._operations = operations
        operations.controller = self
        self._control: LinkedPeer | None = None
        self._scrapes: Scrapes | None = None
        self.counts = metrics.slab.counts(CONTROLLER_PART)
        self._served: CallHandlers = self._make_served(waits_for_handlers=True)
        # Calls of the control listener do not wait for Handlers, because a hanging Handler must not block an operator.
        self.served_at_once: CallHandlers = self._make_served(waits_for_handlers=False)
        self._control_plane = ControlPlane(plan, self)
        self._commits: deque[PendingCommit] = deque()
        self._names = PendingDeletions(plan.clock.now_ns, unsure_until=image.version if is_restart else None)
        self._next_token_check_ns = 0
        self._orphaned = OrphanedDirectories(plan.fs, Path(plan.config.log_dirs))
        # Called with changed settings, because Acceptors and Processors have no image. The supervisor sends the
        # settings to them.
        self._on_settings = on_settings
        self._settings = settings_in_force(image, plan.config)
        on_settings(self._settings)

    @property
    def status(self) -> Status:
        """The status of the broker's processes, which the supervisor's messages update."""
        return self._operations.status

    def answer_scrapes(self, scrapes: Scrapes) -> None:
        """Answer the HTTP requests of the metrics listener from now on."""
        self._scrapes = scrapes
        self._epoll.register(scrapes.fileno(), select.EPOLLIN)

    def send_to_handler(
        self, index: int, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None], /
    ) -> None:
        """Send a call to a Handler. `on_reply` gets the reply, or Lost if the Handler has ended."""
        owner = handler_id(index)
        self._calls.send(self._outbox(owner), owner, call, body, on_reply)

    def send_to_cleaner(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None], /) -> None:
        """Send a call to the cleaner. `on_reply` gets the reply, or Lost if the cleaner has ended."""
        self._calls.send(self._outbox(CLEANER), CLEANER, call, body, on_reply)

    def attach(self, link: Link) -> None:
        """Link a role that has started. A Handler or the cleaner gets a snapshot of the metadata, and then deltas."""
        super().attach(link)
        if link.peer == CONTROL_PROCESSOR:
            # The control listener's Processor gets no deltas, because it has no image.
            self._control = self._peers.pop(link.peer)
            self._control_plane.attach(self._control)
            self._list_links()
        elif link.peer.role in (HANDLER, CLEANER.role):
            if link.peer.role == HANDLER:
                self._names.attach(link.peer)
            outbox = self._peers[link.peer].outbox
            # A snapshot instead of all deltas, because the peer's predecessor may have died before it received some of
            # them.
            outbox.push(SNAPSHOT, self.image.snapshot())
            outbox.flush()

    def detach(self, peer: AgentId) -> None:
        if peer == CONTROL_PROCESSOR:
            if self._control is not None:
                self._control.outbox.close()
            self._control = None
            self._control_plane.detach()
            self._list_links()
            return
        super().detach(peer)
        for commit in self._commits:
            # Do not wait for a dead Handler, because its successor starts with a snapshot that contains the change.
            commit.waiting_for.discard(peer)
        self._names.detach(peer)
        if peer.role == HANDLER:
            self.status.offline.remove(peer.index)
        self._answer_known()

    def set_linked(self) -> None:
        """Record that every running Handler is linked with this new controller.

        Before that the controller does not know which Handlers may still use the directory of a deleted topic, so no
        topic can be created. See PendingDeletions.
        """
        self._names.all_linked()

    def _due_ms(self, now_ns: int) -> int:
        due_ms = super()._due_ms(now_ns)
        return due_ms if self._scrapes is None else min(due_ms, self._scrapes.due_ms(now_ns))

    def _rest_ms(self) -> int:
        is_asking = self._names.is_waited_for or self._lookups.is_busy or self._listener_lookups.is_busy
        # Tick every 100 ms instead of at the idle rate while a client waits for a look-up, a name or an operation.
        is_waiting = is_asking or self._operations.is_waiting
        return STORE_MS if is_waiting else super()._rest_ms()

    def _on_tick(self, now_ns: int) -> None:
        self._operations.tick(now_ns)
        self._control_plane.report_suppressed(now_ns)
        self.status.disk.log_changes(logger, now_ns)
        self.status.certificates.log_problems(logger, now_ns)
        self._lookups.work()
        self._names.tick(is_stopping=self._is_stopping)
        self._listener_lookups.work()
        self.counts.store()
        if not self._is_stopping and now_ns >= self._next_token_check_ns:
            self._remove_expired_tokens(now_ns)

    def follow_time(self, on_done: Callable[[], None]) -> None:
        super().follow_time(on_done)
        self._next_token_check_ns = 0

    def _has_followed(self) -> bool:
        return not self._commits

    def _remove_expired_tokens(self, now_ns: int) -> None:
        interval_ms = self._plan.config.delegation_token_expiry_check_interval_ms
        self._next_token_check_ns = now_ns + interval_ms * NS_PER_MS
        if not self.image.delegation_tokens:
            return

        def on_reply(reply: dict[str, Any]) -> None:
            # The disk may be full. Do not wait for the next check, which can be an hour later.
            if failure_of(reply) is not None:
                self._next_token_check_ns = min(self._next_token_check_ns, now_ns + _TOKEN_RETRY_NS)
            for token_id in reply.get("removed", ()):
                logger.info("removed the delegation token %s, which has expired", token_id)
                # Check again at the next tick, because one batch is limited and more tokens can have expired.
                self._next_token_check_ns = 0

        self.handle_change(REMOVE_EXPIRED, {}, on_reply, waits_for_handlers=False)

    def is_drained(self) -> bool:
        is_busy = self._commits or self._lookups.is_busy or self._names.is_waited_for
        return super().is_drained() and not is_busy

    def close(self) -> None:
        self._lookups.close()
        self._listener_lookups.close()
        self._log.close()
        if self._scrapes is not None:
            self._epoll.unregister(self._scrapes.fileno())
            self._scrapes.close()
        super().close()

    def _other_outboxes(self) -> list[Outbox]:
        return [] if self._control is None else [self._control.outbox]

    def has_input(self) -> bool:
        return self._control_plane.has_input() or super().has_input()

    def _work(self) -> int:
        work = self._control_plane.work() + self._drain_records(self._handle_record)
        if self._scrapes is not None:
            work += self._scrapes.work()
        if self._operations.await_status:
            self._operations.answer_status(self.containment)
        return work

    def _handle_record(self, peer: LinkedPeer, kind: int, view: memoryview) -> None:
        if kind == CALL:
            handle_raw_call(view, peer.outbox, self._served.handle_raw, self.containment)
        elif kind == DELTA_ACK:
            self._acknowledged(peer, TOKEN.unpack_from(view)[0])
        else:
            assert kind == REPLY, kind
            self._calls.handle_reply(view)

    def _make_served(self, *, waits_for_handlers: bool) -> CallHandlers:
        served = CallHandlers(self.containment)
        add_change_calls(served, partial(self.handle_change, waits_for_handlers=waits_for_handlers))
        served.add(OWN, self._handle_own)
        served.add(SET_LOG_LEVELS, self._set_log_levels)
        served.add(REPORT_OFFLINE, self._on_offline)
        served.add(REPORT_UNCLEANABLE, self._on_uncleanable)
        return served

    def _handle_own(self, body: OwnRequest, on_reply: OnResult[OwnAnswer]) -> None:
        def answer(reply: dict[str, Any]) -> None:
            on_reply(OwnAnswer(**reply))

        what = f"the operation {type(body.operation).__name__}"
        if not self.containment.run(what, None, self._operations.handle, body.operation, answer):
            on_reply(OwnAnswer(error=f"{what} failed: see the broker's log"))

    def _set_log_levels(self, body: LogLevels, on_reply: OnResult[Outcome]) -> None:
        def on_set(reply: dict[str, Any]) -> None:
            error = failure_of(reply)
            on_reply(Outcome(failure=None if error is None else (int(error.code), error.message)))

        self._operations.set_log_levels({"levels": body.levels}, on_set)

    def _on_offline(self, report: OfflineReport, on_reply: OnResult[OfflineNoted]) -> None:
        self.status.offline.update(report)
        on_reply(OfflineNoted())

    def _on_uncleanable(self, report: UncleanableReport, on_reply: OnResult[UncleanableNoted]) -> None:
        self.status.uncleanable.update(report)
        on_reply(UncleanableNoted())

    def resolve_host(self, host: str, on_found: Callable[[list[str]], None]) -> None:
        """Resolve a host name for the supervisor, which must not wait for a name server itself.

        `on_found` gets the addresses, [] if the name was not resolved.
        """
        self._listener_lookups.resolve([host], lambda found: on_found(found[host]))

    def handle_change(
        self, op: str, body: dict[str, Any], on_reply: OnReply, *, waits_for_handlers: bool = True
    ) -> None:
        """Let ControllerState decide about an operation on the metadata, and commit the change.

        `on_reply` gets the reply when every Handler has acknowledged the change, or without `waits_for_handlers` as
        soon as it is on disk. An operation that names hosts waits until a name server has resolved them. Later
        operations do not wait for it.
        """
        hosts = host_names(op, body, self._plan.config)
        if not hosts:
            self._change(op, body, on_reply, waits_for_handlers)
            return

        def on_found(found: Found) -> None:
            resolvable = [host for host, addresses in found.items() if addresses]
            self._change(op, {**body, RESOLVABLE: resolvable}, on_reply, waits_for_handlers)

        self._lookups.resolve(hosts, on_found)

    def _change(self, op: str, body: Any, on_reply: OnReply, waits_for_handlers: bool) -> None:
        names = created_names(op, body)
        # Usually no deleted topic had one of these names, so decide at once.
        if not self._names.held(names):
            self._decide(op, body, on_reply, waits_for_handlers)
            return

        def on_free(held: frozenset[str]) -> None:
            self._decide(op, {**body, HELD: held}, on_reply, waits_for_handlers)

        self._names.wait(frozenset(names), on_free)

    def _decide(self, op: str, body: Any, on_reply: OnReply, waits_for_handlers: bool) -> None:
        try:
            reply, records = self._state.handle(op, body)
        except Exception as error:  # noqa: BLE001 - contained
            self.containment.caught(f"the operation {op} on the metadata", error)
            on_reply(failure_reply(ErrorCode.UNKNOWN_SERVER_ERROR, None))
            return
        if not records:
            on_reply(reply)
            return
        # Move old directories away before the commit. Once a new topic is in the metadata, its owner opens any
        # directory with the partition's name.
        try:
            self._orphaned.clear(self.image, records)
        except StorageFailure as failure:
            # An old directory could not be moved away. Fail the creation, because otherwise the new partition's owner
            # would open the old directory with its records.
            logger.error(
                "cannot move an old directory that has the name of a new partition, so the topics or partitions of "
                "this request are not created: %s",
                failure,
            )
            on_reply(failure_reply(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)))
            return
        try:
            self._commit(reply, records, on_reply, waits_for_handlers)
        # The role can go on, because the disk is only full and the log has undone the write. The client can retry.
        except KafkaError as error:
            count_shortage(self._metrics.values, 0)
            logger.error("the metadata log cannot be written, so a change is rejected: %s", error)
            on_reply(failure_reply(error.code, error.message))

    def _commit(
        self, reply: dict[str, Any], records: list[Record], on_reply: OnReply, waits_for_handlers: bool
    ) -> None:
        """Write a change to the disk, then apply it to our image, then send it to the other roles.

        In this order no role can act on a change that a crash would lose.
        """
        # When this returns, the change cannot fail any more: it is on the disk, and a restarted controller would apply
        # it.
        delta, change = self._log.commit(self.image, records)
        self._names.deleted((topic.name for topic in change.deleted), self.image.version)
        self._orphaned.deleted(topic.name for topic in change.deleted)
        # Wait only for Handlers that are linked now. One that starts later begins with a snapshot that contains the
        # change.
        handlers = {peer.id for peer in self._peers.values() if peer.id.role == HANDLER}
        if waits_for_handlers:
            self._commits.append(PendingCommit(self.image.version, handlers, reply, on_reply))
        for peer in self._peers.values():
            peer.outbox.push(DELTA, delta)
        settings = settings_in_force(self.image, self._plan.config)
        # A record that sets a key store to its present path means that its file must be read again.
        renews = any(isinstance(each, BrokerConfigSet) and is_store(each.name) for each in records)
        if settings != self._settings or renews:
            self._settings = settings
            self._on_settings(settings)
        if not waits_for_handlers:
            on_reply(reply)
        self._answer_known()

    def _acknowledged(self, peer: LinkedPeer, version: int) -> None:
        self._names.acknowledged(peer.id, version)
        for commit in self._commits:
            if commit.version <= version:
                commit.waiting_for.discard(peer.id)
        self._answer_known()

    def _answer_known(self) -> None:
        """Reply to the requests whose change every Handler has acknowledged, in the order of the changes."""
        # In order, because a client that has seen a later change must find the earlier ones, too.
        while self._commits and not self._commits[0].waiting_for:
            commit = self._commits.popleft()
            self.containment.run(
                "the answer to a change of the metadata", None, commit.on_reply, commit.reply
            )
