"""Request lines for `kproc monitor`: their form, the call that reads them, and the controller's HandlerWatches.

Each Handler collects the lines of its own clients (handler/request_monitor.py). A client of a Handler gets the lines of
all Handlers from that Handler. A client of the control listener gets them from the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from kproc.broker.calls.call_links import AskHandler
from kproc.broker.calls.calls import Call, Lost, Reply
from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import ReadMonitor
from kproc.common.clock import NS_PER_S

WATCHES_MAX: Final = 8
IDLE_NS: Final = 5 * NS_PER_S
"""A watch ends when its client has not read it for this time, or by its last call."""
TOO_MANY: Final = f"{WATCHES_MAX} monitors run already, which is the limit"
_REPLY_TIMEOUT_NS: Final = NS_PER_S
OnAnswer = Callable[[OwnAnswer], None]


class WatchBody(msgspec.Struct, array_like=True):
    """A call to a Handler for the request lines that it has collected for a watch (`kproc monitor`)."""

    operation: ReadMonitor


class RequestLine(msgspec.Struct, array_like=True):
    """One answered request of a client, for `kproc monitor`. `error` is the first error code in its response, or ""."""

    time_ms: int
    api: str
    version: int
    topics: list[str]
    others: list[str]
    """Groups and transactional ids."""
    more: int
    """Number of further names."""
    user: str
    client: str
    address: str
    request_bytes: int
    response_bytes: int
    took_us: int
    outcome: str
    error: str
    fields: dict[str, Any] | None = None
    """The decoded request, for watches with fields. None if it is large."""


class WatchedLines(Reply):
    """The reply to a watch: the request lines since the last call, and the number of requests without a line.

    `refused` is the reason why the Handler has refused the watch, or "".
    """

    lines: list[RequestLine] = msgspec.field(default_factory=list)
    lost: int = 0
    refused: str = ""


READ_WATCH: Final[Call[WatchBody, WatchedLines]] = Call("read_watch", WatchBody, WatchedLines)


class JoinedLines:
    """The lines of several Handlers that belong into one answer."""

    __slots__ = ("_lines", "_lost", "_refused")

    def __init__(self) -> None:
        self._lines: list[RequestLine] = []
        self._lost = 0
        self._refused = ""

    def add(self, reply: WatchedLines | Lost) -> None:
        # The lines of a Handler that has died are lost. Its successor starts a new watch at the next call.
        if not isinstance(reply, Lost):
            self._lines += reply.lines
            self._lost += reply.lost
            self._refused = self._refused or reply.refused

    def make_answer(self, **more: Any) -> OwnAnswer:
        """Return the lines in the order of their times, or the reason why a Handler has refused the watch."""
        if self._refused:
            # A watch is refused only while too many others run.
            return OwnAnswer(error=self._refused, is_retriable=True)
        self._lines.sort(key=lambda line: line.time_ms)
        rows = [msgspec.structs.asdict(line) for line in self._lines]
        for row in rows:
            if row["fields"] is None:
                del row["fields"]
        return OwnAnswer(result={"lines": rows, "lost": self._lost, **more})


class _HandlerWatch:
    """One watch of all Handlers: the lines for the next answer, and the Handlers that have not replied yet."""

    __slots__ = ("is_last", "joined", "on_answer", "pending", "until_ns")

    def __init__(self) -> None:
        self.is_last = False
        self.joined = JoinedLines()
        self.pending: set[int] = set()
        self.on_answer: OnAnswer | None = None
        self.until_ns = 0

    def add(self, index: int, reply: WatchedLines | Lost) -> None:
        """Add a Handler's lines. Lines that come after the answer go into the next one."""
        self.pending.discard(index)
        self.joined.add(reply)
        if not self.pending:
            self.respond()

    def respond(self) -> None:
        """Respond to the client that waits, if there is one, with the lines so far."""
        on_answer, self.on_answer = self.on_answer, None
        if on_answer is not None:
            joined, self.joined = self.joined, JoinedLines()
            on_answer(joined.make_answer(silent=sorted(self.pending)))


class HandlerWatches:
    """The watches of clients of the control listener. handler_count: returns the number of Handlers."""

    def __init__(self, now_ns: Callable[[], int], handler_count: Callable[[], int], ask: AskHandler) -> None:
        self._now_ns = now_ns
        self._handler_count = handler_count
        self._ask = ask
        self._watches: dict[str, _HandlerWatch] = {}

    @property
    def is_waiting(self) -> bool:
        """True while a client waits. `expire` must then be called several times a second."""
        return any(watch.on_answer is not None for watch in self._watches.values())

    def read(self, operation: ReadMonitor, on_answer: OnAnswer) -> None:
        """Respond with the lines that all Handlers have collected for a watch, after 1 s without silent Handlers."""
        now_ns = self._now_ns()
        self.expire(now_ns)
        watch = self._watches.get(operation.watch)
        if watch is None:
            if operation.is_last:
                on_answer(JoinedLines().make_answer())
                return
            if len(self._watches) >= WATCHES_MAX:
                on_answer(OwnAnswer(error=TOO_MANY, is_retriable=True))
                return
            watch = self._watches[operation.watch] = _HandlerWatch()
        watch.respond()  # Respond to an earlier request first, if the client did not wait for the response.
        watch.on_answer, watch.until_ns = on_answer, now_ns + _REPLY_TIMEOUT_NS
        watch.is_last = operation.is_last
        # Send no second call to a Handler that hangs, or its queue would grow.
        free = [index for index in range(self._handler_count()) if index not in watch.pending]
        watch.pending.update(free)
        for index in free:
            self._ask(index, READ_WATCH, WatchBody(operation), partial(watch.add, index))

    def expire(self, now_ns: int) -> None:
        """Respond without the Handlers that have not replied in time. End the watches that nobody reads."""
        for name, watch in list(self._watches.items()):
            if now_ns >= watch.until_ns:
                watch.respond()
            if now_ns >= watch.until_ns + IDLE_NS or (watch.is_last and watch.on_answer is None):
                del self._watches[name]
