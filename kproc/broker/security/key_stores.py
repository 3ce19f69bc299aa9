"""Loading of key stores and trust stores (`ssl.keystore.*`, `ssl.truststore.*`): PEM or PKCS#12 files, to PEM.

The content of a file determines its format, because the type of a store that configures none is Kafka's default, JKS.
No secret is written to a disk: OpenSSL reads keys from a memfd (`as_path`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.config.values import ConfigError, Secret
from kproc.common.regular_file import read_regular

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
STORE_TYPES: Final = (JKS, PKCS12, PEM)
_BEGIN: Final = b"-----BEGIN "
# The first bytes of JKS and JCEKS stores, which only Java reads. kproc recognizes them to say how to convert the file.
_JKS_MAGICS: Final = (bytes.fromhex("feedfeed"), bytes.fromhex("cececece"))
_DER_SEQUENCE: Final = 0x30
# Limit of a store file. The certificate authorities of a whole system take 0.3 MB.
_STORE_BYTES_MAX: Final = 16 << 20


class KeyStore(NamedTuple):
    """A private key and its certificate chain; `password` opens the key, if it is encrypted."""

    pem: bytes
    password: Secret | None
    setting: str
    """The setting that names the key's source, for error messages."""

    def __repr__(self) -> str:
        return f"KeyStore({self.setting})"


class StoreSettings(NamedTuple):
    """The settings of one store. `prefix` is `ssl.keystore` or `ssl.truststore`, after the listener's prefix."""

    prefix: str
    type: str
    location: str
    password: Secret | None
    inline: tuple[Secret, ...] = ()
    """PEM texts in the settings themselves: a key and a chain, or trusted certificates."""
    key_password: Secret | None = None


def load_key_store(settings: StoreSettings) -> KeyStore:
    """Load a private key and its certificate chain. Raises ConfigError with a message of one line."""
    if settings.inline:
        _check_inline(settings)
        # KIP-651: with PEM in the settings, key and chain are two settings.
        if len(settings.inline) != 2:
            raise ConfigError(
                f"{settings.prefix}.key and {settings.prefix}.certificate.chain must be set together"
            )
        pem = b"\n".join(each.reveal().encode() for each in settings.inline)
        return KeyStore(pem, settings.key_password, settings.prefix + ".key")
    where, data, kind = _read(settings)
    if kind == PEM:
        # A store's password decrypts the store, and PEM has no container to decrypt.
        if settings.password is not None:
            raise ConfigError(
                f"{settings.prefix}.password: a PEM store has no password; for an encrypted key set ssl.key.password"
            )
        return KeyStore(data, settings.key_password, where)
    return KeyStore(_key_of_pkcs12(where, data, settings.password), None, where)


def load_trust_store(settings: StoreSettings) -> bytes:
    """Load the trusted certificates as PEM. Raises ConfigError with a message of one line."""
    if settings.inline:
        _check_inline(settings)
        return settings.inline[0].reveal().encode()
    where, data, kind = _read(settings)
    if kind == PEM:
        if settings.password is not None:
            raise ConfigError(f"{settings.prefix}.password: a PEM store has no password; remove this setting")
        return data
    return _certificates_of_pkcs12(where, data, settings.password)


def readable_by_others(path: str) -> bool:
    """Return True if other users may read the file."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        # The file was removed after it had been loaded, so nobody can read it.
        return False


@contextlib.contextmanager
def as_path(pem: bytes) -> Iterator[str]:
    """Provide the path of a file in memory that has these bytes, because OpenSSL reads keys only from files."""
    fd = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        # A memfd is created with mode 0777, and a private key must not be readable by others.
        os.fchmod(fd, 0o600)
        view = memoryview(pem)
        # os.write may write fewer bytes than it was given, so repeat it until all are written.
        while view:
            view = view[os.write(fd, view) :]
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _check_inline(settings: StoreSettings) -> None:
    if settings.type != PEM:
        raise ConfigError(
            f"{settings.prefix}.type={settings.type}: for PEM text in the settings it must be PEM"
        )
    if settings.location:
        raise ConfigError(
            f"{settings.prefix}: both a location and PEM text in the settings are given; remove one"
        )
    if settings.password is not None:
        raise ConfigError(f"{settings.prefix}.password: a PEM store has no password; remove this setting")


def _read(settings: StoreSettings) -> tuple[str, bytes, str]:
    """Return the name of the setting with the location, for errors, the content of the file, and its format.

    Raises ConfigError.
    """
    where = f"{settings.prefix}.location={settings.location}"
    try:
        # A client can set any path by IncrementalAlterConfigs, and the controller reads the file. A FIFO or an endless
        # file must not block the controller.
        data = read_regular(settings.location, _STORE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{where.encode('unicode_escape').decode()}: {error}") from error
    # JKS is a format of Java's own, with a cipher that OpenSSL does not have.
    if data[:4] in _JKS_MAGICS:
        raise ConfigError(
            f"{where} is a Java key store, which only Java reads; convert it: keytool -importkeystore "
            f"-srckeystore {settings.location} -destkeystore {Path(settings.location).stem}.p12 "
            "-deststoretype PKCS12"
        )
    kind = PEM if _BEGIN in data else PKCS12 if data[:1] == bytes([_DER_SEQUENCE]) else None
    if kind is None:
        raise ConfigError(f"{where} is neither PEM nor PKCS12")
    # If the type is JKS, accept any format, because JKS is Kafka's default type. Java, too, reads PKCS#12 files of type
    # JKS.
    if kind != settings.type and settings.type != JKS:
        raise ConfigError(f"{where} is {kind}, but {settings.prefix}.type is {settings.type}")
    return where, data, kind


def _key_of_pkcs12(where: str, data: bytes, password: Secret | None) -> bytes:
    # Imported here, because only a PKCS#12 store needs the library.
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, _bytes_of(password))
    except (ValueError, TypeError) as error:
        raise ConfigError(_why_not_opened(where, password)) from error
    if key is None or certificate is None:
        raise ConfigError(f"{where} has no private key with a certificate")
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in (certificate, *others))
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain


def _certificates_of_pkcs12(where: str, data: bytes, password: Secret | None) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        found = pkcs12.load_pkcs12(data, _bytes_of(password))
    except (ValueError, TypeError) as error:
        raise ConfigError(_why_not_opened(where, password)) from error
    pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found.additional_certs)
    if not pem:
        raise ConfigError(f"{where} has no trusted certificate")
    return pem


def _bytes_of(password: Secret | None) -> bytes | None:
    return None if password is None else password.reveal().encode()


def _why_not_opened(where: str, password: Secret | None) -> str:
    if password is None:
        return f"{where} cannot be opened without a password, or is damaged"
    return f"{where} cannot be opened: its password is wrong, or it is damaged"
