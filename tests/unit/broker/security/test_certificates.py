"""The tests' own certificates do what their names say: a handshake by the standard library between two of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.support.certificates import Certificates


def shake_hands(server_pem: Path, ca: Path, client_pem: Path, client_ca: Path) -> str:
    """The common name that the server reads in the client's certificate."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server_pem)
    serving.load_verify_locations(client_ca)
    serving.verify_mode = ssl.CERT_REQUIRED
    asking = ssl.create_default_context(cafile=str(ca))
    asking.load_cert_chain(client_pem)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = server.getpeercert()
    assert found
    subject: tuple[tuple[tuple[str, str], ...], ...] = found["subject"]  # type: ignore[assignment]
    return subject[0][0][1]


def test_client_and_server_of_one_authority_trust_each_other(certificates: Certificates) -> None:
    files = certificates
    assert shake_hands(files.server, files.ca, files.client, files.ca) == "alice"


def test_an_expired_server_and_a_strangers_client_are_refused(certificates: Certificates) -> None:
    files = certificates
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(files.expired, files.ca, files.client, files.ca)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(files.server, files.stranger_ca, files.client, files.ca)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(files.server, files.ca, files.stranger, files.ca)


def test_key_files_are_for_us_alone(certificates: Certificates) -> None:
    assert certificates.server.stat().st_mode & 0o777 == 0o600
    assert certificates.broker_settings(client_auth="required")["ssl.truststore.location"].endswith("ca.pem")
