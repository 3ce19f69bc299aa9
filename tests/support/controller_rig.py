"""A controller with scripted Handlers, on a disk of its own and a manual clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from kproc.broker.calls.call_links import Calls
from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, OWN, Change, Changed, OwnAnswer, OwnRequest
from kproc.broker.calls.own_operations import OwnOperation
from kproc.broker.cluster.controller import FAILURE
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.controller.controller import Controller
from kproc.broker.ipc.wait import Sleeper, make_eventfd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CONTROLLER
from kproc.broker.supervisor.broker import RoleParts, SupervisorCalls, build_controller
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import DELTA, DELTA_ACK, REPLY, SNAPSHOT, TOKEN
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import ManualClock
from kproc.common.containment import Containment
from tests.support.links import LinkMaker
from tests.support.processor_rig import new_slab

Reply = dict[str, Any]


class ScriptedPeer:
    """A Handler or the cleaner at the other end of a link: follows the image, acknowledges when told."""

    def __init__(self, rig: ControllerRig, agent: AgentId) -> None:
        self.id = agent
        self._rig = rig
        near, far = rig.links.make(CONTROLLER, agent)
        rig.controller.attach(near)
        self.outbox, self.inbox = Outbox(far.sender, far.waker), Inbox(far.receiver)
        self.calls = Calls(Containment())
        self.image: ClusterImage | None = None
        self.kinds: list[int] = []
        self.acknowledges = True

    def ask(self, op: str, **body: Any) -> list[Reply]:
        """One call; its replies gather in the list."""
        replies: list[Reply] = []

        def on_reply(reply: Changed | Lost) -> None:
            assert isinstance(reply, Changed)
            replies.append(reply.fields if reply.failure is None else {FAILURE: list(reply.failure)})

        self.calls.send(self.outbox, CONTROLLER, CHANGE, Change(op, body), on_reply)
        self.outbox.flush()
        return replies

    def ask_own(self, op: str, **fields: Any) -> list[Reply]:
        """One of kproc's own operations; its answers gather in the list."""
        replies: list[Reply] = []

        def on_reply(reply: OwnAnswer | Lost) -> None:
            assert isinstance(reply, OwnAnswer)
            replies.append({"error": reply.error, "result": reply.result, "is_retriable": reply.is_retriable})

        operation = msgspec.convert({"op": op, **fields}, OwnOperation)
        self.calls.send(self.outbox, CONTROLLER, OWN, OwnRequest(operation), on_reply)
        self.outbox.flush()
        return replies

    def take(self) -> None:
        """Take in what the controller sent; acknowledge it unless told not to."""
        for kind, view in self.inbox.poll(1000):
            self.kinds.append(kind)
            if kind == SNAPSHOT:
                self.image = ClusterImage.from_snapshot(view)
            elif kind == DELTA:
                assert self.image is not None
                self.image.apply(view)
            else:
                assert kind == REPLY
                self.calls.handle_reply(view)
                continue
            if self.acknowledges:
                self.acknowledge()
        self.inbox.release()
        self.outbox.flush()

    def acknowledge(self) -> None:
        assert self.image is not None
        self.outbox.push(DELTA_ACK, TOKEN.pack(self.image.version, 0))
        self.outbox.flush()


class ControllerRig:
    """A controller over a data directory, and whoever is linked with it."""

    def __init__(self, stack: ExitStack, directory: Path, *, is_restart: bool = False) -> None:
        self.clock = ManualClock()
        self.links = stack.enter_context(LinkMaker("pipe"))
        slab = new_slab()
        metrics = MetricsRow(slab, 0, 1)
        eventfd = make_eventfd()
        stack.callback(os.close, eventfd)
        config = Config.build({"log.dirs": str(directory), "num.io.threads": 2})
        self.asked: list[tuple[str, Reply, Callable[[Reply], None]]] = []
        self.settings: list[DynamicSettings] = []
        plan = BrokerPlan(config, self.clock, [], "the-cluster", was_clean=True)
        parts = RoleParts(
            doze=Sleeper(slab.words, metrics.sleeping_word, eventfd),
            metrics=metrics,
            supervisor=SupervisorCalls(
                send_request=lambda *asked: self.asked.append(asked), send_settings=self.settings.append
            ),
            is_restart=is_restart,
        )
        self.controller: Controller = build_controller(CONTROLLER, plan, parts)
        stack.callback(self.controller.close)
        self.peers: list[ScriptedPeer] = []

    def attach(self, agent: AgentId) -> ScriptedPeer:
        peer = ScriptedPeer(self, agent)
        self.peers.append(peer)
        self.settle()
        return peer

    def lose(self, peer: ScriptedPeer) -> None:
        """It died."""
        self.peers.remove(peer)
        self.controller.detach(peer.id)
        self.settle()

    def settle(self) -> None:
        for _ in range(10):
            self.controller.do_work(0)
            for peer in self.peers:
                peer.take()
