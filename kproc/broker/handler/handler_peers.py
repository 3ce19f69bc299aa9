"""HandlerPeers: lets the APIs call other Handlers, the controller and the cleaner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kproc.broker.calls.call_links import Calls
from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.handler.owner_calls import OwnerCalls
from kproc.broker.request.context import Services
from kproc.broker.role.linked_agent import LinkedPeer
from kproc.broker.role.roles import CLEANER, CONTROLLER, HANDLER, handler_id
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.outbox import Outbox
from kproc.common.clock import NS_PER_S
from kproc.common.containment import Owner

# A Handler that is away for longer than this is not merely being restarted.
_AWAY_NS: Final = NS_PER_S


class UnlinkedCall(NamedTuple):
    """A call to a Handler that is not attached here."""

    peer: AgentId
    call: Call[Any, Any]
    body: Any
    on_reply: Callable[[Any], None]
    payload: bytes
    owner: Owner | None


class UnlinkedCalls:
    """The calls to Handlers that are not attached, until the next duty cycle."""

    __slots__ = (
        "_away_since", "_calls", "_containment", "_have_left", "_now_ns", "_owner_calls", "_services", "waiting",
    )  # fmt: skip

    def __init__(
        self, calls: Calls, services: Services, owner_calls: OwnerCalls, now_ns: Callable[[], int]
    ) -> None:
        self._calls = calls
        self._services = services
        self._containment = services.containment
        self._owner_calls = owner_calls
        self._now_ns = now_ns
        self.waiting: list[UnlinkedCall] = []
        # When the first call was made that did not reach the Handler.
        self._away_since: dict[AgentId, int] = {}
        self._have_left: set[AgentId] = set()  # Who ended in order: it comes again, or is named no more soon.

    def attached(self, peer: AgentId) -> None:
        """Note that a Handler is attached again."""
        self._away_since.pop(peer, None)
        self._have_left.discard(peer)

    def take_back(self, peer: LinkedPeer | None) -> None:
        """Keep the calls that a peer with a graceful end never read, for the next peer of its name.

        After a scale-down and scale-up, the metadata can name the new Handler before we learn that its link was
        replaced.
        """
        # What the controller never took is lost: its successor sends a snapshot of its own, and is asked anew.
        if peer is not None and peer.id != CONTROLLER and peer.outbox.is_over():
            self._have_left.add(peer.id)
            # Before those that wait: they were made earlier.
            self.waiting[:0] = [
                UnlinkedCall(peer.id, each.call, each.body, each.on_reply, bytes(each.payload), each.owner)
                for each in self._calls.take_back(peer.outbox)
            ]

    def lose_behind(self, peer: AgentId, ops: frozenset[str]) -> None:
        """Lose what is kept for a peer that has lost earlier calls of the same operation, as if it had died.

        Asked of its successor, the records behind lost ones would be stored before those that their client sends again.
        """
        waiting, self.waiting = self.waiting, []
        behind: list[UnlinkedCall] = []
        for each in waiting:
            (behind if each.peer == peer and each.call.name in ops else self.waiting).append(each)
        for each in behind:
            self._containment.run("what a lost call was for", each.owner, each.on_reply, Lost())

    def add(
        self,
        peer: AgentId,
        call: Call[B, R],
        body: B,
        on_reply: Callable[[R | Lost], None],
        payload: bytes | memoryview,
    ) -> None:
        """Keep a call until the next duty cycle."""
        self.waiting.append(UnlinkedCall(peer, call, body, on_reply, bytes(payload), self._containment.owner))

    def ask_again(self, outbox_of: Callable[[AgentId], Outbox | None]) -> int:
        """Make the kept calls before any other, so that their order stays; return how many wait no more."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            self._containment.run("what a call was for", each.owner, self._ask, each, outbox_of(each.peer))
        return len(waiting) - len(self.waiting)

    def _ask(self, call: UnlinkedCall, outbox: Outbox | None) -> None:
        if outbox is not None:
            self._calls.ask(outbox, call.peer, call.call, call.body, call.on_reply, call.payload)
            return
        now_ns = self._now_ns()
        is_away = now_ns - self._away_since.setdefault(call.peer, now_ns) >= _AWAY_NS
        if call.peer.role == HANDLER and call.peer.index >= self._services.image.handler_count:
            self._owner_calls.answer_for_nobody(call.call, call.body, bytearray(call.payload), call.on_reply)
        elif call.peer in self._have_left and not is_away:
            # Its link, or the metadata that name it no more, are on their way.
            self.waiting.append(call)
        else:
            call.on_reply(Lost(is_away))


class HandlerPeers:
    """The `Peers` of request/context.py over this Handler's links."""

    def __init__(self, ask: Callable[..., None]) -> None:
        self._ask = ask

    def ask(
        self,
        handler: int,
        call: Call[B, R],
        body: B,
        on_reply: Callable[[R | Lost], None],
        payload: bytes | memoryview = b"",
    ) -> None:
        self._ask(handler_id(handler), call, body, on_reply, payload)

    def ask_cleaner(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        self._ask(CLEANER, call, body, on_reply)

    def ask_controller(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        self._ask(CONTROLLER, call, body, on_reply)
