"""RequestMonitor: the requests of one Handler's clients while somebody watches them by `kproc monitor`.

A watch begins with its first call. It ends with a call that is marked as the last one (`is_last`), or when nobody has
called for some seconds. Between two calls it stores a bounded number of lines and counts the others as lost.

While there is a watch, the monitor takes the place of the request log (request_log.py): every request uses the general
path, and no fast path is learned. While there is none, no request is checked for it.

A client calls one Handler, which calls the others and joins their lines. A client of the control listener calls the
controller, which calls all Handlers (observe/request_lines.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.calls.calls import Lost, OnResult
from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import ReadMonitor
from kproc.broker.handler.request_log import LoggedRequest
from kproc.broker.observe.network_figures import api_name
from kproc.broker.observe.request_lines import (
    IDLE_NS,
    READ_WATCH,
    TOO_MANY,
    WATCHES_MAX,
    JoinedLines,
    RequestLine,
    WatchBody,
    WatchedLines,
)
from kproc.broker.peers.registered_calls import handles
from kproc.broker.request.context import Services
from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.handler.request_log import RequestLog
    from kproc.broker.request.request import HandlerRequest
    from kproc.broker.security.principal import Principal

LINES_MAX: Final = 500
"""Most lines that a watch stores between two calls."""
FIELDS_BYTES_MAX: Final = 32 << 10
"""Most JSON of requests' fields that a watch stores between two calls. All lines travel in one message."""
_NAMES_MAX: Final = 3  # Names of topics, groups and transactional ids in a line.
_NS_PER_US: Final = 1000
_FETCH: Final = int(ApiKey.FETCH)


class _MonitorWatch:
    """The request lines that a Handler collects for one `kproc monitor`."""

    __slots__ = ("apis", "fields_bytes", "filter", "lines", "lost", "read_ns")

    def __init__(self, operation: ReadMonitor) -> None:
        self.filter = operation
        self.apis = frozenset(operation.apis)
        self.lines: list[RequestLine] = []
        self.lost = 0
        self.read_ns = 0
        self.fields_bytes = 0  # Length of the fields in `lines` as JSON.

    def add(self, line: RequestLine, shown: Any) -> None:
        """Add a line, with the request's fields if the watch wants them and there is room for them.

        shown: the fields without secrets, or another value if there are none.
        """
        # A client that reads too slowly must not fill the memory. It gets the number of the lost lines.
        if len(self.lines) >= LINES_MAX:
            self.lost += 1
            return
        if self.filter.has_fields and isinstance(shown, dict):
            size = len(msgspec.json.encode(shown))
            # Above the limit keep the line without its fields, so that all lines fit into one message.
            if self.fields_bytes + size <= FIELDS_BYTES_MAX:
                self.fields_bytes += size
                line = msgspec.structs.replace(line, fields=shown)
        self.lines.append(line)

    def wants(self, line: RequestLine, topics: list[str]) -> bool:
        """Return True if a request matches the filter. topics: all of its topics; the line has only the first ones."""
        wanted = self.filter
        return (
            (not self.apis or line.api in self.apis)
            and _matches(wanted.client, (line.client,))
            and _matches(wanted.user, (line.user, line.user.removeprefix("User:")))
            and _matches(wanted.topic, topics)
        )


def _matches(pattern: str | None, names: tuple[str, ...] | list[str]) -> bool:
    """Return True if a name equals the pattern, or begins with it if the pattern ends with `*`."""
    if pattern is None:
        return True
    if pattern.endswith("*"):
        return any(name.startswith(pattern[:-1]) for name in names)
    return pattern in names


class RequestMonitor:
    """The watches of `kproc monitor` in one Handler. on_switched: called when the first begins or the last ends."""

    __slots__ = ("_on_switched", "_services", "_watches", "log")

    def __init__(self, services: Services, on_switched: Callable[[], None]) -> None:
        self._services = services
        self._on_switched = on_switched
        self._watches: dict[str, _MonitorWatch] = {}
        self.log: RequestLog | None = None  # The request log, which gets every request, too.

    @property
    def is_on(self) -> bool:
        return bool(self._watches)

    # -- calls

    def respond(self, operation: ReadMonitor, on_reply: Callable[[OwnAnswer], None]) -> None:
        """Respond to a client's ReadMonitor with the lines that all Handlers have collected since its last call."""
        services = self._services
        handlers = range(services.image.handler_count)
        joined, waiting = JoinedLines(), len(handlers)

        def add(reply: WatchedLines | Lost) -> None:
            nonlocal waiting
            joined.add(reply)
            waiting -= 1
            if not waiting:
                on_reply(joined.make_answer())

        for handler in handlers:
            if handler == services.handler_index:
                add(self.read(operation))
            else:
                services.peers.ask(handler, READ_WATCH, WatchBody(operation), add)

    def read(self, operation: ReadMonitor) -> WatchedLines:
        """Return a watch's lines since the last call. The first call begins the watch, unless WATCHES_MAX exist."""
        watch = self._watches.get(operation.watch)
        if watch is None:
            # The watch has expired already. A new one would end at once.
            if operation.is_last:
                return WatchedLines()
            if len(self._watches) >= WATCHES_MAX:
                return WatchedLines(refused=TOO_MANY)
            watch = self._watches[operation.watch] = _MonitorWatch(operation)
            if len(self._watches) == 1:
                self._on_switched()
        watch.read_ns = self.now_ns()
        answer = WatchedLines(lines=watch.lines, lost=watch.lost)
        watch.lines, watch.lost, watch.fields_bytes = [], 0, 0
        if operation.is_last:
            self._remove(operation.watch)
        return answer

    def _remove(self, name: str) -> None:
        del self._watches[name]
        if not self._watches:
            self._on_switched()

    # -- the interface of a request log, which the monitor replaces

    def now_ns(self) -> int:
        return self._services.clock.host_ns()

    def add(self, request: LoggedRequest, outcome: str, response_bytes: int) -> None:
        """Add an answered request to the request log, if that is on, and to each watch whose filters it matches."""
        if self.log is not None:
            self.log.add(request, outcome, response_bytes)
        # Leave out kproc's own operations, because the monitor would otherwise show its own calls.
        if request.api_key == PRIVATE_API_KEY or not self._watches:
            return
        topics, others = _names(request, self._services)
        line = RequestLine(
            **self._sender(request, request.client_address),
            topics=topics[:_NAMES_MAX],
            others=others[:_NAMES_MAX],
            more=max(0, len(topics) - _NAMES_MAX) + max(0, len(others) - _NAMES_MAX),
            user=short_name(str(request.principal)),
            request_bytes=request.body_bytes,
            response_bytes=response_bytes,
            took_us=(self.now_ns() - request.begun_ns) // _NS_PER_US,
            outcome=outcome,
            error=_error_name(request.error) if request.error else "",
        )
        self._add_line(line, topics, request.shown)

    def add_login(
        self, request: HandlerRequest, mechanism: str, principal: Principal | None, error: int
    ) -> None:
        """Add the line of a step of a login, whose requests the log does not see. It has no sizes and no time.

        principal: the user who has logged in, or None before that and for a failed login.
        """
        # Sessions that are prolonged use the general path (KIP-368), whose requests have lines of their own.
        if not self._watches or isinstance(request, LoggedRequest):
            return
        line = RequestLine(
            **self._sender(request, request.client_host),
            topics=[],
            others=[short_name(mechanism)] if mechanism else [],
            more=0,
            user=short_name(str(principal)) if principal is not None else "",
            request_bytes=0,
            response_bytes=0,
            took_us=0,
            outcome="Send",
            error=_error_name(error) if error else "",
        )
        self._add_line(line, [], None)

    def _add_line(self, line: RequestLine, topics: list[str], shown: Any) -> None:
        for watch in self._watches.values():
            if watch.wants(line, topics):
                watch.add(line, shown)

    def flush(self) -> None:
        """Write the request log's lines, and end the watches that nobody reads. Called in every duty cycle."""
        if self.log is not None:
            self.log.flush()
        too_old_ns = self.now_ns() - IDLE_NS
        for name in [name for name, watch in self._watches.items() if watch.read_ns < too_old_ns]:
            self._remove(name)

    def _sender(self, request: HandlerRequest, address: str) -> dict[str, Any]:
        """Return the fields that the line of every request has: time, API, version, client id and client address."""
        return {
            "time_ms": self._services.clock.wall_ms(),
            "api": api_name(request.api_key),
            "version": request.api_version,
            "client": short_name((request.client_id_bytes or b"").decode("utf-8", "replace")),
            "address": address.removeprefix("/"),
        }


@handles(READ_WATCH)
def handle_read_watch(services: Services, body: WatchBody, on_reply: OnResult[WatchedLines]) -> None:
    """Send another Handler the lines of the requests of this Handler's clients."""
    monitor = services.clients.monitor
    on_reply(monitor.read(body.operation) if monitor is not None else WatchedLines())


def _names(request: LoggedRequest, services: Services) -> tuple[list[str], list[str]]:
    """Return the topics, and the groups and transactional ids, that a request names."""
    shown = request.shown
    if not isinstance(shown, dict):
        return [], []
    topics: list[str] = []
    others: list[str] = []
    for key, value in shown.items():
        if key.startswith("topic") and isinstance(value, list):
            topics += (short_name(name) for name in _topic_names(value, services))
        elif (
            key in ("group_id", "group", "key", "transactional_id", "mechanism")
            and isinstance(value, str)
            and value
        ):
            others.append(short_name(value))
        elif key in ("groups", "groups_names", "coordinator_keys", "transactional_ids") and isinstance(
            value, list
        ):
            others += (short_name(name) for name in _group_names(value))
    # A Fetch in a session names only the partitions that have changed (KIP-227).
    if request.api_key == _FETCH and (session_id := shown.get("session_id")):
        topics = services.owner.session_cache.topic_names(session_id, services.image) or topics
    return topics, others


def _topic_names(rows: list[Any], services: Services) -> Iterator[str]:
    for row in rows:
        if isinstance(row, str):
            yield row
        elif isinstance(row, dict):
            name = row.get("name") or row.get("topic")
            if name:
                yield name
            elif topic_id := row.get("topic_id"):
                known = services.image.topics_by_id.get(bytes.fromhex(topic_id))
                yield known.name if known is not None else topic_id


def _group_names(rows: list[Any]) -> Iterator[str]:
    for row in rows:
        name = row.get("group_id") if isinstance(row, dict) else row
        if isinstance(name, str):
            yield name


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
