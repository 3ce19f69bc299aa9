"""Controller: the single writer of the cluster's metadata, and the desk for kproc's own operations.

A change is decided by ControllerState, written and synced to the metadata log, applied here, sent to every
Handler as a numbered delta, and answered when all of them have acknowledged it: a client that was told
"created" finds its topic on every connection. A Handler that is being restarted holds nobody up: it begins
with a snapshot that contains the change.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kproc.api.context import OnReply
from kproc.cluster.controller import ControllerState, failure_reply
from kproc.cluster.host_names import RESOLVABLE, host_names
from kproc.cluster.image import ClusterImage
from kproc.cluster.metadata_log import MetadataLog
from kproc.cluster.records import Record
from kproc.cluster.topic_names import TELEMETRY_TOPIC
from kproc.config.dynamic import DynamicSettings
from kproc.errors import KafkaError
from kproc.metrics.requests import CONTROLLER_PART
from kproc.metrics.slab import MetricsRow
from kproc.net.lookups import Found, Lookups
from kproc.server.calls import serve_call
from kproc.server.control_plane import ControlPlane
from kproc.server.linked_agent import LinkedAgent, LinkedPeer
from kproc.server.roles import CLEANER, CONTROL_PROCESSOR, HANDLER, handler_id
from kproc.server.telemetry import ControllerTelemetry
from kproc.server.telemetry_feed import CALL as TELEMETRY_CALL
from kproc.storage.room import note_shortage
from kproc.transport.agent import STORE_MS, AgentId, Doze, Link
from kproc.transport.envelope import CALL, DELTA, DELTA_ACK, REPLY, SNAPSHOT, TOKEN

if TYPE_CHECKING:
    from kproc.server.operations import Operations
    from kproc.server.plan import Plan

logger = logging.getLogger(__name__)

_CALLS_PER_PASS = 64


class _Commit:
    """A change that is on disk and waits for the Handlers to know it."""

    __slots__ = ("on_reply", "reply", "version", "waiting_for")

    def __init__(
        self, version: int, waiting_for: set[AgentId], reply: dict[str, Any], on_reply: OnReply
    ) -> None:
        self.version = version
        self.waiting_for = waiting_for
        self.reply = reply
        self.on_reply = on_reply


class Controller(LinkedAgent):
    """One per broker."""

    def __init__(
        self,
        agent_id: AgentId,
        *,
        plan: Plan,
        doze: Doze,
        metrics: MetricsRow,
        state: ControllerState,
        image: ClusterImage,
        log: MetadataLog,
        operations: Operations,
        settings_in_force: Callable[[], DynamicSettings],
        on_settings: Callable[[DynamicSettings], None],
    ) -> None:
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=plan.clock)
        self._plan = plan
        self._state = state
        self._lookups = Lookups(plan.clock.now_ns)
        self.image = image
        self._log = log
        self._operations = operations
        operations.controller = self
        self._control: LinkedPeer | None = None
        self.counts = metrics.slab.counts(CONTROLLER_PART)
        self._control_plane = ControlPlane(plan, self)
        self._telemetry = ControllerTelemetry(
            plan,
            operations.status,
            metrics.slab,
            image=lambda: self.image,
            ask=self._ask_handler,
            create=lambda on_reply: self.serve("auto_create_topics", {"names": [TELEMETRY_TOPIC]}, on_reply),
        )
        self._commits: deque[_Commit] = deque()
        # Acceptors and Processors have no image: who runs us tells them what was changed.
        self._settings_in_force = settings_in_force
        self._on_settings = on_settings
        self._settings = settings_in_force()
        on_settings(self._settings)

    def attach(self, link: Link) -> None:
        """A peer is there (again): it starts from a snapshot and follows by deltas."""
        super().attach(link)
        if link.peer == CONTROL_PROCESSOR:
            self._control = self._peers.pop(link.peer)
            self._control_plane.attach(self._control)
            self._list_outboxes()
        elif link.peer.role in (HANDLER, CLEANER.role):
            outbox = self._peers[link.peer].outbox
            outbox.push(SNAPSHOT, self.image.snapshot())
            outbox.flush()

    def detach(self, peer: AgentId) -> None:
        if peer == CONTROL_PROCESSOR:
            self._control = None
            self._control_plane.detach()
            self._list_outboxes()
            return
        super().detach(peer)
        for commit in self._commits:
            commit.waiting_for.discard(peer)
        self._answer_known()

    def _rest_ms(self) -> int:
        is_waiting = self._lookups.is_busy or self._telemetry.is_on or self._operations.has_scales
        return STORE_MS if is_waiting else super()._rest_ms()

    def _on_tick(self, now_ns: int) -> None:
        self._operations.tick(now_ns)
        self._operations.status.disk.tell(logger, now_ns)
        self._lookups.work()
        self.counts.store()
        if not self._is_stopping:
            self._telemetry.tick(now_ns)

    def _ask_handler(self, index: int, body: dict[str, Any], on_reply: OnReply, batch: bytes) -> None:
        owner = handler_id(index)
        self._calls.call(self._outbox(owner), owner, TELEMETRY_CALL, body, on_reply, batch)

    def is_drained(self) -> bool:
        return super().is_drained() and not self._commits and not self._lookups.is_busy

    def close(self) -> None:
        self._lookups.close()
        self._log.close()
        super().close()

    def _list_outboxes(self) -> None:
        super()._list_outboxes()
        if self._control is not None:
            self._outboxes.append(self._control.outbox)

    def _has_input(self) -> bool:
        return self._control_plane.has_input() or super()._has_input()

    def _work(self) -> int:
        work = self._control_plane.work()
        for peer in list(self._peers.values()):
            batch = peer.inbox.poll(_CALLS_PER_PASS)
            for kind, view in batch:
                if kind == CALL:
                    serve_call(view, peer.outbox, self._serve_call)
                elif kind == DELTA_ACK:
                    self._acknowledged(peer, TOKEN.unpack_from(view)[0])
                else:
                    assert kind == REPLY, kind
                    self._calls.take_reply(view)
            if batch:
                peer.inbox.release()
            work += len(batch)
        return work

    def _serve_call(self, op: str, body: Any, _payload: memoryview, on_reply: OnReply) -> None:
        self.serve(op, body, on_reply)

    def serve(self, op: str, body: Any, on_reply: OnReply, *, waits_for_handlers: bool = True) -> None:
        """An operation on the metadata, or one of kproc's own with `private:` before its name.

        A change is answered when every Handler knows it, or as soon as it is on disk. One that names hosts waits for
        a name server, and for nobody else: what comes after it may be decided before it.
        """
        if op.startswith("private:"):
            self._operations.serve(op.removeprefix("private:"), body, on_reply)
            return
        hosts = host_names(op, body, self._plan.config)
        if not hosts:
            self._change(op, body, on_reply, waits_for_handlers)
            return

        def on_found(found: Found) -> None:
            resolvable = [host for host, addresses in found.items() if addresses]
            self._change(op, {**body, RESOLVABLE: resolvable}, on_reply, waits_for_handlers)

        self._lookups.ask(hosts, on_found)

    def _change(self, op: str, body: Any, on_reply: OnReply, waits_for_handlers: bool) -> None:
        reply, records = self._state.handle(op, body)
        if not records:
            on_reply(reply)
            return
        try:
            self._commit(reply, records, on_reply, waits_for_handlers)
        except KafkaError as error:  # The disk is full: undone, and worth another try later.
            note_shortage(self._metrics.values, 0)
            logger.error("the metadata log cannot be written: %s", error)
            on_reply(failure_reply(error.code, error.message))

    def _commit(
        self, reply: dict[str, Any], records: list[Record], on_reply: OnReply, waits_for_handlers: bool
    ) -> None:
        """Disk first, then our image, then everybody else's."""
        delta, _ = self._log.commit(self.image, records)
        handlers = {peer.id for peer in self._peers.values() if peer.id.role == HANDLER}
        if waits_for_handlers:
            self._commits.append(_Commit(self.image.version, handlers, reply, on_reply))
        for peer in self._peers.values():
            peer.outbox.push(DELTA, delta)
        settings = self._settings_in_force()
        if settings != self._settings:
            self._settings = settings
            self._on_settings(settings)
        if not waits_for_handlers:
            on_reply(reply)
        self._answer_known()

    def _acknowledged(self, peer: LinkedPeer, version: int) -> None:
        for commit in self._commits:
            if commit.version <= version:
                commit.waiting_for.discard(peer.id)
        self._answer_known()

    def _answer_known(self) -> None:
        """Answer, in order, what every Handler knows by now."""
        while self._commits and not self._commits[0].waiting_for:
            commit = self._commits.popleft()
            commit.on_reply(commit.reply)
