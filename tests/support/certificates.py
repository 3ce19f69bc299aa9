"""Certificates for tests: an authority, and what it has signed, as PEM, in files or as PKCS#12.

`Certificates(directory)` writes a file when a test first asks for it. Everything is P-256: an RSA key of 2048 bits
takes longer to make than most tests take.

    ca.pem        the authority             server.pem   key and chain of localhost, 127.0.0.1 and ::1
    client.pem    CN=alice                  expired.pem  a server whose certificate ended yesterday
    stranger.pem  another authority's CN=alice, and stranger-ca.pem
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kproc.client.security import throwaway

_DAY = datetime.timedelta(days=1)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Issued:
    """A key, its certificate, and the authority's."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def chain_pem(self) -> bytes:
        """The certificate and its authority's."""
        return _pem(self.certificate) + _pem(self.authority)

    def key_pem(self, password: str | None = None) -> bytes:
        """The key as PKCS#8, encrypted if there is a password."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password))

    def pem(self, password: str | None = None) -> bytes:
        """Key and chain in one."""
        return self.key_pem(password) + self.chain_pem

    def pkcs12(self, password: str | None) -> bytes:
        """Key and chain as PKCS#12."""
        return pkcs12.serialize_key_and_certificates(
            b"kproc", self.key, self.certificate, [self.authority], _encryption(password)
        )


class Authority:
    """A certificate authority with a key of its own."""

    def __init__(self, name: str = "kproc test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, self._key, days=365, ended=False)
        # Clients with Python 3.13 require the key's purpose and identifiers (VERIFY_X509_STRICT).
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self.certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(self._identifier, critical=False)
            .add_extension(throwaway._signs_certificates(), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """Its certificate: a trust store."""
        return _pem(self.certificate)

    def trust_store(self, password: str) -> bytes:
        """Its certificate as PKCS#12, as keytool makes a trust store."""
        entry = pkcs12.PKCS12Certificate(self.certificate, b"authority")
        return pkcs12.serialize_java_truststore([entry], _encryption(password))

    def issue(
        self,
        subject: str | x509.Name,
        *,
        hosts: Sequence[str] = (),
        is_expired: bool = False,
        days: int = 365,
    ) -> Issued:
        """A certificate for a DN (`CN=alice,OU=music,O=Example`, or a Name), for both ends of a connection."""
        name = x509.Name.from_rfc4514_string(subject) if isinstance(subject, str) else subject
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, self.certificate.subject, key, days=days, ended=is_expired)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = builder.add_extension(signer, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return Issued(key, builder.sign(self._key, hashes.SHA256()), self.certificate)


class Certificates:
    """One authority and its certificates in a directory; each file is written when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority()
        self.other_authority = Authority("somebody else's authority")

    def write(self, name: str, data: bytes) -> Path:
        """Write a file that only we can read."""
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(0o600)
        return path

    @cached_property
    def ca(self) -> Path:
        """What clients trust, and the broker where it asks for their certificates."""
        return self.write("ca.pem", self.authority.pem)

    @cached_property
    def stranger_ca(self) -> Path:
        """An authority that has signed nothing of the broker's."""
        return self.write("stranger-ca.pem", self.other_authority.pem)

    @cached_property
    def server(self) -> Path:
        """The broker's key and chain."""
        return self.write("server.pem", self.issue_server().pem())

    @cached_property
    def expired(self) -> Path:
        """Key and chain of a broker whose certificate has ended."""
        issued = self.authority.issue("CN=localhost", hosts=LOCAL_NAMES, is_expired=True)
        return self.write("expired.pem", issued.pem())

    @cached_property
    def client(self) -> Path:
        """Key and chain of CN=alice."""
        return self.write("client.pem", self.authority.issue("CN=alice").pem())

    @cached_property
    def stranger(self) -> Path:
        """Key and chain of a CN=alice whom another authority has signed."""
        return self.write("stranger.pem", self.other_authority.issue("CN=alice").pem())

    def issue_server(self) -> Issued:
        """A new certificate for the broker, with a new key."""
        return self.authority.issue("CN=localhost", hosts=LOCAL_NAMES)

    def broker_settings(self, *, client_auth: str = "none") -> dict[str, str]:
        """The broker's ssl.* settings; with `client_auth` it trusts the authority's clients."""
        settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.server)}
        if client_auth != "none":
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        return settings | {"ssl.client.auth": client_auth}

    def librdkafka(self, *, with_client: bool = False) -> dict[str, str]:
        """What a client of librdkafka (confluent-kafka, kcat) needs beside the protocol."""
        options = {"ssl.ca.location": str(self.ca)}
        if with_client:
            client = str(self.client)
            options |= {"ssl.certificate.location": client, "ssl.key.location": client}
        return options

    def java(self, *, with_client: bool = False) -> dict[str, str]:
        """What a Java client needs beside the protocol."""
        options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        if with_client:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.client)}
        return options


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int, ended: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now - _DAY if ended else now + days * _DAY)
    )
