"""The broker's TLS in a simulation: its keys, OpenSSL's random numbers, and what the answer to a client's hello takes.

Everything is the same in every run of a seed: keys and certificates are constants of Ed25519, whose signatures have one
length, and OpenSSL gets its random numbers (key shares, nonces, tickets) from a generator with the run's seed. Only the
date in a session ticket is the host's, and it decides nothing.
"""

from __future__ import annotations

import ctypes
import datetime
import random
import ssl
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kproc.broker.processor.tls_transport import TlsTransport
from kproc.broker.security import openssl_calls

NAME: Final = "localhost"
CERTIFICATES: Final = 4  # How many there are: the first one, and those that follow it on the running broker.
_FROM, _TO = datetime.datetime(2000, 1, 1), datetime.datetime(2049, 1, 1)  # UTC
_HELLO_NS: Final = (
    50_000,
    200_000,
    300_000,
    700_000,
)  # A signature and a key exchange, on a more or less busy core.


class Issued(NamedTuple):
    """A private key and the certificate that its own key has signed."""

    key: str
    chain: str
    der: bytes


@cache
def issued(number: int) -> Issued:
    """One of the broker's keys; their certificates differ in nothing that a reload may not change."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(number + 1)
        .not_valid_before(_FROM)
        .not_valid_after(_TO)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier(bytes([number])), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier(bytes([number]), None, None), critical=False)
        .sign(key, None)
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return Issued(
        pem, certificate.public_bytes(Encoding.PEM).decode(), certificate.public_bytes(Encoding.DER)
    )


def broker_settings() -> dict[str, str]:
    """Of a listener with TLS."""
    first = issued(0)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": first.key,
        "ssl.keystore.certificate.chain": first.chain,
    }


@cache
def client_context(version: ssl.TLSVersion) -> ssl.SSLContext:
    """What trusts all of the broker's certificates and speaks that version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    for number in range(CERTIFICATES):
        context.load_verify_locations(cadata=issued(number).der)
    return context


VERSIONS: Final = (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2)


# -- random numbers ------------------------------------------------------------------------------------------------


_Bytes: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_Status: Final = ctypes.CFUNCTYPE(ctypes.c_int)


class _RandMethod(ctypes.Structure):
    """RAND_METHOD of OpenSSL."""

    _fields_ = (
        ("seed", ctypes.c_void_p),
        ("bytes", _Bytes),
        ("cleanup", ctypes.c_void_p),
        ("add", ctypes.c_void_p),
        ("pseudorand", _Bytes),
        ("status", _Status),
    )


_generator: Final = random.Random()


def _give(into: int, count: int) -> int:
    ctypes.memmove(into, _generator.randbytes(count), count)
    return 1


@cache
def _use_generator() -> _RandMethod:
    """Have OpenSSL ask our generator from now on, in this Python process. What is returned must live as long."""
    openssl = openssl_calls.library()
    assert openssl is not None, (
        "this Python's OpenSSL cannot be reached: its seeds would not be deterministic"
    )
    give = _Bytes(_give)
    method = _RandMethod(bytes=give, pseudorand=give, status=_Status(lambda: 1))
    openssl.RAND_set_rand_method.argtypes = [ctypes.POINTER(_RandMethod)]
    assert openssl.RAND_set_rand_method(ctypes.byref(method)) == 1
    return method


def seed_openssl(seed: int) -> None:
    """OpenSSL's next random numbers are those of this seed."""
    for version in VERSIONS:
        client_context(version)  # Made before: to make one takes random numbers, too.
    _use_generator()
    _generator.seed(seed)


# -- what it takes -------------------------------------------------------------------------------------------------

spend: Callable[[int], None] = lambda _duration_ns: None  # noqa: E731 - replaced for each run


def use_spending(take: Callable[[int], None]) -> None:
    """Who moves the run's clock."""
    global spend
    spend = take


class SimulatedTransport(TlsTransport):
    """A TlsTransport whose answer to the client's hello takes time: few of them fit into a pass of the Processor."""

    __slots__ = ()

    def start_handshake(self) -> None:
        spend(_HELLO_NS[_generator.randrange(len(_HELLO_NS))])
        super().start_handshake()


def handshakes_of(processor: Any) -> dict[str, int]:
    """What a Processor still has of TLS handshakes and of what was not read, by its name; nothing if that is none."""
    tls = processor.handoffs.tls
    if tls is None:
        return {}
    shaking, share = tls.handshakes, tls._share
    found = {
        "open": len(shaking._open),
        "begun": len(shaking._begun),
        "in turn": len(shaking._turns),
        "unread": len(share.unread),
    }
    return {name: count for name, count in found.items() if count}
