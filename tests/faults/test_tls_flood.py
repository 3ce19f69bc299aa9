"""TLS handshakes that a flood begins do not keep a client of the same address out."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.broker import ServedBroker
from tests.support.raw import address_of
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.faults]
API_VERSIONS = b"\0\0\0\x0e\0\x12\0\0\0\0\0\1\0\4test"
FLOOD = 1000


def write_slow_key(path: Path) -> None:
    """A certificate with a key that takes 5 ms a signature: the flood takes longer than a handshake may."""
    key = rsa.generate_private_key(65537, 4096)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem + certificate.public_bytes(Encoding.PEM))


def hello_of(context: ssl.SSLContext) -> bytes:
    """The first bytes of a client's handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def test_client_behind_flood_of_its_address_is_served(tmp_path: Path) -> None:
    """Clients send a first record and go away. Each cost a signature, so that later clients waited too long."""
    write_slow_key(tmp_path / "server.pem")
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "num.network.threads": 1,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": tmp_path / "server.pem",
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello = hello_of(context)
    with ServedBroker(tmp_path / "data", settings=settings, listener="SSL") as broker:
        for _ in range(FLOOD):
            with socket.create_connection(address_of(broker.bootstrap), timeout=PATIENCE_SECONDS) as sock:
                sock.sendall(hello)
        with (
            socket.create_connection(address_of(broker.bootstrap), timeout=PATIENCE_SECONDS) as sock,
            context.wrap_socket(sock) as tls,
        ):
            tls.sendall(API_VERSIONS)
            assert len(tls.recv(4)) > 0
