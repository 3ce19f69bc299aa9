"""The metrics listener: one small request, one answer, and no client can block it."""

from __future__ import annotations

import gzip
import select
import socket
import tracemalloc
from collections.abc import Collection, Iterator
from contextlib import ExitStack

import pytest

from kproc.broker.observe.metrics_http import CONNECTIONS_MAX, MetricsResponder
from kproc.common.clock import ManualClock
from tests.support.wait import PATIENCE_SECONDS

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Rig:
    """A responder, and scrapers on the loopback."""

    def __init__(self, stack: ExitStack, bound: str = "127.0.0.1") -> None:
        self._stack = stack
        self.clock = ManualClock()
        self.rendered = 0
        self.body = b"kproc_up 1\n"
        self.fails = False
        listening = socket.create_server((bound, 0), backlog=1000)
        self._address = ("127.0.0.1", listening.getsockname()[1])
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

    def connect(self, request: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection(self._address, timeout=PATIENCE_SECONDS, source_address=(source, 0))
        sock = self._stack.enter_context(made)
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


def is_closed(sock: socket.socket) -> bool:
    if not select.select([sock], [], [], 0)[0]:
        return False
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except ConnectionResetError:
        return True


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


@pytest.mark.parametrize(
    ("accepted", "is_gzipped"),
    [
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"gzip;q=1.0, identity;q=0", True),
        (b"gzip; q=0", False),
        (b"gzip;q=0.000", False),
        (b"deflate, br", False),
        (b"xgzip", False),
        (b"", False),
    ],
)
def test_body_is_compressed_if_the_scraper_accepts_gzip(rig: Rig, accepted: bytes, is_gzipped: bool) -> None:
    rig.body = b"kproc_up 1\n" * 100
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\naccept-encoding: " + accepted + b"\r\n\r\n"
    head, _, body = rig.ask(request).partition(b"\r\n\r\n")
    assert (b"Content-Encoding: gzip\r\n" in head) == is_gzipped
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert (gzip.decompress(body) if is_gzipped else body) == rig.body
    assert len(body) < len(rig.body) or not is_gzipped


def test_compressed_body_belongs_to_its_rendering(rig: Rig) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
    for rig.body in (b"kproc_up 1\n", b"kproc_up 2\n"):
        assert gzip.decompress(rig.ask(request).partition(b"\r\n\r\n")[2]) == rig.body
        assert rig.ask().endswith(rig.body), "the same rendering for others"
        rig.clock.advance_ms(1_000)
    assert rig.rendered == 2


@pytest.mark.parametrize("status", [200, 503])
def test_health_is_answered_without_rendering_metrics(rig: Rig, status: int) -> None:
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


def test_stalled_scraper_delays_only_itself_and_is_closed(rig: Rig) -> None:
    rig.body = b"x" * (32 << 20)
    slow, silent = rig.connect(GET), rig.connect()
    rig.work()
    assert b"404" in rig.ask(b"GET / HTTP/1.1\r\n\r\n"), "others are served meanwhile"
    rig.clock.advance_ms(10_000)
    rig.work()
    assert not scrapers_of(rig)
    assert len(everything(slow)) < len(rig.body)
    assert everything(silent) == b""


def test_reset_scrape_does_not_disturb_the_next_one(rig: Rig) -> None:
    sock = rig.connect(GET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    rig.work()
    assert not scrapers_of(rig)
    assert b"200 OK" in rig.ask()


def test_exception_in_metric_is_answered_and_role_survives(rig: Rig) -> None:
    rig.fails = True
    assert b"500 Internal" in rig.ask()
    rig.fails = False
    assert b"200 OK" in rig.ask()


# -- idle connections ------------------------------------------------------------------------------------------

PROBE = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("start", [b"", b"GET /metrics HTTP/1.1\r\n"])
def test_health_is_answered_beside_idle_connections(rig: Rig, start: bytes) -> None:
    """From the address of the probe itself. They come again as soon as they are closed."""
    idle = [rig.connect(start) for _ in range(3 * CONNECTIONS_MAX)]
    rig.work(20)
    for _ in range(5):
        assert b"200 OK" in rig.ask(PROBE)
        for at, sock in enumerate(idle):
            if is_closed(sock):
                idle[at] = rig.connect(start)
        rig.work(20)
    assert len(scrapers_of(rig)) == CONNECTIONS_MAX


def test_request_in_pieces_is_served_beside_idle_address(rig: Rig) -> None:
    scrape = rig.connect(GET[:10], source="127.0.0.2")
    rig.work()
    for _ in range(4 * CONNECTIONS_MAX):
        rig.connect()
    rig.work(40)
    scrape.sendall(GET[10:])
    rig.work()
    assert b"200 OK" in everything(scrape)


def test_slow_readers_give_way_after_idle_connections(rig: Rig) -> None:
    rig.body = b"x" * (32 << 20)
    slow = rig.connect(GET)
    rig.work()
    idle = [rig.connect() for _ in range(CONNECTIONS_MAX)]
    rig.work(20)
    assert is_closed(idle[0])
    assert len(scrapers_of(rig)) == CONNECTIONS_MAX
    assert not any(is_closed(each) for each in idle[1:])
    slow.close()


@pytest.mark.long
def test_slow_readers_take_a_bounded_number_of_places(rig: Rig) -> None:
    rig.body = b"x" * (8 << 20)
    for _ in range(2 * CONNECTIONS_MAX):
        rig.connect(GET)
        rig.work(2)
    assert len(scrapers_of(rig)) == CONNECTIONS_MAX
    assert b"200 OK" in rig.ask(PROBE)


def test_lines_about_closed_scrapers_are_bounded(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(200):
        rig.connect()
        rig.work(1)
    rig.clock.advance_ms(10_000)
    rig.work()
    assert not scrapers_of(rig)
    assert len([line for line in caplog.messages if line.startswith("closing a connection")]) == 20
    assert any("more connections of the metrics listener were closed" in line for line in caplog.messages)


# -- the Host header -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        (b"localhost", True),
        (b"LOCALHOST:9400", True),
        (b"127.0.0.1:9400", True),
        (b"[::1]:9400", True),
        (b"10.0.0.7", True),
        (socket.gethostname().encode(), True),
        (b"evil.example", False),
        (b"evil.example:9400", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"localhost\r\nHost: evil.example", False),
        (b"", False),
    ],
)
def test_loopback_listener_answers_own_hosts_only(rig: Rig, host: bytes, is_answered: bool) -> None:
    """A page whose name was made to point to the loopback must not read what is answered there."""
    for path in (b"/metrics", b"/health/ready"):
        answer = rig.ask(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path, host))
        assert answer.split()[1] == (b"200" if is_answered else b"421")


def test_listener_on_all_interfaces_answers_any_host() -> None:
    """Scrapers reach it by names that the broker does not know."""
    with ExitStack() as stack:
        rig = Rig(stack, bound="0.0.0.0")
        assert b"200 OK" in rig.ask(b"GET /metrics HTTP/1.1\r\nHost: kproc.example\r\n\r\n")


def test_slow_readers_share_one_body(rig: Rig) -> None:
    """A scrape of 10,000 partitions is about 10 MB: a copy for each of 64 slow readers would be 640 MB."""
    rig.body = bytes(range(256)) * (16 << 10)
    tracemalloc.start()
    try:
        readers = [rig.connect(GET) for _ in range(20)]
        rig.work()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * len(rig.body)
    received = b""
    while piece := readers[0].recv(1 << 16):
        received += piece
        rig.work(1)
    assert received.partition(b"\r\n\r\n")[2] == rig.body
