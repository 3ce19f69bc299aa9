"""Security of a temporary broker: an authority, a certificate of this host, users and their passwords.

For `kproc dev --tls --user alice` and `kproc.Broker(tls=True, users=["alice"])`. All files are in one directory and
have mode 600. They are worthless once the broker has ended, and the authority's key is never written to disk.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.config.values import ConfigError
from kproc.client.security.settings import PLAINTEXT, ClientLogin, ClientSecurity, Store, Tls
from kproc.client.security.written import as_properties, java_properties

if TYPE_CHECKING:
    from cryptography import x509

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
# Validity of the certificates: long enough for a notebook that stays open, and above the 30 days before the end in
# which a broker logs a warning. _SLACK is for a clock that is behind.
_VALID: Final = datetime.timedelta(days=90)
_SLACK: Final = datetime.timedelta(days=1)
_MECHANISM: Final = "PLAIN"


@dataclass(frozen=True)
class Throwaway:
    """Security of a temporary broker: the files in `directory`, and the passwords by user."""

    directory: Path
    has_tls: bool
    users: Mapping[str, str]

    @property
    def protocol(self) -> str:
        """The listener's security protocol."""
        return self.security().protocol

    def broker_settings(self) -> dict[str, str]:
        """Return the broker's settings for this security, except `listeners`."""
        settings: dict[str, str] = {}
        if self.has_tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.directory / "server.pem"),
            }
        if self.users:
            # PLAIN sends the password itself to the broker, which is no risk: the broker gets all passwords in these
            # settings anyway.
            words = (f'user_{name}="{password}"' for name, password in self.users.items())
            prefix = f"listener.name.{self.protocol.lower()}"
            settings |= {
                f"{prefix}.sasl.enabled.mechanisms": _MECHANISM,
                f"{prefix}.{_MECHANISM.lower()}.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {' '.join(words)};"
                ),
            }
        return settings

    def security(self, user: str | None = None) -> ClientSecurity:
        """Return the client settings of a user, by default the first one. Raises ConfigError for an unknown user."""
        if user is not None and user not in self.users:
            raise ConfigError(
                f"there is no user {user}; there are: {', '.join(self.users) or 'none, because nobody has to log in'}"
            )
        name = user or next(iter(self.users), None)
        tls = Tls(trust=Store(str(self.directory / "ca.pem"), "PEM")) if self.has_tls else None
        login = ClientLogin(_MECHANISM, name, self.users[name]) if name is not None else None
        return ClientSecurity(tls, login)

    def client_file(self, user: str | None = None) -> Path:
        """Return the path of a user's properties file, for --command-config. Without `user`, of the first user.

        If there are no users, return the path of the file with the TLS settings only.
        """
        return self.directory / f"{user or next(iter(self.users), 'client')}.properties"


def make_throwaway(
    directory: Path, *, has_tls: bool, users: Sequence[str], hosts: Sequence[str] = ()
) -> Throwaway:
    """Create the directory and its files. `hosts` are names of the broker in addition to the loopback's."""
    for name in users:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"user {name!r}: use only letters, digits, dots, dashes and underscores")
    directory.mkdir(0o700)
    made = Throwaway(directory, has_tls, {name: secrets.token_urlsafe(16) for name in users})
    if has_tls:
        _write_certificates(directory, [*_LOCAL, socket.gethostname(), *hosts])
    if made.security() != PLAINTEXT:
        for user in users or (None,):
            text = as_properties(java_properties(made.security(user)))
            write_private(made.client_file(user), text.encode())
    return made


def write_private(path: Path, data: bytes) -> None:
    """Create a file with mode 600, so that other users can never read it."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


# ---- certificates: the library takes 50 ms to load, and a broker without TLS must not wait for it -----------------


def _write_certificates(directory: Path, hosts: Sequence[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _named(f"kproc throw-away authority {secrets.token_hex(4)}")
    authority = _begun(issuer, issuer, authority_key.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = authority.add_extension(identifier, critical=False)
    authority = authority.add_extension(_signs_certificates(), critical=True)
    certificate = _begun(_named("localhost"), issuer, key.public_key())
    names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts) if host])
    certificate = certificate.add_extension(names, critical=False)
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    certificate = certificate.add_extension(by, critical=False)
    signed = [each.sign(authority_key, hashes.SHA256()) for each in (authority, certificate)]
    ca, chain = (each.public_bytes(Encoding.PEM) for each in signed)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(directory / "ca.pem", ca)
    write_private(directory / "server.pem", private + chain + ca)


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signs_certificates() -> x509.KeyUsage:
    from cryptography import x509

    others = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(key_cert_sign=True, **dict.fromkeys(others, False))


def _begun(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _VALID)
    )


def _general_name(host: str) -> x509.GeneralName:
    import ipaddress

    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
