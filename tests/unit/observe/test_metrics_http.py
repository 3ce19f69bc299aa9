"""The metrics listener: one small request, one answer, nobody can hold it up."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack

import pytest

from kproc.clock import ManualClock
from kproc.observe.metrics_http import CONNECTIONS_MAX, MetricsResponder

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Rig:
    """A responder, and scrapers on the loopback."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.clock = ManualClock()
        self.rendered = 0
        self.body = b"kproc_up 1\n"
        self.fails = False
        listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._address = listening.getsockname()
        self.health: tuple[int, bytes] = (200, b"{}")
        self.responder = MetricsResponder(
            listening,
            render=self._render,
            clock=self.clock,
            health=lambda path: self.health if path == "/health/ready" else None,
        )
        stack.callback(self.responder.close)

    def _render(self) -> tuple[str, bytes]:
        self.rendered += 1
        if self.fails:
            raise ZeroDivisionError
        return "text/plain; version=0.0.4", self.body

    def connect(self, request: bytes = b"") -> socket.socket:
        sock = self._stack.enter_context(socket.create_connection(self._address, timeout=5))
        if request:
            sock.sendall(request)
        return sock

    def work(self, cycles: int = 5) -> None:
        for _ in range(cycles):
            self.responder.work()

    def ask(self, request: bytes = GET) -> bytes:
        sock = self.connect(request)
        self.work()
        return everything(sock)


def scrapers_of(rig: Rig) -> Collection[object]:
    """Whose connections are open."""
    return rig.responder._scrapers


def everything(sock: socket.socket) -> bytes:
    received = b""
    while piece := sock.recv(1 << 16):
        received += piece
    return received


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def test_get_is_answered_and_the_connection_closed(rig: Rig) -> None:
    head, _, body = rig.ask().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4\r\n" in head
    assert b"Content-Length: %d\r\n" % len(rig.body) in head
    assert body == rig.body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"GET " + b"x" * 9000, 431),
    ],
)
def test_anything_else_is_refused_in_http(rig: Rig, request_bytes: bytes, status: int) -> None:
    assert rig.ask(request_bytes).split()[1] == b"%d" % status


@pytest.mark.parametrize("status", [200, 503])
def test_health_is_answered_with_its_status_and_without_rendering_metrics(rig: Rig, status: int) -> None:
    rig.health = (status, b'{"status":"x"}')
    head, _, body = rig.ask(b"GET /health/ready HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert head.split()[1] == b"%d" % status
    assert b"Content-Type: application/json\r\n" in head
    assert body == b'{"status":"x"}'
    assert rig.ask(b"HEAD /health/ready HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
    assert b"405" in rig.ask(b"POST /health/ready HTTP/1.1\r\n\r\n")
    assert not rig.rendered


def test_head_has_no_body(rig: Rig) -> None:
    assert rig.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


def test_request_may_come_in_pieces(rig: Rig) -> None:
    sock = rig.connect(GET[:10])
    rig.work()
    sock.sendall(GET[10:])
    rig.work()
    assert b"200 OK" in everything(sock)


def test_one_rendering_serves_a_second_of_scrapes(rig: Rig) -> None:
    rig.ask()
    rig.ask()
    assert rig.rendered == 1
    rig.clock.advance_ms(1000)
    rig.ask()
    assert rig.rendered == 2


def test_scraper_that_does_not_read_or_ask_waits_for_itself_and_is_closed(rig: Rig) -> None:
    rig.body = b"x" * (32 << 20)
    slow, silent = rig.connect(GET), rig.connect()
    rig.work()
    assert b"404" in rig.ask(b"GET / HTTP/1.1\r\n\r\n"), "others are served meanwhile"
    rig.clock.advance_ms(10_000)
    rig.work()
    assert not scrapers_of(rig)
    assert len(everything(slow)) < len(rig.body)
    assert everything(silent) == b""


def test_more_scrapers_than_there_is_room_for_wait_in_the_backlog(rig: Rig) -> None:
    waiting = [rig.connect() for _ in range(CONNECTIONS_MAX + 3)]
    rig.work(20)
    assert len(scrapers_of(rig)) == CONNECTIONS_MAX
    for sock in waiting:
        sock.sendall(GET)
    rig.work(40)
    assert all(b"200 OK" in everything(sock) for sock in waiting)


def test_half_requests_that_take_all_places_hold_a_scrape_up_for_a_second_at_most(rig: Rig) -> None:
    halves = [rig.connect(b"GET /metrics HTTP/1.1\r\n") for _ in range(CONNECTIONS_MAX)]
    rig.work(20)
    scrape = rig.connect(GET)
    rig.clock.advance_ms(999)
    rig.work(20)
    assert len(scrapers_of(rig)) == CONNECTIONS_MAX, "they have their second"
    rig.clock.advance_ms(1)
    rig.work(20)
    assert b"200 OK" in everything(scrape)
    assert all(everything(half) == b"" for half in halves)


def test_scraper_that_resets_harms_nobody(rig: Rig) -> None:
    sock = rig.connect(GET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    rig.work()
    assert not scrapers_of(rig)
    assert b"200 OK" in rig.ask()


def test_mistake_in_a_figure_is_an_answer_and_not_the_end_of_the_role(rig: Rig) -> None:
    rig.fails = True
    assert b"500 Internal" in rig.ask()
    rig.fails = False
    assert b"200 OK" in rig.ask()
