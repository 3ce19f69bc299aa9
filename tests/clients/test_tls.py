"""Clients over TLS: each produces and consumes, in a group; errors are reported at both ends.

One broker serves SSL, MTLS which wants a certificate, EXPIRED whose own has ended, PLAINTEXT, and SASL behind TLS.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.support.adapters.secured_round_trip import LIBRARIES, Access
from tests.support.broker import ServedBroker
from tests.support.certificates import Certificates
from tests.support.raw import address_of
from tests.support.secured import PASSWORDS, closes_within_a_handshake, sasl_settings
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.clients]
VALUES = [b"%d" % number + b"x" * number for number in range(0, 3000, 7)] + [b"y" * 900_000]
PROTOCOLS = "SSL:SSL,MTLS:SSL,EXPIRED:SSL,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL"


class TlsBroker:
    """The broker, its listeners' addresses, and what its clients trust."""

    def __init__(self, served: ServedBroker, certificates: Certificates) -> None:
        self.served = served
        self.files = certificates

    def address(self, listener: str) -> str:
        return str(self.served.listeners[listener]["bound"])

    def librdkafka(
        self, listener: str = "SSL", *, with_client: bool = False, **options: Any
    ) -> dict[str, Any]:
        given = {"bootstrap.servers": self.address(listener), "security.protocol": "SSL"}
        given |= self.files.librdkafka(with_client=with_client)
        return given | {name.replace("_", "."): value for name, value in options.items()}


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    directory = tmp_path_factory.mktemp("tls")
    files = Certificates(directory)
    settings = {
        "listeners": ",".join(
            f"{name}://127.0.0.1:0" for name in ("SSL", "MTLS", "EXPIRED", "PLAINTEXT", "SASL")
        ),
        **sasl_settings(["PLAIN"], listener="SASL"),
        "listener.security.protocol.map": PROTOCOLS,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "group.initial.rebalance.delay.ms": 0,
        **files.broker_settings(client_auth="none"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.truststore.location": files.ca,
        "listener.name.expired.ssl.keystore.location": files.expired,
    }
    with ServedBroker(directory / "data", settings=settings) as served:
        yield TlsBroker(served, files)


def produce(options: dict[str, Any], topic: str, values: list[bytes]) -> None:
    failed: list[Any] = []
    producer = Producer({**options, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failed == []


def consume(options: dict[str, Any], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**options, "group.id": fresh_name("group"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []

    def is_done() -> bool:
        for message in consumer.consume(500, timeout=1.0):
            assert message.error() is None or message.error().retriable(), message.error()
            if message.error() is None:
                found.append(message.value())
        return len(found) >= count

    try:
        wait_until(is_done, seconds=30, what="every record")
    finally:
        consumer.close()
    return found


def test_large_records_over_tls(tls_broker: TlsBroker) -> None:
    topic = fresh_name("tls")
    produce(tls_broker.librdkafka(), topic, VALUES)
    assert consume(tls_broker.librdkafka(), topic, len(VALUES)) == VALUES


def test_client_certificate_is_accepted_by_mtls_listener(tls_broker: TlsBroker) -> None:
    topic = fresh_name("mtls")
    options = tls_broker.librdkafka("MTLS", with_client=True)
    produce(options, topic, VALUES[:10])
    assert consume(options, topic, 10) == VALUES[:10]


@pytest.mark.parametrize("with_client", [False, True])
def test_sasl_login_behind_tls(tls_broker: TlsBroker, with_client: bool) -> None:
    topic = fresh_name("sasl")
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
    options = tls_broker.librdkafka("SASL", with_client=with_client) | login
    options["security.protocol"] = "SASL_SSL"
    produce(options, topic, VALUES[:50])
    assert consume(options, topic, 50) == VALUES[:50]
    assert "Authentication failed" in error_of(options | {"sasl.password": "wrong"})


@closes_within_a_handshake
@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("confluent_kafka", None),
        ("kafka", None),
        ("aiokafka", ssl.TLSVersion.TLSv1_2),
        ("aiokafka", ssl.TLSVersion.TLSv1_3),
    ],
)
def test_client_produces_and_consumes_over_tls(
    tls_broker: TlsBroker, library: str, version: ssl.TLSVersion | None
) -> None:
    pytest.importorskip(library)
    access = Access(tls_broker.address("SSL"), "SSL", str(tls_broker.files.ca), tls_version=version)
    assert LIBRARIES[library](access, fresh_name("tls"), VALUES[:50]) == VALUES[:50]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat on the PATH")
def test_kcat(tls_broker: TlsBroker) -> None:
    topic = fresh_name("kcat")
    options = [f"-X{name}={value}" for name, value in tls_broker.librdkafka().items()]
    lines = "".join(f"line {number}\n" for number in range(200)).encode()
    subprocess.run(["kcat", "-P", "-t", topic, *options], input=lines, check=True, timeout=PATIENCE_SECONDS)
    done = subprocess.run(
        ["kcat", "-C", "-e", "-q", "-o", "beginning", "-t", topic, *options],
        capture_output=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == lines


@pytest.mark.parametrize("kind", ["thread", "inline"])
def test_tls_in_single_process_transports(kind: str, tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "num.network.threads": 2,
        "group.initial.rebalance.delay.ms": 0,
        **files.broker_settings(),
    }
    with ServedBroker(tmp_path / "data", transport=kind, settings=settings) as served:
        broker = TlsBroker(served, files)
        produce(broker.librdkafka(), "t", VALUES)
        assert consume(broker.librdkafka(), "t", len(VALUES)) == VALUES


# -- what is wrong ---------------------------------------------------------------------------------------------


def error_of(options: dict[str, Any]) -> str:
    """What librdkafka says when it cannot connect."""
    said: list[str] = []
    admin = AdminClient({**options, "log_level": 0, "error_cb": lambda error: said.append(error.str())})
    wait_until(lambda: (admin.poll(0.1), said)[1], seconds=20, what="the client says what is wrong")
    # With a hello that is held back for a failed login, and for what is tried again meanwhile.
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    admin.poll(0.1)
    return "\n".join(said)


def in_log(tls_broker: TlsBroker, text: str, act: Callable[[], Any]) -> Any:
    """What `act` returns; the broker logs `text` meanwhile."""
    before = tls_broker.served.log().count(text)
    result = act()
    wait_until(lambda: tls_broker.served.log().count(text) > before, seconds=10, what=f"{text!r} in the log")
    return result


def test_unknown_authority_is_logged_by_client_and_broker(tls_broker: TlsBroker) -> None:
    options = tls_broker.librdkafka(ssl_ca_location=str(tls_broker.files.stranger_ca))
    said = in_log(tls_broker, "the client refused it: unknown ca", lambda: error_of(options))
    assert "certificate verify failed" in said


def test_expired_certificate_is_rejected_by_client(tls_broker: TlsBroker) -> None:
    said = in_log(
        tls_broker,
        "the client refused it: certificate expired",
        lambda: error_of(tls_broker.librdkafka("EXPIRED")),
    )
    assert "certificate verify failed" in said


def test_missing_or_foreign_client_certificate_is_rejected(tls_broker: TlsBroker) -> None:
    in_log(
        tls_broker,
        "peer did not return a certificate",
        lambda: error_of(tls_broker.librdkafka("MTLS")),
    )
    stranger = str(tls_broker.files.stranger)
    options = tls_broker.librdkafka("MTLS", ssl_certificate_location=stranger, ssl_key_location=stranger)
    in_log(tls_broker, "certificate verify failed", lambda: error_of(options))


def test_plaintext_on_a_tls_port_and_tls_on_a_plaintext_port(tls_broker: TlsBroker) -> None:
    plain = {"bootstrap.servers": tls_broker.address("SSL"), "socket.timeout.ms": 1000}
    in_log(tls_broker, "its bytes are not TLS", lambda: error_of(plain))
    encrypted = tls_broker.librdkafka("PLAINTEXT")
    in_log(tls_broker, "a TLS handshake came to a listener without TLS", lambda: error_of(encrypted))


def openssl(tls_broker: TlsBroker, *arguments: str, stdin: bytes = b"") -> str:
    """What `openssl s_client` prints."""
    command = ["openssl", "s_client", "-connect", tls_broker.address("SSL")]
    command += ["-CAfile", str(tls_broker.files.ca), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH")
def test_tls_renegotiation_is_rejected_and_key_update_works(tls_broker: TlsBroker) -> None:
    refused = openssl(tls_broker, "-tls1_2", stdin=b"R\n")
    assert "RENEGOTIATING" in refused
    assert "no renegotiation" in refused
    updated = openssl(tls_broker, "-tls1_3", stdin=b"K\nQ\n")
    assert "KEYUPDATE" in updated
    assert "error" not in updated.lower()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_sessions_resume_at_any_processor(tls_broker: TlsBroker, version: ssl.TLSVersion) -> None:
    """Connections go to the two Processors in turn; each of them resumes what either has begun."""
    context = ssl.create_default_context(cafile=str(tls_broker.files.ca))
    context.minimum_version = context.maximum_version = version
    session, was_reused = ask_versions(tls_broker, context, None)
    assert not was_reused
    for _ in range(6):
        _, was_reused = ask_versions(tls_broker, context, session)
        assert was_reused


def ask_versions(tls_broker: TlsBroker, context: ssl.SSLContext, session: Any) -> tuple[Any, bool]:
    """One ApiVersions request on a connection of its own: its session, and whether it resumed the given one."""
    body = b"\0\x12\0\0\0\0\0\1\0\4test"
    raw = socket.create_connection(address_of(tls_broker.address("SSL")), timeout=PATIENCE_SECONDS)
    with context.wrap_socket(raw, server_hostname="localhost", session=session) as sock:
        sock.sendall(len(body).to_bytes(4, "big") + body)
        assert sock.recv(4)
        return sock.session, bool(sock.session_reused)


def test_unfinished_tls_handshakes_block_nobody(tls_broker: TlsBroker) -> None:
    context = ssl.create_default_context(cafile=str(tls_broker.files.ca))
    outgoing = ssl.MemoryBIO()
    asking = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        asking.do_handshake()
    hello = outgoing.read()
    half: list[socket.socket] = []
    try:
        for number in range(600):
            sock = socket.create_connection(address_of(tls_broker.address("SSL")))
            sock.sendall(hello if number % 2 else hello[: number % len(hello)])
            half.append(sock)
        topic = fresh_name("flood")
        produce(tls_broker.librdkafka(), topic, VALUES[:20])
        assert consume(tls_broker.librdkafka(), topic, 20) == VALUES[:20]
    finally:
        for sock in half:
            sock.close()
