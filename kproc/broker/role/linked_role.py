"""LinkedRole: the base of Handler, controller and cleaner, whose input comes over links with inboxes and outboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kproc.broker.calls.call_links import Calls
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.role import Role
from kproc.broker.transport.agent import STORE_MS, AgentId, Link
from kproc.broker.transport.envelope import REPLY
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import Clock

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper

_CALLS_PER_PASS: Final = 64
_EMPTY: Final = SLOT["empty_cycles"]
_FILL: Final = SLOT["ring_fill_bytes"]
_CAPACITY: Final = SLOT["ring_capacity_bytes"]
_OVERFLOW: Final = SLOT["overflow"]


class LinkedPeer:
    """The link to one peer, with its inbox and outbox."""

    __slots__ = ("id", "inbox", "link", "outbox")

    def __init__(self, link: Link) -> None:
        self.id = link.peer
        self.link = link
        self.inbox = Inbox(link.receiver)
        self.outbox = Outbox(link.sender, link.waker)


class LinkedRole(Role):
    """Base of Handler, controller and cleaner, whose input comes over links.

    Subclasses implement `_work` and `_on_tick`. The controller may serve HTTP connections of the metrics listener, too.
    """

    __slots__ = (
        "_calls", "_empty_cycles", "_empty_since", "_inputs", "_is_stopping", "_looks", "_outboxes", "_peers",
    )  # fmt: skip

    def __init__(self, agent_id: AgentId, *, doze: Sleeper, metrics: MetricsRow, clock: Clock) -> None:
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock)
        self._peers: dict[AgentId, LinkedPeer] = {}
        # Lists that every duty cycle reads. `_list_links` creates them again when a peer comes or goes.
        self._outboxes: list[Outbox] = []
        # For each peer: the function that checks whether its inbox is empty.
        self._inputs: list[tuple[Callable[[], bool], LinkedPeer]] = []
        # Functions that check whether an inbox is empty, for every inbox that `has_input` looks into.
        self._looks: list[Callable[[], bool]] = []
        self._calls = Calls(self.containment)
        self._is_stopping = False
        self._empty_cycles = self._empty_since = 0

    def attach(self, link: Link) -> None:
        if link.peer in self._peers:
            self.detach(link.peer)
        self._peers[link.peer] = LinkedPeer(link)
        self._list_links()

    def detach(self, peer: AgentId) -> None:
        found = self._peers.pop(peer, None)
        if found is not None:
            self._list_links()
            self._drain_replies(found)
            lost = self._calls.fail_all(peer)
            found.outbox.close()
            self._lost(peer, lost)

    def _lost(self, peer: AgentId, ops: frozenset[str]) -> None:
        """React to the loss of a peer. `ops` names its calls without a reply. By default nothing is done."""

    def _drain_replies(self, peer: LinkedPeer) -> None:
        """Read the replies that a peer sent before it died, because calls that it executed must not fail as lost."""
        while batch := peer.inbox.poll(_CALLS_PER_PASS):
            for kind, view in batch:
                if kind == REPLY:
                    self._calls.handle_reply(view)
            peer.inbox.release()

    def next_deadline_ms(self) -> int:
        has_overflow = any(outbox.has_overflow for outbox in self._outboxes)
        return 1 if has_overflow else self._due_ms(self._clock.now_ns())

    def do_work(self, timeout_ms: int) -> int:
        """Run one duty cycle: do the work that is ready, publish once per link, then sleep up to `timeout_ms`.

        Return the amount of work.
        """
        self.cycle_count += 1
        work = self._work()
        # Publish the records that were pushed. If a ring was full, retry soon, because no signal reports that a ring
        # has space.
        has_overflow = False
        for outbox in self._outboxes:
            if outbox.is_dirty:
                outbox.flush()
                if outbox.has_overflow:
                    has_overflow = True
        now_ns = self._clock.now_ns()
        if now_ns >= self._next_store_ns:
            self._tick(now_ns)
        elif work:  # Wake up for the next tick, which stores the metrics of this cycle.
            self.sleep_ms_max = STORE_MS
        if not timeout_ms:
            return work
        # Sleep at once, even after work. Otherwise each request of a lone client would cost an empty duty cycle. The
        # Sleeper checks for input before it sleeps, so there is no check here.
        deadline_ms = 1 if has_overflow else self._due_ms(now_ns)
        if deadline_ms < timeout_ms:
            timeout_ms = deadline_ms
            if not (deadline_ms or work or self.has_input()):
                timeout_ms = self._count_empty_cycle()
        for fd, _ in self._doze.wait(self._poll, timeout_ms / 1000, self.has_input, now_ns):
            if fd == self._watched_fd:
                self.is_called = True
        return work

    def _count_empty_cycle(self) -> int:
        """Count a cycle that did nothing although a timer was due. Return how long to sleep, in ms.

        A single such cycle comes from the clock's resolution and does not sleep. Several in a row are a bug, and each
        sleeps 1 ms, because otherwise the bug would use a whole core.
        """
        self._empty_cycles += 1
        in_a_row, self._empty_since = self.cycle_count - self._empty_since == 1, self.cycle_count
        return int(in_a_row)

    def drain(self) -> None:
        self._is_stopping = True

    def is_drained(self) -> bool:
        return self._is_stopping and not any(each.has_overflow for each in self._outboxes)

    def close(self) -> str | None:
        for peer in self._peers.values():
            peer.inbox.finish()
        self._epoll.close()
        return None

    def _work(self) -> int:
        raise NotImplementedError

    def _due_ms(self, now_ns: int) -> int:
        """Return the milliseconds until the next timer of `_work` is due."""
        return self.sleep_ms_max

    def _outbox(self, peer: AgentId) -> Outbox | None:
        found = self._peers.get(peer)
        return found.outbox if found is not None else None

    def _other_outboxes(self) -> list[Outbox]:
        """Return the outboxes of a subclass that belong to no peer."""
        return []

    def _other_looks(self) -> list[Callable[[], bool]]:
        """Return `is_empty` of the inboxes of a subclass that belong to no peer."""
        return []

    def _list_links(self) -> None:
        self._outboxes = [peer.outbox for peer in self._peers.values()] + self._other_outboxes()
        self._inputs = [(peer.inbox.is_empty, peer) for peer in self._peers.values()]
        self._looks = [is_empty for is_empty, _ in self._inputs] + self._other_looks()

    def _drain_records(self, take: Callable[[LinkedPeer, int, memoryview], None]) -> int:
        """Pass up to 64 records of each peer to `take`, which must keep no view. Return how many in all."""
        taken = 0
        for is_empty, peer in self._inputs:
            if not is_empty():
                batch = peer.inbox.poll(_CALLS_PER_PASS)
                for kind, view in batch:
                    take(peer, kind, view)
                if batch:  # Empty: only fragments of a message came. The inbox releases their space.
                    peer.inbox.release()
                taken += len(batch)
        return taken

    def has_input(self) -> bool:
        """Return True if a link holds input."""
        # A loop instead of any(), because any() over a generator costs 0.2 us more at every sleep.
        for is_empty in self._looks:  # noqa: SIM110
            if not is_empty():
                return True
        return False

    def _tick(self, now_ns: int) -> None:
        values = self._values
        values[_EMPTY] += self._empty_cycles
        self._empty_cycles = 0
        values[_FILL] = sum(outbox.fill_bytes() for outbox in self._outboxes)
        values[_CAPACITY] = sum(outbox.capacity for outbox in self._outboxes)
        values[_OVERFLOW] = sum(outbox.overflow_count() for outbox in self._outboxes)
        super()._tick(now_ns)
