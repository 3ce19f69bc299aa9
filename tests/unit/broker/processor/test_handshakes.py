"""TLS handshakes: an unfinished one is closed after its timeout, and delays no other client."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from socket import MSG_PEEK

import pytest

from kproc.broker.security.certificate import certificates_in, facts_of
from kproc.broker.transport.agent import STORE_MS
from kproc.broker.transport.envelope import FLAG_SASL, FLAG_TLS
from tests.support.certificates import Certificates
from tests.support.processor_rig import ProcessorRig, framed
from tests.support.tls_handshakes import needs_openssl_symbols
from tests.support.tls_rig import TlsClient, client_context, listeners_of

MALLORY, ALICE, BOB = "10.0.0.66", "10.0.0.1", "10.0.0.2"


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    return client_context(certificates)


@pytest.fixture
def rig(certificates: Certificates) -> Iterator[ProcessorRig]:
    listeners = listeners_of(certificates, kproc_tls_handshakes_max=4, kproc_tls_handshake_timeout_ms=3000)
    with ProcessorRig("ring", tls_listeners=listeners) as made:
        yield made


@pytest.mark.parametrize(
    "data",
    [framed(b"\0\x12\0\3\0\0\0\1\0\4test"), b"GET / HTTP/1.1\r\n\r\n", b"\0", b"\x16\2\0\0\5hello"],
)
def test_non_tls_bytes_are_counted_and_answered_with_alert(
    rig: ProcessorRig, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    client = rig.connect(flags=FLAG_TLS)
    client.send(data)
    assert client.received() == b"\x15\3\3\0\2\2\x50"  # internal_error
    assert client.has_end()
    assert rig.handler.bodies() == []
    assert rig.metric("authentications_failed") == 1
    assert caplog.text.count("its bytes are not TLS") == 1


def test_a_first_record_that_is_too_long_is_refused(rig: ProcessorRig) -> None:
    client = rig.connect(flags=FLAG_TLS)
    client.send(b"\x16\3\1\xff\xff" + bytes(100))
    assert client.received() == b"\x15\3\3\0\2\2\x16"  # record_overflow
    assert client.has_end()
    assert rig.metric("authentications_failed") == 1


def test_nonsense_in_a_handshake_is_refused_with_an_alert(rig: ProcessorRig) -> None:
    client = rig.connect(flags=FLAG_TLS)
    client.send(b"\x16\3\1\0\4\1\0\0\0")
    rig.settle()
    assert client.received().startswith(b"\x15")
    assert client.has_end()
    assert rig.metric("authentications_failed") == 1


def test_handshake_beyond_its_timeout_closes_the_connection(
    rig: ProcessorRig, context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    silent, half = rig.connect(flags=FLAG_TLS), rig.connect(flags=FLAG_TLS)
    half.send(TlsClient(rig, context).hello()[:50])
    begun = TlsClient(rig, context)
    begun.raw.send(begun.hello())
    rig.settle()
    served = TlsClient(rig, context).shake_hands()
    rig.advance_ms(2900)
    assert [each.has_end() for each in (silent, half, begun.raw)] == [False] * 3
    rig.advance_ms(1100)
    assert [each.has_end() for each in (silent, half, begun.raw)] == [True] * 3
    assert caplog.text.count("longer than kproc.tls.handshake.timeout.ms") == 1
    served.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]


def begin(rig: ProcessorRig, context: ssl.SSLContext, host: str) -> TlsClient:
    """Open a connection whose first record is sent, and answered if it may be."""
    client = TlsClient(rig, context, host=host)
    client.raw.send(client.hello())
    rig.settle()
    return client


def test_handshake_above_bound_closes_newest_of_largest_address(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    """A flood closes neither the handshakes of others nor those that its own address began before."""
    far = begin(rig, context, ALICE)
    flood = [begin(rig, context, MALLORY) for _ in range(3)]
    late = begin(rig, context, BOB)
    assert [each.raw.has_end() for each in flood] == [False, False, True]
    for number, client in enumerate((far, late, flood[0])):
        client.shake_hands().send(framed(b"%d" % number))
    assert rig.handler.bodies() == [b"0", b"1", b"2"]


def test_handshake_above_bound_waits_for_a_place(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    """Clients of the address with most handshakes are not closed: each one that finishes makes room for another."""
    clients = [begin(rig, context, ALICE) for _ in range(12)]
    assert [bool(each.raw.sock.recv(1, MSG_PEEK)) for each in clients[:4]] == [True] * 4
    assert rig.processor.handoffs.tls.handshakes.has_turns  # type: ignore[union-attr]
    assert rig.processor.next_deadline_ms() == 10, "it does not poll without a pause"
    for number, client in enumerate(clients):
        client.shake_hands().send(framed(b"%d" % number))
    assert rig.handler.bodies() == [b"%d" % number for number in range(12)]
    assert rig.metric("authentications_failed") == 0


def test_full_table_closes_newest_without_progress(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    """Of the address with most handshakes, one whose client has begun its next flight stays."""
    clients = [begin(rig, context, MALLORY) for _ in range(4)]
    rest = second_flight(clients[3])
    clients[3].raw.send(rest[:20])
    others = [begin(rig, context, host) for host in (ALICE, BOB)]
    assert [each.raw.has_end() for each in clients] == [False, True, True, False]
    clients[3].raw.send(rest[20:])
    rig.settle()
    clients[3].send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]
    for each in others:
        each.shake_hands()


def test_full_table_of_many_addresses_closes_stale_one(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    """The stale handshake is found although another address holds as many."""
    fresh, *others = ("10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4")
    silent = [begin(rig, context, host) for host in (fresh, *others)]
    rig.clock.advance_ms(900)
    rig.step()
    silent[0].raw.send(second_flight(silent[0])[:20])
    rig.clock.advance_ms(200)
    rig.step()
    late = begin(rig, context, BOB)
    assert [each.raw.has_end() for each in silent] == [False, True, False, False]
    late.shake_hands()


def second_flight(client: TlsClient) -> bytes:
    """The client's bytes that follow the broker's answer, not sent."""
    client._incoming.write(client.raw.received())
    client.tls.do_handshake()
    return client._outgoing.read()


def test_handshake_above_bound_closes_stale_one_first(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    """From one address, an honest client gets in although those before it never go on."""
    silent = [begin(rig, context, MALLORY) for _ in range(4)]
    rig.clock.advance_ms(1001)
    rig.step()
    honest = begin(rig, context, MALLORY)
    assert [each.raw.has_end() for each in silent] == [True, False, False, False]
    honest.shake_hands().send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]


def test_client_that_goes_on_with_its_handshake_is_not_stale(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    slow, *silent = [begin(rig, context, MALLORY) for _ in range(4)]
    rig.clock.advance_ms(900)
    rig.step()
    answer = second_flight(slow)
    slow.raw.send(answer[:20])
    rig.clock.advance_ms(900)
    rig.step()
    begin(rig, context, MALLORY)
    assert [each.raw.has_end() for each in (slow, *silent)] == [False, True, False, False]
    slow.raw.send(answer[20:])
    rig.settle()
    slow.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]


def test_handshake_is_stale_although_its_flight_trickles_in(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    """Only the first byte of a flight is progress. Else a flood would keep its places by a byte a second."""
    trickling = [begin(rig, context, MALLORY) for _ in range(4)]
    flights = [second_flight(each) for each in trickling]
    for at in range(3):
        for client, flight in zip(trickling, flights, strict=True):
            client.raw.send(flight[at : at + 1])
        rig.clock.advance_ms(600)
        rig.step()
    honest = begin(rig, context, MALLORY)
    assert [each.raw.has_end() for each in trickling] == [True, False, False, False]
    honest.shake_hands()


def test_stale_handshake_of_smaller_address_is_left_alone(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    far = begin(rig, context, ALICE)
    rig.clock.advance_ms(1001)
    rig.step()
    flood = [begin(rig, context, MALLORY) for _ in range(30)]
    assert not far.raw.has_end()
    far.shake_hands()
    assert not any(each.raw.has_end() for each in flood)


def test_addresses_have_turns_one_after_the_other(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    """A host that sent 30 first records waits for as many turns; a client of another host for one or two."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        clients = [TlsClient(rig, context, host=MALLORY) for _ in range(30)]
        clients += [TlsClient(rig, context, host=host) for host in (ALICE, BOB)]
        for client in clients:
            assert client.raw.sock.send(client.hello())
        rig.processor.handoffs.tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        rig.step(4)
        answered = [bool(client.raw.received()) for client in clients]
        assert answered[-2:] == [True, True]
        assert sum(answered) <= 5


@pytest.mark.parametrize("sends_more", [False, True])
def test_client_behind_closed_flood_is_answered_at_once(
    certificates: Certificates, context: ssl.SSLContext, sends_more: bool
) -> None:
    """A client that is gone costs no answer, also if it left bytes behind its first record."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        flood = [TlsClient(rig, context, host=MALLORY) for _ in range(30)]
        honest = TlsClient(rig, context, host=MALLORY)
        for client in (*flood, honest):
            assert client.raw.sock.send(client.hello() + bytes(sends_more and client is not honest))
        for client in flood:
            client.raw.sock.close()
        rig.processor.handoffs.tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        rig.step(3)
        assert honest.raw.received()
        assert rig.metric("connections_closed") == 30
        assert rig.metric("authentications_failed") == 0


def test_clients_that_closed_are_checked_in_bounded_number(
    certificates: Certificates, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass in which few clients can be answered ends, too: others are served before the next one."""
    monkeypatch.setattr("kproc.broker.processor.handshakes._CHECKS_MAX", 8)
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        flood = [TlsClient(rig, context, host=MALLORY) for _ in range(30)]
        for client in flood:
            assert client.raw.sock.send(client.hello())
            client.raw.sock.close()
        rig.step(2)
        assert rig.metric("connections_closed") == 8


def test_memory_of_first_records_is_bounded(
    certificates: Certificates, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients announce a long first record and send all but its end. A host that sends few is left alone."""
    monkeypatch.setattr("kproc.broker.processor.handshakes._HELLO_BYTES_MAX", 100_000)
    record = b"\x16\3\1" + (16_000).to_bytes(2, "big") + bytes(15_000)
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        far = rig.connect(flags=FLAG_TLS, host=ALICE)
        far.send(record)
        flood = [rig.connect(flags=FLAG_TLS, host=MALLORY) for _ in range(20)]
        for each in flood:
            each.send(record)
        rig.settle()
        assert sum(each.has_end() for each in flood) == 15
        assert not far.has_end()
        for each in (far, *flood):
            each.sock.close()
        rig.settle()
        assert rig.processor.handoffs.tls.handshakes._hello_bytes == 0  # type: ignore[union-attr]


class SlowClock:
    """A clock on which a millisecond passes between any two looks: longer than a turn is."""

    def __init__(self) -> None:
        self._moments = count()

    def now_ns(self) -> int:
        return next(self._moments) * 1_000_000

    def wall_ms(self) -> int:
        return 0


def test_first_records_flood_is_handled_between_requests(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        served = TlsClient(rig, context).shake_hands()
        flood = [TlsClient(rig, context) for _ in range(20)]
        for client in flood:
            assert client.raw.sock.send(client.hello())
        rig.processor.handoffs.tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        rig.step()
        answered = []
        for passed in range(1, 8):
            served.raw.sock.send(served.encrypt(framed(b"%d" % passed)))
            rig.step()
            assert rig.handler.bodies() == [b"%d" % passed]
            answered.append(sum(1 for each in flood if each.raw.received()))
        assert answered == [1] * 7
        for client in flood[12:]:
            client.shake_hands()


def test_answers_leave_between_the_turns_of_a_flood(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    """A pass that leaves turns for the next one does not sleep, and nobody signals who is awake."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        served = rig.connect()
        served.send(framed(b"x"))
        (request,) = rig.handler.take()
        for client in [TlsClient(rig, context) for _ in range(20)]:
            assert client.raw.sock.send(client.hello())
        rig.processor.handoffs.tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        for _ in range(3):
            rig.processor.do_work(100)
        rig.handler.answer(request, framed(b"answer"))
        for _ in range(2):
            rig.processor.do_work(100)
        assert rig.processor.handoffs.tls.handshakes.has_turns  # type: ignore[union-attr]
        assert served.sock.recv(100) == framed(b"answer")


def test_client_leaving_before_handshake_turn_is_forgotten(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    client = TlsClient(rig, context)
    client.raw.sock.send(client.hello())
    client.raw.sock.close()
    rig.settle()
    assert rig.metric("connections_closed") == 1
    assert rig.metric("authentications_failed") == 0


def test_refusals_of_a_flood_do_not_fill_the_log(rig: ProcessorRig, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(30):
        rig.connect(flags=FLAG_TLS).send(b"nonsense")
    assert rig.metric("authentications_failed") == 30
    assert caplog.text.count("failed TLS handshake with") == 10
    rig.advance_ms(1000)
    rig.connect(flags=FLAG_TLS).send(b"nonsense")
    assert "and 20 more failed TLS handshakes" in caplog.text


def test_a_listener_without_a_usable_key_closes_what_comes(
    rig: ProcessorRig, caplog: pytest.LogCaptureFixture
) -> None:
    client = rig.connect(flags=FLAG_TLS, listener=7)
    assert client.has_end()
    assert "closing a TLS connection" in caplog.text


@pytest.mark.long
def test_damaged_handshake_or_record_closes_only_connection(
    rig: ProcessorRig, certificates: Certificates
) -> None:
    """Whatever is changed in the bytes of a client, wherever they are cut, is refused as bad TLS and no surprise."""
    rng = random.Random(5)
    served = TlsClient(rig, client_context(certificates)).shake_hands()
    for number in range(150):
        context = client_context(certificates)
        if number % 2:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        client = TlsClient(rig, context)
        is_early = number % 3 == 0
        data = bytearray(client.hello() if is_early else b"")
        if not is_early:
            client.shake_hands()
            data = bytearray(client.encrypt(framed(b"x")) + client.encrypt(framed(rng.randbytes(20_000))))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.randrange(len(data) + 1)
        for part in (bytes(data[:cut]), bytes(data[cut:])):
            with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                client.raw.sock.send(part)
            rig.settle()
            for request in rig.handler.take():
                rig.handler.no_op(request)
        client.raw.close()
        rig.settle()
    rig.advance_ms(STORE_MS)
    assert rig.metric("contained_failures") == 0
    served.send(framed(b"still served"))
    assert rig.handler.bodies() == [b"still served"]
    rig.advance_ms(4000)
    assert len(rig.processor.describe_connections()) == 1, "only the one that is served is left"


@pytest.mark.parametrize("is_gated", [False, True])
def test_connection_is_closed_when_certificate_expires(certificates: Certificates, is_gated: bool) -> None:
    """The connection of a client with a login, too: the listener wanted both."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates, "required")) as rig:
        context = client_context(certificates, pem=certificates.client)
        flags = FLAG_TLS | FLAG_SASL if is_gated else FLAG_TLS
        client = TlsClient(rig, context, flags=flags).shake_hands()
        client.send(framed(b"x"))
        assert rig.handler.bodies() == [b"x"]
        ends = facts_of(certificates_in(certificates.client.read_bytes())[0]).ends
        rig.clock.set_wall_ms(int(ends.timestamp() * 1000) - 1500)
        rig.advance_ms(1000)
        assert not client.raw.has_end()
        rig.advance_ms(1000)
        assert client.raw.has_end()
        assert rig.metric("certificates_expired") == 1
        assert len(rig.processor.table.by_fd) == 0


def test_handshake_with_expired_certificate_is_refused(certificates: Certificates) -> None:
    """OpenSSL refuses it, except in a resumed session where sessions could not be switched off."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates, "required")) as rig:
        rig.clock.set_wall_ms(4_000_000_000_000)
        client = TlsClient(rig, client_context(certificates, pem=certificates.client))
        with suppress(ssl.SSLError, OSError, AssertionError):
            client.shake_hands()
        assert client.raw.has_end()
        assert rig.metric("authentications_failed") == 1
        assert rig.metric("tls_handshakes") == 1


def test_closed_connection_leaves_no_certificate_timer(certificates: Certificates) -> None:
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates, "required")) as rig:
        client = TlsClient(rig, client_context(certificates, pem=certificates.client)).shake_hands()
        client.raw.sock.close()
        rig.settle()
        rig.clock.set_wall_ms(4_000_000_000_000)
        rig.advance_ms(1000)
        assert rig.metric("certificates_expired") == 0


@pytest.mark.parametrize(
    ("version", "can_switch_off"),
    [
        pytest.param(ssl.TLSVersion.TLSv1_2, True, marks=needs_openssl_symbols),
        (ssl.TLSVersion.TLSv1_3, True),
        (ssl.TLSVersion.TLSv1_3, False),
    ],
)
def test_live_session_with_certificate_is_not_resumed(
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    version: ssl.TLSVersion,
    can_switch_off: bool,
) -> None:
    """OpenSSL keeps sessions by their ids, without tickets, while the first connection is open.

    Where they cannot be switched off, sessions of TLS 1.2 are resumed until the client's certificate ends.
    """
    if not can_switch_off:
        monkeypatch.setattr("kproc.broker.security.openssl_calls.keep_no_sessions", lambda _context: False)
    context = client_context(certificates, pem=certificates.client)
    context.minimum_version = context.maximum_version = version
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates, "required")) as rig:
        first = TlsClient(rig, context).shake_hands()
        first.send(framed(b"x"))
        (request,) = rig.handler.take()
        rig.handler.answer(request, framed(b"y"))
        rig.settle()
        assert first.received() == framed(b"y")
        second = TlsClient(rig, context, first.tls.session).shake_hands()
        assert not second.tls.session_reused


def test_wait_for_turn_does_not_shorten_time_to_finish(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    """A client of a Processor with much to do is answered after 8 s, and finishes 9 s later."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        *early, late = [TlsClient(rig, context) for _ in range(5)]
        for client in (*early, late):
            assert client.raw.sock.send(client.hello())
        rig.processor.handoffs.tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        rig.step(2)
        rig.clock.advance_ms(8_000)
        rig.step(5)
        flight = second_flight(late)
        rig.clock.advance_ms(9_000)
        rig.step(2)
        assert not late.raw.has_end()
        late.raw.send(flight)
        rig.settle()
        late.send(framed(b"x"))
        assert rig.handler.bodies() == [b"x"]


def test_client_that_waited_too_long_for_its_turn_is_dropped(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    """Without this, a Processor with too much to do would answer only clients that gave up long ago."""
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        *early, late = [TlsClient(rig, context) for _ in range(21)]
        for client in early:
            assert client.raw.sock.send(client.hello())
        rig.processor.handoffs.tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        rig.step(2)
        rig.clock.advance_ms(10_001)
        assert late.raw.sock.send(late.hello())
        rig.step(3)
        assert all(client.raw.has_end() for client in early)
        late.shake_hands()
