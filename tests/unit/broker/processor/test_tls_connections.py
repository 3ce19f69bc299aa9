"""TlsConnections: principals from certificates, and the end of a Processor."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kproc.broker.transport.agent import AgentId
from tests.support.certificates import Certificates
from tests.support.processor_rig import ProcessorRig, framed
from tests.support.tls_rig import TlsClient, client_context, listeners_of

Start = Callable[..., ProcessorRig]


@pytest.fixture
def start() -> Iterator[Start]:
    """Over rings only: to the transport links are all the same."""
    with ExitStack() as stack:
        yield lambda **parts: stack.enter_context(ProcessorRig("ring", **parts))


@pytest.fixture
def rig(start: Start, certificates: Certificates) -> ProcessorRig:
    return start(tls_listeners=listeners_of(certificates))


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    return client_context(certificates)


# -- who it is -------------------------------------------------------------------------------------------------


def principal_of(rig: ProcessorRig) -> str:
    """Of the only connection, as the Handler was told."""
    (session,) = rig.handler.sessions.values()
    return str(session.principal)


@pytest.mark.parametrize("wanted", ["requested", "required"])
def test_the_subject_of_a_clients_certificate_is_its_principal(
    start: Start, certificates: Certificates, wanted: str
) -> None:
    rig = start(tls_listeners=listeners_of(certificates, wanted))
    client = TlsClient(rig, client_context(certificates, pem=certificates.client)).shake_hands()
    client.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]
    assert principal_of(rig) == "User:CN=alice"


def test_rules_make_a_name_of_the_subject(start: Start, certificates: Certificates) -> None:
    rules = "RULE:^CN=(.*?)$/$1@example/U"
    rig = start(tls_listeners=listeners_of(certificates, "required", ssl_principal_mapping_rules=rules))
    client = TlsClient(rig, client_context(certificates, pem=certificates.client)).shake_hands()
    client.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]
    assert principal_of(rig) == "User:ALICE@EXAMPLE"


def test_client_without_optional_certificate_is_anonymous(
    start: Start, certificates: Certificates, context: ssl.SSLContext
) -> None:
    rig = start(tls_listeners=listeners_of(certificates, "requested"))
    client = TlsClient(rig, context).shake_hands()
    client.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]
    assert principal_of(rig) == "User:ANONYMOUS"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("who", "reason"),
    [("nobody", "peer did not return a certificate"), ("stranger", "certificate verify failed")],
)
def test_missing_or_foreign_certificate_is_rejected_with_alert(
    start: Start,
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
    who: str,
    reason: str,
    version: ssl.TLSVersion,
) -> None:
    rig = start(tls_listeners=listeners_of(certificates, "required"))
    pem = certificates.stranger if who == "stranger" else None
    context = client_context(certificates, pem=pem)
    context.maximum_version = context.minimum_version = version
    client = TlsClient(rig, context)
    with pytest.raises(ssl.SSLError, match="ALERT"):
        client.shake_hands().received()
    assert rig.metric("authentications_failed") == 1
    assert reason in caplog.text
    assert rig.handler.take() == []


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("RULE:^OU=.*$/x/", "no rule of ssl.principal.mapping.rules applies to CN=alice"),
        (f"RULE:^.*$/{'x' * 32_763}/", "a name of 32768 bytes"),
    ],
    ids=["no rule", "too long"],
)
def test_certificate_without_matching_principal_is_rejected(
    start: Start, certificates: Certificates, caplog: pytest.LogCaptureFixture, rules: str, why: str
) -> None:
    rig = start(tls_listeners=listeners_of(certificates, "required", ssl_principal_mapping_rules=rules))
    client = TlsClient(rig, client_context(certificates, pem=certificates.client)).shake_hands()
    rig.settle()
    assert client.raw.has_end()
    assert why in caplog.text


# -- when the Processor leaves ---------------------------------------------------------------------------------


def test_leaving_processor_closes_connections_after_responses(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    clients = [TlsClient(rig, context).shake_hands() for _ in range(3)]
    clients[0].send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.processor.begin_leave([AgentId("processor", 1)])
    rig.step()
    rig.step(5)
    assert [each.raw.has_end() for each in clients] == [False, False, False], "the first is still in work"
    rig.advance_ms(60)
    rig.step(5)
    assert [each.raw.has_end() for each in clients] == [False, True, False]
    rig.handler.answer(request, framed(b"answer"))
    rig.settle()
    assert clients[0].received() == framed(b"answer")
    assert clients[0].has_ended
    rig.advance_ms(60)
    assert clients[2].raw.has_end()
    rig.settle()
    assert rig.processor.is_drained()
