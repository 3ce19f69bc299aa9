"""TLS handshakes: who does not finish one is dropped, and stops nobody who is served."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from kproc.transport.envelope import FLAG_TLS
from tests.support.certificates import Certificates
from tests.unit.net.rig import ProcessorRig, framed
from tests.unit.net.tls_rig import TlsClient, client_context, listeners_of


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


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
def test_bytes_that_are_not_tls_are_counted_told_and_answered_by_kafkas_alert(
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


def test_who_is_late_is_closed(
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


def test_one_more_than_the_bound_closes_the_oldest(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    begun = []
    for _ in range(6):
        client = TlsClient(rig, context)
        client.raw.send(client.hello())
        rig.settle()
        begun.append(client)
    assert [each.raw.has_end() for each in begun] == [True, True, False, False, False, False]
    begun[-1].shake_hands().send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]


class SlowClock:
    """A clock on which a millisecond passes between any two looks: longer than a turn is."""

    def __init__(self) -> None:
        self._moments = count()

    def now_ns(self) -> int:
        return next(self._moments) * 1_000_000


def test_a_flood_of_first_records_is_answered_one_by_one_between_the_requests_of_who_is_served(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    with ProcessorRig("ring", tls_listeners=listeners_of(certificates)) as rig:
        served = TlsClient(rig, context).shake_hands()
        flood = [TlsClient(rig, context) for _ in range(20)]
        for client in flood:
            assert client.raw.sock.send(client.hello())
        rig.processor._tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
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
        rig.processor._tls.handshakes._clock = SlowClock()  # type: ignore[union-attr]
        for _ in range(3):
            rig.processor.do_work(100)
        rig.handler.answer(request, framed(b"answer"))
        for _ in range(2):
            rig.processor.do_work(100)
        assert rig.processor._tls.handshakes.has_turns  # type: ignore[union-attr]
        assert served.sock.recv(100) == framed(b"answer")


def test_a_client_that_goes_while_it_waits_for_its_turn_is_forgotten(
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


def test_damaged_handshakes_and_records_end_their_connection_and_nothing_else(
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
    assert rig.metric("contained_failures") == 0
    served.send(framed(b"still served"))
    assert rig.handler.bodies() == [b"still served"]
    rig.advance_ms(4000)
    assert len(rig.processor.describe_connections()) == 1, "only the one that is served is left"
