"""TLS of a client: the stores that it reads, the authorities that it trusts, and its errors."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproc.broker.config.values import ConfigError
from kproc.client.errors import ConnectionBroken, SecurityFailed
from kproc.client.security.settings import parse_client_security
from kproc.client.security.tls import client_context, first_cause, key_pem, refusal_of, start_tls
from tests.support.certificates import Certificates

PASSWORD = "s3cret-marker"


@contextmanager
def peer_of(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Our end of a connection whose other end is served by a thread."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)

    def run() -> None:
        with theirs:
            serve(theirs)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with ours:
            yield ours
    finally:
        thread.join()


def tls_server(key: Path, *, trust: Path | None = None) -> Callable[[socket.socket], None]:
    """A server that shakes hands, reads a byte and sends it back."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key)
    if trust is not None:
        context.load_verify_locations(trust)
        context.verify_mode = ssl.CERT_REQUIRED

    def serve(sock: socket.socket) -> None:
        try:
            with context.wrap_socket(sock, server_side=True) as encrypted:
                encrypted.sendall(encrypted.recv(1))
        except OSError:
            return  # The client left, as most of these tests want it to.

    return serve


def shaken(serve: Callable[[socket.socket], None], given: dict[str, str], host: str = "localhost") -> bytes:
    """What came back over the connection that these settings make."""
    security = parse_client_security({"security.protocol": "SSL", **given})
    assert security.tls is not None
    with peer_of(serve) as sock, start_tls(sock, host, f"{host}:9093", security.tls) as encrypted:
        try:
            encrypted.sendall(b"x")
            return encrypted.recv(1)
        except OSError as error:
            problem = refusal_of(first_cause(encrypted, error), f"{host}:9093")
            assert problem is not None
            raise problem from None


@pytest.mark.parametrize("kind", ["pem", "inline", "pkcs12", "java", "librdkafka", "unchecked"])
def test_trusted_authority_comes_in_every_form(certificates: Certificates, kind: str) -> None:
    ca = str(certificates.ca)
    store = str(certificates.write("trust.p12", certificates.authority.trust_store(PASSWORD)))
    password = {"ssl.truststore.password": PASSWORD}
    given = {
        "pem": {"ssl.truststore.location": ca, "ssl.truststore.type": "PEM"},
        "inline": {"ssl.truststore.certificates": certificates.authority.pem.decode().replace("\n", " ")},
        "pkcs12": {"ssl.truststore.location": store, "ssl.truststore.type": "PKCS12", **password},
        "java": {"ssl.truststore.location": store, "ssl.truststore.type": "JKS", **password},
        "librdkafka": {"ssl.ca.location": ca},
        "unchecked": {"enable.ssl.certificate.verification": "false"},
    }[kind]
    assert shaken(tls_server(certificates.server), given) == b"x"


@pytest.mark.parametrize("kind", ["pem", "encrypted", "pkcs12", "inline", "apart"])
def test_clients_key_comes_in_every_form(certificates: Certificates, kind: str) -> None:
    alice = certificates.authority.issue("CN=alice")
    trust = {"ssl.truststore.location": str(certificates.ca)}
    if kind == "pem":
        given = {"ssl.keystore.location": str(certificates.write("one.pem", alice.pem()))}
    elif kind == "encrypted":
        path = certificates.write("two.pem", alice.pem(PASSWORD))
        given = {"ssl.keystore.location": str(path), "ssl.key.password": PASSWORD}
    elif kind == "pkcs12":
        path = certificates.write("three.p12", alice.pkcs12(PASSWORD))
        given = {"ssl.keystore.location": str(path), "ssl.keystore.password": PASSWORD}
    elif kind == "inline":
        given = {
            "ssl.keystore.key": alice.key_pem().decode(),
            "ssl.keystore.certificate.chain": alice.chain_pem.decode(),
        }
    else:
        given = {
            "ssl.key.location": str(certificates.write("key.pem", alice.key_pem())),
            "ssl.certificate.location": str(certificates.write("chain.pem", alice.chain_pem)),
        }
    assert shaken(tls_server(certificates.server, trust=certificates.ca), trust | given) == b"x"


def test_untrusted_authority_error_names_the_setting(certificates: Certificates) -> None:
    with pytest.raises(SecurityFailed, match=r"not trusted .* ssl\.truststore\.location"):
        shaken(tls_server(certificates.server), {"ssl.truststore.location": str(certificates.stranger_ca)})


def test_expired_certificate_raises_security_failed(certificates: Certificates) -> None:
    with pytest.raises(SecurityFailed, match="its certificate has expired"):
        shaken(tls_server(certificates.expired), {"ssl.truststore.location": str(certificates.ca)})


def test_host_mismatch_fails_unless_check_is_off(certificates: Certificates) -> None:
    trust = {"ssl.truststore.location": str(certificates.ca)}
    with pytest.raises(SecurityFailed, match=r"not for elsewhere\.example"):
        shaken(tls_server(certificates.server), trust, "elsewhere.example")
    given = trust | {"ssl.endpoint.identification.algorithm": ""}
    assert shaken(tls_server(certificates.server), given, "elsewhere.example") == b"x"


def test_missing_client_certificate_error_names_the_keystore(certificates: Certificates) -> None:
    trust = {"ssl.truststore.location": str(certificates.ca)}
    server = tls_server(certificates.server, trust=certificates.ca)
    with pytest.raises(SecurityFailed, match=r"wants another certificate of this client .*ssl\.keystore"):
        shaken(server, trust)
    with pytest.raises(SecurityFailed, match=r"wants another certificate of this client"):
        shaken(server, trust | {"ssl.keystore.location": str(certificates.stranger)})


def test_peer_without_tls_raises_an_error(certificates: Certificates) -> None:
    trust = {"ssl.truststore.location": str(certificates.ca)}
    with pytest.raises(SecurityFailed, match=r"does not speak TLS: set security\.protocol"):
        shaken(lambda sock: sock.sendall(b"\0\0\0\x04oops" * bool(sock.recv(1))), trust)
    with pytest.raises(ConnectionBroken, match=r"closed the connection during the TLS handshake"):
        shaken(lambda sock: sock.sendall(sock.recv(65536)[:0]), trust)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("store.jks", b"\xfe\xed\xfe\xed\0\0\0\2", "keytool -importkeystore"),
        ("store.p12", b"\x30\x82nonsense", "is no PKCS12, or ssl.truststore.password"),
        ("store.bin", b"nonsense", "is no PEM or PKCS12 store"),
        ("store.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificate"),
    ],
)
def test_unreadable_trust_store_raises_config_error(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    given = {"ssl.truststore.location": str(path), "ssl.truststore.password": PASSWORD}
    security = parse_client_security({"security.protocol": "SSL", **given})
    assert security.tls is not None
    with pytest.raises(ConfigError) as caught:
        client_context(security.tls)
    assert words in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_unusable_key_store_raises_without_a_password_prompt(certificates: Certificates) -> None:
    alice, bob = certificates.authority.issue("CN=alice"), certificates.authority.issue("CN=bob")
    locked = certificates.write("locked.pem", alice.pem(PASSWORD))
    mixed = certificates.write("mixed.pem", alice.key_pem() + bob.chain_pem)
    for path, words in (
        (locked, "ssl.key.password"),
        (mixed, "does not belong"),
        (locked.parent / "no", "no"),
        (f"{locked}\0", "A path has no NUL"),
        ("/dev/zero", "^ssl.keystore.location: cannot read /dev/zero: Larger than 16777216 bytes$"),
    ):
        security = parse_client_security({"security.protocol": "SSL", "ssl.keystore.location": str(path)})
        assert security.tls is not None
        with pytest.raises(ConfigError, match=words):
            client_context(security.tls)


def test_key_lies_in_no_file_that_others_could_open(certificates: Certificates) -> None:
    alice = certificates.authority.issue("CN=alice")
    path = certificates.write("alice.p12", alice.pkcs12(PASSWORD))
    security = parse_client_security(
        {
            "security.protocol": "SSL",
            "ssl.keystore.location": str(path),
            "ssl.keystore.password": PASSWORD,
        }
    )
    assert security.tls is not None
    before = set(certificates.directory.iterdir())
    pem, password = key_pem(security.tls)
    client_context(security.tls)
    assert b"PRIVATE KEY" in pem
    assert not password
    assert set(certificates.directory.iterdir()) == before
