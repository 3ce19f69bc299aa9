"""TLS contexts of listeners: creation from settings and key stores, validation, comparison with the previous context.

New connections use the newest context. A connection keeps the context with which it began.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from kproc.broker.config import SETTINGS, Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.config.listeners import parse_protocol_map
from kproc.broker.config.values import ConfigError, Secret
from kproc.broker.security import openssl_calls
from kproc.broker.security.certificate import (
    CertificateFacts,
    MalformedCertificate,
    certificates_in,
    facts_of,
)
from kproc.broker.security.key_stores import (
    KeyStore,
    StoreSettings,
    as_path,
    load_key_store,
    load_trust_store,
    readable_by_others,
)
from kproc.broker.security.principal_mapping import PrincipalMapper

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_CLIENT_AUTH: Final = "ssl.client.auth"
# Session tickets per handshake. A client resumes with one, and each further one costs time in the handshake and memory
# of the client.
_TICKETS: Final = 1

Value = Callable[[str], Any]
"""The value of a setting by Kafka's name, for one listener."""


def settings_of(config: Config, dynamic: DynamicSettings, listener: str) -> Value:
    """Return a function that gets a listener's value of a setting by its name.

    A value changed at run time has precedence over the listener's own value in the file, and that over the general one.
    """

    def value(name: str) -> Any:
        changed = dynamic.text(name, listener)
        if changed is not None:
            return SETTINGS[name].parse(changed)
        own = config.listener_value(listener, name)
        if own is None and name == _CLIENT_AUTH and _logs_in(config, listener):
            # On a SASL_SSL listener only the listener's own value has an effect (KIP-684).
            return "none"
        return getattr(config, SETTINGS[name].field_name) if own is None else own

    return value


Sources = tuple[object, ...]
"""The settings and file stamps that determine a context. With equal sources the context would be equal."""


def sources_of(value: Value) -> Sources:
    """Return the TLS settings of a listener with inode, size and time of its store files.

    If they have not changed, the TLS context need not be created again.
    """
    settings = [value(name) for name in SETTINGS if name.startswith("ssl.")]
    files = [_stamp(value(name)) for name in ("ssl.keystore.location", "ssl.truststore.location")]
    return (*settings, *files)


def _stamp(location: str | None) -> tuple[int, ...]:
    try:
        found = os.stat(location or "")
    except (OSError, ValueError):  # A name with a zero byte raises ValueError.
        return ()
    # Compare the inode, too, because a file that was replaced by a rename can have the same size and time.
    return found.st_ino, found.st_size, found.st_mtime_ns


def _logs_in(config: Config, listener: str) -> bool:
    protocols = parse_protocol_map(config.listener_security_protocol_map)
    return protocols.get(listener.upper(), "").startswith("SASL")


class TlsContext(NamedTuple):
    """The TLS context of a listener, with its principal mapping, its certificate's attributes, and warnings to log."""

    context: ssl.SSLContext
    mapper: PrincipalMapper
    server: CertificateFacts
    warnings: tuple[str, ...]


def make_context(listener: str, value: Value, *, ticket_secret: bytes) -> TlsContext:
    """Create the context of a listener. Raises ConfigError with a message of one line.

    Contexts of a listener with the same `ticket_secret` resume each other's sessions, so that a client may reach any
    Processor. With client authentication nothing is resumed.
    """
    prefix = f"listener.name.{listener.lower()}."
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Renegotiation lets a client cost the server a handshake again and again. Compression reveals secrets by the length
    # of what is sent (CRIME). The server's order of suites counts, because clients may prefer weak ones.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = _TICKETS
    versions = sorted(_VERSIONS[name] for name in value("ssl.enabled.protocols"))
    # OpenSSL wants a range of versions. That loses nothing, because Kafka's two versions are neighbours.
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _use_suites(context, value("ssl.cipher.suites"), prefix)
    key_store = _key_store(prefix, value)
    facts = _load_key(context, key_store)
    _trust(context, listener, prefix, value)
    try:
        mapper = PrincipalMapper(value("ssl.principal.mapping.rules"))
    except ValueError as error:
        raise ConfigError(f"{prefix}ssl.principal.mapping.rules: {error}") from error
    if value(_CLIENT_AUTH) == "none":
        # The name of the listener is part of the ticket keys, because another listener with other rules must not resume
        # this one's sessions.
        material = b"\0".join([b"tls tickets", ticket_secret, listener.encode()])
        keys = hashlib.shake_256(material).digest(openssl_calls.TICKET_KEY_BYTES)
        openssl_calls.set_ticket_keys(context, keys)
    else:
        # Disable resumption. OpenSSL does not verify the client's certificate again when a session is resumed: not its
        # expiry, nor the expiry and the trust of its authorities. Each resumption creates a new session, so a client
        # could resume for ever.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        openssl_calls.keep_no_sessions(context)
    location = value("ssl.keystore.location")
    warnings = () if not location or not readable_by_others(location) else (_readable(key_store, location),)
    return TlsContext(context, mapper, facts, warnings)


def problem_with_change(old: TlsContext, new: TlsContext, listener: str, value: Value) -> str | None:
    """Return an error if the certificate's names changed and the settings do not allow that, else None (KIP-978)."""
    # KIP-978: reject a certificate with another subject, because clients that verify the server's name would reject it.
    if old.server.subject != new.server.subject and not value("ssl.allow.dn.changes"):
        return (
            f"listener {listener}: the subject of its certificate would change from {old.server.subject} to "
            f"{new.server.subject} (ssl.allow.dn.changes)"
        )
    is_same = old.server.alternative_names == new.server.alternative_names
    if not is_same and not value("ssl.allow.san.changes"):
        return f"listener {listener}: the alternative names of its certificate would change (ssl.allow.san.changes)"
    return None


def _key_store(prefix: str, value: Value) -> KeyStore:
    location = value("ssl.keystore.location") or ""
    parts = (value("ssl.keystore.key"), value("ssl.keystore.certificate.chain"))
    inline: tuple[Secret, ...] = tuple(part for part in parts if part is not None)
    if not location and not inline:
        raise ConfigError(
            f"TLS needs a key and a certificate: set ssl.keystore.location or {prefix}ssl.keystore.location"
        )
    return load_key_store(
        StoreSettings(
            "ssl.keystore",
            value("ssl.keystore.type"),
            location,
            value("ssl.keystore.password"),
            inline,
            value("ssl.key.password"),
        )
    )


def _load_key(context: ssl.SSLContext, store: KeyStore) -> CertificateFacts:
    """Load key and chain into the context, and return the attributes of the certificate. Raises ConfigError.

    `ends` is the earliest end of the chain, because clients reject the server from then on.
    """
    try:
        found = certificates_in(store.pem)
    except MalformedCertificate as error:
        raise ConfigError(f"{store.setting}: {error}") from error
    if not found:
        raise ConfigError(f"{store.setting} has no certificate")
    # Report a missing private key here, because OpenSSL would only report a missing start line.
    if b"PRIVATE KEY-----" not in store.pem:
        raise ConfigError(f"{store.setting} has no private key")
    # Without a password pass an empty one, because OpenSSL would otherwise ask for one at the terminal.
    password = "" if store.password is None else store.password.reveal()
    try:
        with as_path(store.pem) as path:
            context.load_cert_chain(path, password=password)
        facts = facts_of(found[0])
        return facts._replace(ends=min([facts.ends, *_ends_of(found[1:])]))
    except ssl.SSLError as error:
        raise ConfigError(f"{store.setting}: {_why_not_loaded(store, error)}") from error
    except MalformedCertificate as error:
        raise ConfigError(f"{store.setting}: {error}") from error


def _ends_of(issuers: list[bytes]) -> Iterator[datetime.datetime]:
    """Yield the ends of the issuers' certificates, as far as they can be parsed."""
    for der in issuers:
        # OpenSSL has accepted all these certificates. One that this DER parser does not understand must not stop the
        # broker's start.
        with contextlib.suppress(MalformedCertificate):
            yield facts_of(der).ends


def _why_not_loaded(store: KeyStore, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not fit the certificate"
    if b"ENCRYPTED" in store.pem:
        if store.password is None:
            return "the private key is encrypted, and ssl.key.password is not set"
        return "the private key cannot be decrypted: ssl.key.password is wrong, or the key is damaged"
    return f"OpenSSL cannot load it ({error.reason or error})"


def _trust(context: ssl.SSLContext, listener: str, prefix: str, value: Value) -> None:
    """Configure how the context requests and verifies clients' certificates.

    Raises ConfigError for an unusable trust store.
    """
    wanted = value("ssl.client.auth")
    location, inline = value("ssl.truststore.location") or "", value("ssl.truststore.certificates")
    if not location and inline is None:
        if wanted != "none":
            raise ConfigError(
                f"listener {listener}: ssl.client.auth={wanted} needs ssl.truststore.location or "
                f"{prefix}ssl.truststore.location: unlike Java, kproc trusts no authority by itself"
            )
        return
    settings = StoreSettings(
        "ssl.truststore",
        value("ssl.truststore.type"),
        location,
        value("ssl.truststore.password"),
        () if inline is None else (inline,),
    )
    pem = load_trust_store(settings)
    try:
        for der in certificates_in(pem):
            context.load_verify_locations(cadata=der)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"ssl.truststore: OpenSSL cannot load a certificate ({error})") from error
    # Reject a trust store without certificates: every handshake with a client certificate would fail, and its error
    # would not name the store.
    if not context.cert_store_stats()["x509"]:
        where = f"ssl.truststore.location={location}" if location else "ssl.truststore.certificates"
        raise ConfigError(f"{where} has no certificate")
    # Trust intermediate authorities of the trust store without their root, as Java does.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = _VERIFY[wanted]


def _readable(store: KeyStore, location: str) -> str:
    return f"{store.setting} holds a private key, and other users can read it: chmod 600 {location}"


# -- cipher suites -------------------------------------------------------------------------------------------------

_STANDARD_NAME: Final = re.compile(r"TLS_(\w+)_WITH_(\w+)")


def _use_suites(context: ssl.SSLContext, suites: tuple[str, ...], prefix: str) -> None:
    """Allow only these suites, or OpenSSL's default ones if none is given. Disable a TLS version without a suite.

    Raises ConfigError if OpenSSL lacks a suite, or if no enabled version has one.
    """
    if not suites:
        return
    # Separate the suites of TLS 1.3, whose names have no _WITH_, because OpenSSL sets them by another call.
    newer = [name for name in suites if name.startswith("TLS_") and "_WITH_" not in name]
    older = [openssl_name(name) for name in suites if name not in newer]
    setting = f"{prefix}ssl.cipher.suites"
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:  # OpenSSL ignores unknown suites, and fails only if it knows none of them.
            usable: set[str] = set()
        else:
            usable = {suite["name"] for suite in context.get_ciphers()}
        if missing := [name for name in older if name not in usable]:
            raise ConfigError(f"{setting}: OpenSSL does not offer {', '.join(missing)}")
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif not openssl_calls.set_tls13_suites(context, ":".join(newer)):
        raise ConfigError(f"{setting}: OpenSSL does not offer all of {', '.join(newer)}")
    # The configured suites exclude every enabled version, so no handshake could succeed.
    if context.minimum_version > context.maximum_version:
        raise ConfigError(f"{setting}: none of these suites belongs to a version in ssl.enabled.protocols")


def openssl_name(suite: str) -> str:
    """Convert TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 to ECDHE-RSA-AES128-GCM-SHA256. Return other names unchanged."""
    # Kafka's ssl.cipher.suites has Java's names, which are those of the IANA registry. OpenSSL's setter knows only
    # OpenSSL's names.
    match = _STANDARD_NAME.fullmatch(suite)
    if match is None:
        return suite
    exchange, cipher = match[1].replace("_", "-"), match[2]
    cipher = re.sub(r"AES_(\d+)_", r"AES\1_", cipher).replace("_CBC_", "_").replace("_", "-")
    if cipher.startswith("CHACHA20"):
        cipher = "CHACHA20-POLY1305"
    # For RSA key exchange OpenSSL's names have no exchange part.
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"
