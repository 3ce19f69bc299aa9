"""UnlinkedCalls: the calls of a Handler to other Handlers without a link, during a restart or a scale-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kproc.broker.calls.call_links import Calls
from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.handler.owner_calls import OwnerCalls
from kproc.broker.request.context import Services
from kproc.broker.role.linked_role import LinkedPeer
from kproc.broker.role.roles import CONTROLLER, HANDLER
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.outbox import Outbox
from kproc.common.clock import NS_PER_S
from kproc.common.containment import Owner

# A Handler without a link for longer than this is not merely being restarted. Calls to it are not kept any more, and
# their Lost has `is_away`, so that clients get errors at once.
_AWAY_NS: Final = NS_PER_S


class UnlinkedCall(NamedTuple):
    """A call to a Handler that has no link now. It is kept, to be sent again."""

    peer: AgentId
    call: Call[Any, Any]
    body: Any
    on_reply: Callable[[Any], None]
    payload: bytes
    owner: Owner | None


class UnlinkedCalls:
    """The calls to Handlers without a link. They are tried again in the next duty cycle."""

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
        # Time of the first call that did not reach the Handler, in ns.
        self._away_since: dict[AgentId, int] = {}
        # Handlers that ended in order. Each of them will be started again, or the metadata will stop naming it.
        self._have_left: set[AgentId] = set()

    def attached(self, peer: AgentId) -> None:
        """Record that a Handler has a link again."""
        self._away_since.pop(peer, None)
        self._have_left.discard(peer)

    def keep_unread(self, peer: LinkedPeer | None) -> None:
        """Keep the calls that an ended peer has not read, in their order, for its successor.

        Do nothing for None, for a peer that has not ended, and for the controller. After a scale-down and scale-up, the
        metadata can name the new Handler before we learn that its link was replaced.
        """
        # Keep no calls to the controller. They are lost: its successor sends a new snapshot, and the callers retry.
        if peer is not None and peer.id != CONTROLLER and peer.outbox.is_over():
            self._have_left.add(peer.id)
            # Put the unread calls before the calls that wait already, because they were made earlier.
            self.waiting[:0] = [
                UnlinkedCall(peer.id, each.call, each.body, each.on_reply, bytes(each.payload), each.owner)
                for each in self._calls.withdraw(peer.outbox)
            ]

    def fail_behind(self, peer: AgentId, ops: frozenset[str]) -> None:
        """Reply Lost to the kept calls of a peer that has lost earlier calls of the same operations.

        If its successor handled them, records behind the lost ones would be stored before their client's retry.
        """
        waiting, self.waiting = self.waiting, []
        behind: list[UnlinkedCall] = []
        for each in waiting:
            (behind if each.peer == peer and each.call.name in ops else self.waiting).append(each)
        for each in behind:
            self._containment.run("the callback of a lost call", each.owner, each.on_reply, Lost())

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

    def resend(self, outbox_of: Callable[[AgentId], Outbox | None]) -> int:
        """Send the kept calls before any new one, so that their order stays. Return how many do not wait any more."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            self._containment.run(
                "sending a call that waited for a link", each.owner, self._send, each, outbox_of(each.peer)
            )
        return len(waiting) - len(self.waiting)

    def _send(self, call: UnlinkedCall, outbox: Outbox | None) -> None:
        if outbox is not None:
            self._calls.send(outbox, call.peer, call.call, call.body, call.on_reply, call.payload)
            return
        now_ns = self._now_ns()
        is_away = now_ns - self._away_since.setdefault(call.peer, now_ns) >= _AWAY_NS
        if call.peer.role == HANDLER and call.peer.index >= self._services.image.handler_count:
            self._owner_calls.answer_for_nobody(call.call, call.body, bytearray(call.payload), call.on_reply)
        elif call.peer in self._have_left and not is_away:
            # The Handler ended in order. Keep the call for up to 1 s, until the new Handler has a link, or until the
            # metadata do not name it any more.
            self.waiting.append(call)
        else:
            call.on_reply(Lost(is_away))
