"""Handler: the role that owns partitions and handles requests. There are M of them.

One duty cycle (`_work`): handle the records of other roles, open deferred logs, drain every Processor's ring (Produce
requests are queued and then appended per partition). If DueTime says so (`_do_due`): continue large requests,
collect finished syncs, complete parked requests that are due, run the coordinators, start a sync. Each outbox is
published once per batch.

Views of rings and arenas are valid only until the end of the drain that polled them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.calls.call_links import handle_raw_call
from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.broker.handler.handler_parts import HandlerParts, MakePartitions
from kproc.broker.handler.handler_peers import UnlinkedCalls
from kproc.broker.handler.processor_peer import ProcessorPeer
from kproc.broker.handler.syncer import Syncer
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.request.client_rates import CLIENT_BYTES, ClientBytes
from kproc.broker.role.due_time import DueTime
from kproc.broker.role.linked_role import LinkedPeer, LinkedRole
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.role.roles import CLEANER, CONTROLLER, HANDLER, PROCESSOR, handler_id
from kproc.broker.share.session.owner_call import close_all_sessions
from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import CALL, DELTA, DELTA_ACK, REPLY, SNAPSHOT, TOKEN
from kproc.broker.transport.outbox import Outbox
from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock
from kproc.common.deadlines import NEVER

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper

logger = logging.getLogger(__name__)
_CALLS_PER_PASS: Final = 64


class Handler(LinkedRole):
    """A Handler. It owns the partitions that the metadata assign to its index."""

    __slots__ = (
        "_append_queue",
        "_changes",
        "_clients",
        "_compaction",
        "_coordinators",
        "_deadlines",
        "_deletions",
        "_due",
        "_epoch_raises",
        "_group_commit",
        "_has_image",
        "_is_leaving",
        "_is_linked",
        "_next_second_ns",
        "_now_ns",
        "_offline",
        "_owner_calls",
        "_partitions",
        "_purgatory",
        "_rates",
        "_requests",
        "_services",
        "_serving",
        "_stored",
        "_syncer",
        "_transfers",
        "_unlinked",
    )

    def __init__(
        self,
        agent_id: AgentId,
        *,
        doze: Sleeper,
        metrics: MetricsRow,
        clock: Clock,
        config: Config,
        endpoints: Sequence[ListenerEndpoint],
        make_partitions: MakePartitions,
        syncer: Syncer,
        is_linked: bool = True,
        moved: Clock | None = None,
    ) -> None:
        """Create the Handler with its components (handler_parts.py).

        clock: the host's clock, for the duty cycle. moved: the broker's clock, which tests can move, for the rest.
        """
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock)
        moved = moved or clock
        self._now_ns = moved.now_ns
        self._clients: dict[AgentId, ProcessorPeer] = {}
        self._serving: list[ProcessorPeer] = []  # The Processors whose requests are handled now.
        self._due = DueTime()
        self._syncer = syncer
        parts = HandlerParts(
            agent_id,
            config=config,
            endpoints=endpoints,
            clock=clock,
            moved=moved,
            metrics=metrics,
            containment=self.containment,
            due=self._due,
            make_partitions=make_partitions,
            send_request=self._send_request,
            is_linked_to=lambda handler: handler_id(handler) in self._peers,
            clients=self._clients,
            on_watched=self._switch_monitor,
        )
        self._purgatory, self._deadlines = parts.purgatory, parts.purgatory.deadlines
        self._partitions = parts.partitions
        self._group_commit, self._deletions = parts.partitions.group_commit, parts.partitions.deletions
        self._services = parts.services
        self._transfers, self._rates = parts.services.owner.transfers, parts.services.client_rates
        self._append_queue, self._compaction = parts.append_queue, parts.compaction
        self._epoch_raises, self._coordinators = parts.epoch_raises, parts.coordinators
        self._requests, self._changes, self._stored = parts.requests, parts.changes, parts.metrics
        self._offline, self._owner_calls = parts.offline, parts.owner_calls
        self._has_image = self._is_leaving = False
        self._unlinked = UnlinkedCalls(self._calls, self._services, self._owner_calls, clock.now_ns)
        # False for a restarted Handler until all peers are attached. Another Handler can have partitions of this one
        # open, and without a link they cannot be claimed from it.
        self._is_linked = is_linked
        self._next_second_ns = 0

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        self._due.press()
        if link.peer.role != PROCESSOR:
            super().attach(link)
            self._unlinked.attached(link.peer)
            if link.peer == CONTROLLER:
                self._offline.controller_is_new()
            return
        if link.peer in self._clients:
            self.detach(link.peer)
        self._clients[link.peer] = ProcessorPeer(link)
        self._list_links()

    def detach(self, peer: AgentId) -> None:
        self._due.press()
        client = self._clients.pop(peer, None)
        if client is None:
            self._unlinked.keep_unread(self._peers.get(peer))
            super().detach(peer)
            if peer == CLEANER:
                self._compaction.discard_swaps()
            elif peer.role == HANDLER:
                self._services.owner.shares.release_home(peer.index)
            return
        self._requests.detach(client)
        client.outbox.close()
        self._list_links()

    def _lost(self, peer: AgentId, ops: frozenset[str]) -> None:
        self._unlinked.fail_behind(peer, ops)

    def has_image(self) -> bool:
        """Return True if the controller has sent its metadata. Before that no request is handled."""
        return self._has_image

    def apply_endpoints(self, endpoints: Sequence[ListenerEndpoint]) -> None:
        """Store the listeners' advertised addresses after listeners were added or removed."""
        self._services.endpoints = endpoints

    def set_linked(self) -> None:
        """Record that all peers of the start are attached. From now on a missing peer is dead or has left."""
        self._is_linked = True
        self._due.press()
        self._list_links()
        self._load_eagerly()

    def begin_leave(self) -> None:
        """Start to leave after a scale-down: the routing table does not name this Handler any more.

        Complete all parked requests and park no more, so that Processors can assign their connections to other
        Handlers. Requests are still handled. When `is_drained` is True and no Processor uses this Handler any more, it
        may be stopped, closed and detached.
        """
        self._is_leaving = True
        self._due.press()
        close_all_sessions(self._services)
        self._purgatory.expire_all()

    def drain(self) -> None:
        """Start to stop: complete all waiting requests, because nothing more will be appended."""
        super().drain()
        self._due.press()
        self._compaction.drain()
        self._coordinators.drain()
        self._services.owner.shares.drain()
        self._purgatory.expire_all()

    def is_drained(self) -> bool:
        """Return True if every request has its response and, in a leaving Handler, every partition is transferred."""
        if self._is_leaving and not self._is_stopping:
            # Nothing may be left that only this Handler can finish, because the supervisor detaches a drained Handler.
            return not (
                len(self._partitions)
                or self._deletions.waiting
                or not self._transfers.is_idle
                or self._group_commit.syncing
                or len(self._purgatory)
                or len(self._calls)
                or self._unlinked.waiting
                or self._requests.moving
                or self._requests.large
                or self._requests.without_room
                or self._requests.resting
                or self._coordinators.has_steps
                or self._append_queue.paused
                or any(each.has_overflow for each in self._outboxes)
                or self.has_input()
            )
        is_synced = (
            not self._group_commit.unsynced and not self._group_commit.syncing and self._transfers.is_idle
        )
        is_answered = not (
            self._requests.large
            or self._requests.without_room
            or self._requests.resting
            or self._requests.moving.has_holders()
            or self._coordinators.has_steps
            or self._append_queue.paused
            or self._deletions.waiting
        )
        return super().is_drained() and is_synced and is_answered

    def close(self) -> str | None:
        """Close every log, cleanly unless the data are temporary (`keeps_data`). Raises OSError if a sync failed.

        Returns `Partitions.unknown_log` after the last round of syncs, because that round can take a log offline.
        """
        # Stop the sync threads first, because they use descriptors that are closed below.
        self._syncer.close()
        self._group_commit.finish_round()
        unknown = self._partitions.unknown_log()
        try:
            self._transfers.close()
        finally:
            self._partitions.close(is_clean=self._services.config.keeps_data)
        self._requests.close()
        self._requests.faults.close()
        super().close()
        return unknown

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def _due_ms(self, now_ns: int) -> int:
        left_ns = self._due.ns - now_ns
        longest_ms = self.sleep_ms_max
        if left_ns > longest_ms * NS_PER_MS:
            return longest_ms
        if left_ns > 0:
            return -(-left_ns // NS_PER_MS)
        transfers = self._transfers
        if (
            transfers.deferred.is_opening
            or transfers.is_retiring
            or self._append_queue.paused
            or self._deletions.waiting
        ):
            return 0
        requests = self._requests
        if (requests.large or requests.without_room) and requests.held.has_steps():
            return 0
        if requests.resting and requests.held.can_resume():
            return 0
        due_ms = min(self._coordinators.due_ms, longest_ms)
        left_ns = self._deadlines.first - now_ns
        if left_ns >= due_ms * NS_PER_MS:
            return due_ms
        return max(0, -(-left_ns // NS_PER_MS))

    def _work(self) -> int:
        """Run one duty cycle. Return the amount of work.

        Each call is behind a check, because a single client pays for the whole cycle at each of its requests.
        """
        work = 0
        if self._unlinked.waiting:
            work = self._unlinked.resend(self._outbox)
        # Read the peers first: a change of owners that has arrived must be applied before new records are appended.
        for is_empty, peer in self._inputs:
            if not is_empty():
                self._due.press()
                work += self._handle_peer_records(peer)
        if self._transfers.deferred.is_opening:
            work += self._transfers.deferred.work()
        drain = self._requests.drain
        for client in self._serving:
            work += drain(client)
        now_ns = self._now_ns()
        if now_ns >= self._due.ns or self._group_commit.unsynced:
            work += self._do_due(now_ns)
        return work

    def _do_due(self, now_ns: int) -> int:
        """Continue what waits, run the timers that are due, and start a sync. Return the amount of work.

        As long as something waits, this runs in every duty cycle. Otherwise it runs again when the next timer is due.
        """
        work = 0
        due, requests = self._due, self._requests
        due.ns = NEVER  # Each part below that still has work calls press(), which sets this to 0.
        if requests.large or requests.without_room:
            work += requests.work_large()
        if requests.resting:
            work += requests.resume_resting()
        if self._is_stopping or self._is_leaving:
            due.press()
            self._purgatory.expire_all()  # Complete also the requests that were parked after the stop began.
        if requests.log is not None:
            due.press()
            requests.log.flush()
        work += self._continue_files()
        if self._deadlines.first <= now_ns:
            work += self._purgatory.expire()
        # Run the coordinators after all requests, because this also computes when they have work next.
        work += self._coordinators.work(now_ns)
        if self._append_queue.paused:
            due.press()
            self._append_queue.resume()
            work += 1
        # Requests that waited for a partition or a transaction's coordinator can have queued batches since the drain.
        if self._append_queue.queued:
            due.press()
            self._append_queue.flush()
        # Start the sync last. Otherwise writes of the coordinators' timers would wait for the next cycle, which can be
        # 100 ms away.
        if self._group_commit.unsynced:
            due.press()
            self._group_commit.start_round()
        if due.ns == 0 or self._has_waiting_work():
            due.ns = 0
        else:
            due.ns = min(self._deadlines.first, now_ns + self._coordinators.due_ms * NS_PER_MS)
        return work

    def _continue_files(self) -> int:
        """Continue rounds of syncs, transfers, deletions and swaps of compacted segments. Return the amount of work."""
        due, work = self._due, 0
        if self._group_commit.syncing:
            due.press()
            work += self._group_commit.finish_round()
            self._transfers.retire()
        elif self._transfers.is_retiring:
            due.press()
            work += self._transfers.retire()
        if self._deletions.waiting:
            due.press()
            work += self._deletions.step()
        if self._compaction.swaps:
            due.press()
            if not self._group_commit.syncing:
                work += self._compaction.work()
        return work

    def _has_waiting_work(self) -> bool:
        """Return True if something that does not call `press` waits for the next duty cycle."""
        # Check the large requests here, because every part of this cycle can make one: a coordinator that has loaded
        # wakes a request for a long list, for example.
        requests = self._requests
        return bool(
            requests.large
            or requests.without_room
            or requests.resting
            or self._transfers.deferred.is_opening
            or self._unlinked.waiting
            or self._append_queue.paused
        )

    # -- other roles -------------------------------------------------------------------------------------------

    def _handle_peer_records(self, peer: LinkedPeer) -> int:
        batch = peer.inbox.poll(_CALLS_PER_PASS)
        if not batch:
            return 0
        for kind, view in batch:
            if kind == CALL:
                handle_raw_call(view, peer.outbox, self._owner_calls.handle_raw, self.containment)
            elif kind == REPLY:
                self._calls.handle_reply(view)
            elif kind == DELTA:
                # Append queued records of other Handlers first. Until the delta is applied, we own their partitions.
                self._append_queue.flush()
                self._apply(view)
                self._acknowledge(peer)
            elif kind == SNAPSHOT:
                self._adopt(view)
                self._acknowledge(peer)
        self._append_queue.flush()
        self._coordinators.flush()
        peer.inbox.release()
        return len(batch)

    def _send_request(
        self,
        peer: AgentId,
        call: Call[B, R],
        body: B,
        on_reply: Callable[[R | Lost], None],
        payload: bytes | memoryview = b"",
    ) -> None:
        outbox = self._outbox(peer)
        if (outbox is None or self._unlinked.waiting) and peer.role == HANDLER:
            # The metadata can name a Handler before we have its link, which comes over the control socket. A busy
            # Handler reads that socket only now and then, so read it before the next cycle. If there is no link then,
            # the call is lost. A call must also not overtake earlier calls that wait for a link.
            self._unlinked.add(peer, call, body, on_reply, payload)
            self._due.press()
            self.is_called = True
            return
        self._calls.send(outbox, peer, call, body, on_reply, payload)

    def _adopt(self, view: memoryview) -> None:
        """Replace the metadata by a whole image, which comes when this Handler or the controller has started."""
        self._changes.adopt(ClusterImage.from_snapshot(view))
        self._has_image = True
        self._list_links()
        self._load_eagerly()

    def _apply(self, view: memoryview) -> None:
        """Apply a delta of the metadata."""
        if self._changes.apply(view).moved:
            self._load_eagerly()

    def _acknowledge(self, controller: LinkedPeer) -> None:
        """Acknowledge the metadata, now or when the directories of all deleted partitions are renamed."""

        def acknowledge() -> None:
            controller.outbox.push(DELTA_ACK, TOKEN.pack(self._services.image.version, 0))

        self._deletions.when_done(acknowledge)

    def _load_eagerly(self) -> None:
        """Load the coordinators that must not wait for a request, once the metadata and all links are known."""
        if self._has_image and self._is_linked:
            self._coordinators.load_eagerly()

    def _switch_monitor(self) -> None:
        """Use the general path for all requests while a monitor watches or fault rules exist, fast paths afterwards."""
        self._requests.choose_log()
        self._changes.discard_fast_paths()

    # -- housekeeping ------------------------------------------------------------------------------------------

    def _other_outboxes(self) -> list[Outbox]:
        return [client.outbox for client in self._clients.values()]

    def _list_links(self) -> None:
        # Requests cannot be handled without metadata, or before all peers of the start are attached.
        serves = self._has_image and self._is_linked
        self._serving = list(self._clients.values()) if serves else []
        super()._list_links()

    def _other_looks(self) -> list[Callable[[], bool]]:
        return [client.inbox.is_empty for client in self._serving]

    def has_input(self) -> bool:
        if self._unlinked.waiting:
            return True
        for is_empty in self._looks:
            if not is_empty():
                return self._has_input_to_take()
        return False

    def _has_input_to_take(self) -> bool:
        """Return True if the next duty cycle takes some of the input.

        Requests are no work before the Processor has read our responses, because `drain` takes none until then (see
        next_deadline_ms).
        """
        return any(not is_empty() for is_empty, _ in self._inputs) or any(
            not client.inbox.is_empty() and not client.outbox.has_overflow for client in self._serving
        )

    def follow_time(self, on_done: Callable[[], None]) -> None:
        """Run all timers and sweeps in the next duty cycle, because a test has moved the broker's time."""
        super().follow_time(on_done)
        self._due.press()
        self._next_second_ns = 0
        self._coordinators.follow_time()

    def _has_followed(self) -> bool:
        is_synced = not (self._group_commit.unsynced or self._group_commit.syncing)
        return is_synced and not (
            self._append_queue.queued or self._append_queue.paused or self._coordinators.has_steps
        )

    def _on_tick(self, now_ns: int) -> None:
        self._due.press()
        if self._requests.moving:
            self._requests.moving.expire(now_ns)
        self._offline.report(self._partitions.offline)
        if now_ns >= self._next_second_ns and self._has_image:
            self._next_second_ns = now_ns + NS_PER_S
            self._requests.report_suppressed(now_ns)
            self.containment.run("periodic work of partitions", None, self._partitions.tick)
            self._epoch_raises.tick()
            self.containment.run("periodic work of partition transfers", None, self._transfers.tick)
            self._stored.store_coordinators()
        if self._rates.is_on and (told := self._rates.drain_unsent()):
            for peer in self._peers:
                if peer.role == HANDLER:
                    self._send_request(peer, CLIENT_BYTES, ClientBytes(told), lambda _reply: None)
        self._stored.store()


class MovableHandler(Handler):
    """A Handler of a broker whose time can be moved (kproc.time.movable)."""

    __slots__ = ()

    def _due_ms(self, now_ns: int) -> int:
        # Ignore `now_ns`, which the duty cycle has read from the host's clock. The deadlines are times of the broker's
        # clock.
        del now_ns
        return super()._due_ms(self._now_ns())
