"""MetricsResponder: serves GET /metrics and /health over HTTP/1.1, in the loop of the agent that owns it.

It uses no thread, never blocks, and is bounded: CONNECTIONS_MAX connections, one small request on each, a deadline, and
one rendered answer for all requests within a second, compressed for those that accept gzip. A scraper that reads slowly
delays only itself. Its epoll is registered in the agent's epoll, so that the agent wakes up for it.

Idle connections must not make a health probe fail, because a service manager then restarts the broker. A request that
arrives with its connection is therefore handled at once. Above CONNECTIONS_MAX the client address with most connections
loses one: a connection without a complete request before one that does not read its answer, the oldest first.

A web page in a browser can make its own name resolve to the loopback and then read the answers there (DNS rebinding). A
listener on the loopback therefore answers only requests whose Host is `localhost`, an address or the host's name.
"""

from __future__ import annotations

import ipaddress
import logging
import select
import socket
import zlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.role.handoff import pack_address, share_key
from kproc.common.clock import NS_PER_S, Clock
from kproc.common.log_rate import LogRate
from kproc.common.own_host import is_own_host

if TYPE_CHECKING:
    from kproc.broker.observe.broker_figures import BrokerFigures

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 8 * 1024
DEADLINE_NS: Final = 10 * NS_PER_S
# Limit of connections accepted in one duty cycle, so that a flood leaves the role time for its other work.
ACCEPTS_MAX: Final = 16
# Answers within this time share one rendering, so that many scrapers cost no more than one.
_FRESH_NS: Final = NS_PER_S
_SEND_BYTES: Final = 64 * 1024
# The fastest level: the text is repetitive, and a better level takes three times as long for a tenth fewer bytes.
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31  # zlib.h: 16 for a gzip header, and the largest window.
_END_OF_HEAD: Final = b"\r\n\r\n"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

Render = Callable[[], tuple[str, bytes]]
Gather = Callable[[Callable[[], None]], None]
Health = Callable[[str], tuple[int, bytes] | None]


class Response(NamedTuple):
    """An answer. The head is separate, so that all connections share one body."""

    head: bytes
    body: bytes


class _Scraper:
    """One connection of the metrics listener: the received part of its request, then the rest of its response."""

    __slots__ = (
        "accepts_gzip", "address", "fd", "has_body", "is_waiting", "later", "received", "since_ns", "sock", "unsent",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: bytes, since_ns: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.address = address
        self.since_ns = since_ns
        self.received = b""
        self.unsent: memoryview | None = None
        self.later = memoryview(b"")  # The body, which all connections share. It is sent after `unsent`.
        self.has_body = True
        self.accepts_gzip = False
        self.is_waiting = False  # True while it waits for the metrics.

    def respond(self, response: Response) -> None:
        """Set the response that is to be sent on this connection."""
        self.unsent, self.later = memoryview(response.head), memoryview(response.body)


class MetricsResponder:
    """The HTTP server of one metrics listener.

    render: returns content type and body of /metrics.
    health: returns HTTP status and JSON for a path, or None for an unknown path.
    look: called at every duty cycle with the time in ns.
    gather: collects the metrics and calls back when `render` can be called.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        render: Render,
        clock: Clock,
        look: Callable[[int], None] = lambda _: None,
        health: Health = lambda _: None,
        gather: Gather = lambda then: then(),
    ) -> None:
        self._listening = listening
        self._render = render
        self._look = look
        self._health = health
        self._gather = gather
        self._is_gathering = False
        self._is_loopback = _is_loopback(listening.getsockname()[0])
        self._lines = LogRate(logger, "and %d more connections of the metrics listener were closed")
        self._clock = clock
        self._scrapers: dict[int, _Scraper] = {}
        self._body: tuple[str, bytes] = ("", b"")
        self._gzipped: bytes | None = None  # The body compressed, once a scraper has accepted that.
        self._body_expires_ns = 0
        self._epoll = select.epoll()
        listening.setblocking(False)
        self._epoll.register(listening.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `work` has work. A passed deadline does not make it readable."""
        return self._epoll.fileno()

    def work(self) -> int:
        """Handle all ready connections of the metrics listener without blocking. Close overdue connections.

        Return the number of events.
        """
        self._look(self._clock.now_ns())
        events = self._epoll.poll(0)
        is_called = False
        for fd, _ in events:
            scraper = self._scrapers.get(fd)
            if scraper is not None:
                self._advance(scraper)
            is_called = is_called or fd == self._listening.fileno()
        # Accept last. A new connection may get the descriptor of one that was closed above, and an event of the old
        # connection must not go to the new one.
        if is_called:
            self._accept()
        now_ns = self._clock.now_ns()
        self._lines.report_suppressed(now_ns)
        for scraper in [each for each in self._scrapers.values() if now_ns - each.since_ns >= DEADLINE_NS]:
            self._evict(scraper, f"request and response took longer than {DEADLINE_NS // NS_PER_S} s")
        return len(events)

    def close(self) -> None:
        for scraper in list(self._scrapers.values()):
            self._close(scraper)
        self._epoll.close()
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, peer = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # The client has disconnected, or it waits in the backlog because no descriptor is free.
                logger.debug("cannot accept a connection of the metrics listener: %s", error)
                return
            sock.setblocking(False)
            scraper = _Scraper(sock, share_key(pack_address(peer[0])), self._clock.now_ns())
            self._scrapers[scraper.fd] = scraper
            self._epoll.register(scraper.fd, select.EPOLLIN)
            # Read at once: most clients have sent their request by now, and their connection ends before other clients
            # can fill the table.
            self._advance(scraper)
            if len(self._scrapers) > CONNECTIONS_MAX:
                self._evict(self._surplus(), "too many connections, and its address has most of them")

    def _surplus(self) -> _Scraper:
        """Return the connection to close for a new one above the limit.

        It is one of the address that has most connections.
        """
        # The address with the most connections loses one: if possible one without a complete request, and then the
        # oldest. So a flood of idle connections does not end a scrape that is being answered.
        counts = Counter(scraper.address for scraper in self._scrapers.values())
        return max(
            self._scrapers.values(),
            key=lambda each: (
                counts[each.address],
                not each.is_waiting and each.unsent is None,
                -each.since_ns,
            ),
        )

    def _evict(self, scraper: _Scraper, reason: str) -> None:
        if self._lines.has_room(self._clock.now_ns()):
            logger.info("closing a connection of the metrics listener: %s", reason)
        self._close(scraper)

    def _close(self, scraper: _Scraper) -> None:
        del self._scrapers[scraper.fd]
        self._epoll.unregister(scraper.fd)
        scraper.sock.close()

    def _advance(self, scraper: _Scraper) -> None:
        """Receive the rest of a scraper's request, then send the rest of its response, as far as the socket allows.

        Close the connection if it has an event while it waits for the metrics: then its client has left.
        """
        try:
            # The scraper has sent its request and waits. epoll reports only errors and hang-ups then.
            if scraper.is_waiting:
                self._close(scraper)
                return
            if scraper.unsent is None:
                self._receive(scraper)
            if scraper.unsent is not None:
                self._send(scraper)
        except OSError as error:
            logger.debug(
                "closing a connection of the metrics listener, because its client is gone: %s", error
            )
            self._close(scraper)

    def _receive(self, scraper: _Scraper) -> None:
        try:
            piece = scraper.sock.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        # The scraper has closed its side before its request was complete, so there is nothing to answer.
        if not piece:
            self._close(scraper)
            return
        scraper.received += piece
        if _END_OF_HEAD in scraper.received:
            answer = self._answer(scraper)
            if answer is None:
                scraper.is_waiting = True
                # Set an empty event mask, because a scraper that sends more bytes must not wake this role while it
                # waits. epoll reports errors and hang-ups all the same.
                self._epoll.modify(scraper.sock.fileno(), 0)
                self._start_gathering()
            else:
                scraper.respond(answer)
        elif len(scraper.received) > REQUEST_BYTES_MAX:
            scraper.respond(_response(431, "text/plain", b"the request is longer than 8 KiB\n"))
        if scraper.unsent is not None:
            self._epoll.modify(scraper.sock.fileno(), select.EPOLLOUT)

    def _send(self, scraper: _Scraper) -> None:
        assert scraper.unsent is not None
        try:
            while scraper.unsent:
                sent = scraper.sock.send(scraper.unsent[:_SEND_BYTES])
                scraper.unsent = scraper.unsent[sent:]
                if not scraper.unsent:
                    scraper.unsent, scraper.later = scraper.later, memoryview(b"")
        except BlockingIOError:
            return
        self._close(scraper)

    def _start_gathering(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self._gather(self._on_gathered)

    def _on_gathered(self) -> None:
        """Render one answer for all waiting connections."""
        self._is_gathering = False
        try:
            self._body, self._gzipped = self._render(), None
            self._body_expires_ns = self._clock.now_ns() + _FRESH_NS
        except Exception:  # A bug in a metric must not end the controller.
            logger.exception("the metrics cannot be rendered, so the waiting scrapes get status 500")
            self._body, self._gzipped = ("", b""), None
        for scraper in [each for each in self._scrapers.values() if each.is_waiting]:
            scraper.is_waiting = False
            scraper.respond(self._metrics(scraper))
            self._epoll.modify(scraper.sock.fileno(), select.EPOLLOUT)

    def _metrics(self, scraper: _Scraper) -> Response:
        content_type, body = self._body
        if not content_type:
            return _response(500, "text/plain", b"the metrics cannot be rendered; see the broker's log\n")
        if not scraper.accepts_gzip:
            return _response(200, content_type, body, has_body=scraper.has_body)
        # Compress only when a scraper accepts gzip, because compression costs time that other brokers need
        # not spend.
        if self._gzipped is None:
            self._gzipped = zlib.compress(body, _GZIP_LEVEL, _GZIP_WBITS)
        return _response(200, content_type, self._gzipped, has_body=scraper.has_body, is_gzipped=True)

    def _answer(self, scraper: _Scraper) -> Response | None:
        """Return the response to a request, or None if it must wait for the metrics."""
        # HTTP allows a body behind a GET. It is ignored, because the connection closes after the answer.
        first, *headers = scraper.received.partition(_END_OF_HEAD)[0].split(b"\r\n")
        line = first.split(b" ")
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            return _response(400, "text/plain", b"that is not an HTTP request\n")
        # A web page can make a browser connect to a loopback address under the page's own name (DNS rebinding). It must
        # not read the metrics.
        if self._is_loopback and not all(map(is_own_host, _values_of(headers, b"host"))):
            text = b"Host must be localhost, the host's own name or an address\n"
            return _response(421, "text/plain", text)
        method, path = line[0], line[1].partition(b"?")[0]
        health = self._health(path.decode("latin-1"))
        if health is None and path != b"/metrics":
            return _response(404, "text/plain", b"there are /metrics, /health/live and /health/ready\n")
        if method not in (b"GET", b"HEAD"):
            return _response(405, "text/plain", b"only GET and HEAD are supported\n")
        scraper.has_body = method == b"GET"
        scraper.accepts_gzip = any(map(_has_gzip, _values_of(headers, b"accept-encoding")))
        if health is not None:
            return _response(health[0], "application/json", health[1], has_body=scraper.has_body)
        return self._metrics(scraper) if self._clock.now_ns() < self._body_expires_ns else None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _values_of(headers: list[bytes], wanted: bytes) -> list[str]:
    """Return the values of all headers with this name, in lower case."""
    pairs = [header.partition(b":") for header in headers]
    return [
        value.decode("latin-1").strip().lower() for name, _, value in pairs if name.strip().lower() == wanted
    ]


def _has_gzip(accepted: str) -> bool:
    """Return True if an Accept-Encoding header names gzip, and not with a weight of 0 (RFC 9110, section 12.5.3)."""
    for each in accepted.replace(" ", "").split(","):
        coding, _, weight = each.partition(";q=")
        if coding == "gzip":
            return bool(weight.strip("0.")) if weight else True
    return False


def _response(
    status: int, content_type: str, body: bytes, *, has_body: bool = True, is_gzipped: bool = False
) -> Response:
    encoding = "Content-Encoding: gzip\r\n" if is_gzipped else ""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n{encoding}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return Response(head.encode(), body if has_body else b"")


class Scrapes:
    """The metrics listener of a role, and the figures that it collects from the Handlers.

    The controller runs it, in its duty cycle. Neither the cleaner, which compacts, nor a role that serves clients may
    run it: under load /health would fail, and a service manager would restart the broker.
    """

    def __init__(self, responder: MetricsResponder, figures: BrokerFigures) -> None:
        self._responder = responder
        self._figures = figures

    def fileno(self) -> int:
        """Return a descriptor that is readable when `work` has work."""
        return self._responder.fileno()

    def work(self) -> int:
        """Handle the events of the HTTP connections and continue to gather metrics. Return the amount of work."""
        return self._responder.work() + self._figures.work()

    def due_ms(self, now_ns: int) -> int:
        """Return the milliseconds until `work` must be called again if no Handler answers."""
        return self._figures.due_ms(now_ns)

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._responder.close()
