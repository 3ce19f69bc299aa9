"""TLS of a client: create the SSLContext, perform the handshake, and explain failures."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kproc.broker.config.values import ConfigError
from kproc.client.errors import ConnectionBroken, SecurityFailed
from kproc.client.security.settings import PROTOCOLS, Store, Tls
from kproc.common.regular_file import read_bounded

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JKS: Final = b"\xfe\xed\xfe\xed"
_ASN1_SEQUENCE: Final = b"\x30"
# OpenSSL's error numbers of the X.509 verification (X509_V_ERR_...): an expired certificate, a wrong host name.
_EXPIRED: Final = 10
_WRONG_HOST: Final = (62, 63, 64)
# Parts of OpenSSL's names for the TLS alerts by which a broker rejects the client's certificate.
_ABOUT_OUR_CERTIFICATE: Final = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_ACCESS_DENIED",
)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Create the TLS context for the settings. Raises ConfigError, which names the invalid setting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[tls.versions[0]]
    context.maximum_version = _VERSIONS[tls.versions[-1]]
    context.check_hostname = tls.checks_host and tls.is_verified
    context.verify_mode = ssl.CERT_REQUIRED if tls.is_verified else ssl.CERT_NONE
    if tls.trust:
        _trust(context, tls.trust)
    elif tls.is_verified:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls.key:
        _present(context, tls)
    return context


def start_tls(sock: socket.socket, host: str, address: str, tls: Tls) -> ssl.SSLSocket:
    """Perform the TLS handshake on a connected socket, within the socket's timeout.

    Raises SecurityFailed if a retry would fail, too, ConnectionBroken if the peer closes the connection, or
    TimeoutError.
    """
    context = client_context(tls)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLError as error:
        raise refusal(error, address, host) from None
    except ValueError as error:
        # wrap_socket() rejects a host name that no certificate can contain, such as one with an empty label.
        raise SecurityFailed(f"{address}: {error}") from None
    except (ConnectionError, BrokenPipeError):
        raise ConnectionBroken(
            f"{address} closed the connection during the TLS handshake: {_other_protocol()}"
        ) from None


def first_cause(sock: socket.socket, error: OSError) -> OSError:
    """Return the peer's alert if it sent one before it closed the connection, or else `error`.

    After the peer has closed the connection, the error of a write does not contain the alert, which says why. The alert
    is still in the socket's receive buffer, so this function reads it.
    """
    try:
        sock.recv(1)
    except ssl.SSLError as alert:
        return alert
    except OSError:
        return error
    return error


def refusal_of(error: OSError, address: str) -> Exception | None:
    """Convert the error of a read or write to SecurityFailed or ConnectionBroken.

    Return None if the error is not from TLS.
    """
    if not isinstance(error, ssl.SSLError):
        return None
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionBroken(f"{address} closed the connection")
    return refusal(error, address)


def refusal(error: ssl.SSLError, address: str, host: str = "") -> Exception:
    """Convert a TLS error to SecurityFailed or ConnectionBroken, with a message for the user.

    The error can come from a read after the handshake: with TLS 1.3 the broker rejects a client certificate only then.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return SecurityFailed(_distrust(error, address, host))
    code = error.reason or str(error)
    if any(part in code for part in _ABOUT_OUR_CERTIFICATE):
        return SecurityFailed(
            f"{address} wants another certificate of this client ({_words(code)}): ssl.keystore.location and "
            "ssl.keystore.type name one that it trusts"
        )
    # OpenSSL has parsed the peer's first bytes as the header of a TLS record, and they have no valid TLS version or
    # length.
    if code in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return SecurityFailed(f"{address} does not speak TLS: {_other_protocol()}")
    # A PLAINTEXT listener reads the first 4 bytes of the ClientHello as a request's length. That is above
    # socket.request.max.bytes, so the listener closes the connection.
    if isinstance(error, ssl.SSLEOFError) or "EOF" in code:
        return ConnectionBroken(
            f"{address} closed the connection during the TLS handshake: {_other_protocol()}"
        )
    if "PROTOCOL_VERSION" in code or "HANDSHAKE_FAILURE" in code or "UNSUPPORTED_PROTOCOL" in code:
        return SecurityFailed(
            f"{address} and this client have no TLS version and cipher in common ({_words(code)}): see "
            "ssl.enabled.protocols"
        )
    return ConnectionBroken(f"TLS with {address} failed: {_words(code)}")


def _distrust(error: ssl.SSLCertVerificationError, address: str, host: str) -> str:
    number, why = error.verify_code, error.verify_message
    if number in _WRONG_HOST:
        return (
            f"{address}: its certificate is not for {host}: {why.rstrip('.')} (an empty "
            "ssl.endpoint.identification.algorithm turns this check off)"
        )
    if number == _EXPIRED:
        return f"{address}: its certificate has expired"
    return (
        f"{address}: its certificate is not trusted ({why}): ssl.truststore.location names the certificate authority "
        "that signed it, as PEM or PKCS12"
    )


def _words(code: str) -> str:
    return code.replace("_", " ").lower()


def _other_protocol() -> str:
    return f"set security.protocol to that of the listener ({', '.join(PROTOCOLS)})"


# ---- certificates and keys ------------------------------------------------------------------------------------


def is_pem_file(location: str) -> bool:
    """Return True if the file at `location` contains PEM. Raises ConfigError if it cannot be read."""
    return b"-----BEGIN" in _content(Store(location), "a store of certificates")


def trusted_pem(store: Store) -> str:
    """Return the certificates of a trust store as PEM."""
    name = "ssl.truststore.location" if store.location else "ssl.truststore.certificates"
    content = _content(store, name)
    if _is_pem(store, content, name):
        return content.decode("utf-8", "replace")
    return "".join(_certificates_of(store, content, name))


def key_pem(tls: Tls) -> tuple[bytes, str]:
    """Return the client's key with its certificates as PEM, and the key's password, which can be empty."""
    name = "ssl.keystore.location" if tls.key.location else "ssl.keystore.key"
    content = _content(tls.key, name)
    if not _is_pem(tls.key, content, name):
        return _key_of(tls.key, content, name), ""
    if tls.chain:
        content += b"\n" + _content(tls.chain, "ssl.keystore.certificate.chain")
    return content, tls.key_password


def _trust(context: ssl.SSLContext, store: Store) -> None:
    if store.location and Path(store.location).is_dir():  # librdkafka's ssl.ca.location may be a directory.
        context.load_verify_locations(capath=store.location)
        return
    pem = trusted_pem(store)
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"ssl.truststore.location: {_store_name(store)} holds no certificate that can be read"
        ) from None


def _present(context: ssl.SSLContext, tls: Tls) -> None:
    content, password = key_pem(tls)
    # OpenSSL loads a key only from a file. Use one in memory, which no other user can open and which ends with the
    # block.
    with _in_memory(content) as path:
        try:
            # Always pass a password, even an empty one: OpenSSL would otherwise prompt for it on the terminal.
            context.load_cert_chain(path, password=lambda: password)
        except ssl.SSLError as error:
            if "KEY_VALUES_MISMATCH" in (error.reason or ""):
                problem = "the key does not belong to the certificate"
            else:
                problem = "no key with its certificates, or ssl.key.password is not its password"
            raise ConfigError(f"ssl.keystore.location: {_store_name(tls.key)}: {problem}") from None


def _content(store: Store, name: str) -> bytes:
    if store.pem:
        return store.pem.encode()
    try:
        return read_bounded(store.location)
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {store.location}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{name}: {store.location!r} is not a valid path of a file: {error}") from None


def _store_name(store: Store) -> str:
    return store.location or "the text"


def _is_pem(store: Store, content: bytes, name: str) -> bool:
    """Return True if the content is PEM and False if it can be PKCS12.

    Raises ConfigError if the content contradicts the setting of the store's type, or is neither.
    """
    if b"-----BEGIN" in content:
        if store.type == "PKCS12":
            raise ConfigError(f"{name}: {_store_name(store)} is PEM, but its store type is set to PKCS12")
        return True
    if content.startswith(_JKS):
        path = store.location
        raise ConfigError(
            f"{name}: {path} is a JKS store, which only Java reads; convert it: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {Path(path).stem}.p12 -deststoretype PKCS12"
        )
    if not content.startswith(_ASN1_SEQUENCE) or store.type == "PEM":
        raise ConfigError(f"{name}: {_store_name(store)} is no {store.type or 'PEM or PKCS12'} store")
    return False


def _certificates_of(store: Store, content: bytes, name: str) -> Iterator[str]:
    from cryptography.hazmat.primitives.serialization import Encoding

    _, certificate, others = _pkcs12(store, content, name)
    for each in (certificate, *others):
        if each is not None:
            yield each.certificate.public_bytes(Encoding.PEM).decode()


def _key_of(store: Store, content: bytes, name: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, certificate, others = _pkcs12(store, content, name)
    if key is None or certificate is None:
        raise ConfigError(f"{name}: {store.location} holds no key with a certificate")
    parts = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
    parts += [each.certificate.public_bytes(Encoding.PEM) for each in (certificate, *others)]
    return b"".join(parts)


def _pkcs12(store: Store, content: bytes, name: str) -> tuple[Any, Any, list[Any]]:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        found = pkcs12.load_pkcs12(content, store.password.encode() or None)
    except ValueError:
        which = "truststore" if "trust" in name else "keystore"
        problem = f"{store.location} is no PKCS12, or ssl.{which}.password is not its password"
        raise ConfigError(f"{name}: {problem}") from None
    return found.key, found.cert, list(found.additional_certs)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a path under which OpenSSL can read these bytes from memory."""
    descriptor = os.memfd_create("client-key", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
