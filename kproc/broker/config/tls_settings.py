"""TLS: keys and certificates, whom to trust, protocols. Rows of settings.py's table.

Each of them may be set for one listener (`listener.name.<listener>.ssl.keystore.location`), which wins. As in Kafka,
only those can be changed while the broker runs; an unchanged file that has new content is read again, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.config.values import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    PASSWORD,
    PER_BROKER,
    STRING,
    Secret,
    at_least,
    one_of,
    setting,
    some_of,
)

_STORE_TYPES = ("JKS", "PKCS12", "PEM")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TlsSettings:
    """What listeners with the protocols SSL and SASL_SSL need."""

    ssl_keystore_type: str = setting(
        STRING,
        "JKS",
        "PEM or PKCS12. JKS means: what the file's content is; a Java key store itself has to be converted.",
        one_of(*_STORE_TYPES),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_keystore_location: str | None = setting(
        STRING,
        None,
        "The file with the broker's private key and its certificate chain.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_keystore_password: Secret | None = setting(
        PASSWORD,
        None,
        "The password of a PKCS12 key store; PEM has none.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_key_password: Secret | None = setting(
        PASSWORD, None, "Opens an encrypted private key.", dynamic=PER_BROKER, per_listener=True
    )
    ssl_keystore_key: Secret | None = setting(
        PASSWORD, None, "The private key itself, as PEM (PKCS#8).", dynamic=PER_BROKER, per_listener=True
    )
    ssl_keystore_certificate_chain: Secret | None = setting(
        PASSWORD, None, "The certificate chain itself, as PEM.", dynamic=PER_BROKER, per_listener=True
    )
    ssl_truststore_type: str = setting(
        STRING,
        "JKS",
        "PEM or PKCS12. JKS means: what the file's content is; a Java key store itself has to be converted.",
        one_of(*_STORE_TYPES),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_location: str | None = setting(
        STRING,
        None,
        "The file with the certificates of authorities whose clients are trusted.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_password: Secret | None = setting(
        PASSWORD,
        None,
        "The password of a PKCS12 trust store; PEM has none.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_certificates: Secret | None = setting(
        PASSWORD, None, "The trusted certificates themselves, as PEM.", dynamic=PER_BROKER, per_listener=True
    )
    ssl_client_auth: str = setting(
        STRING,
        "none",
        "Whether clients must show a certificate (required), may (requested) or are not asked (none).",
        one_of("required", "requested", "none"),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        LIST,
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS. Older ones are not spoken.",
        some_of("TLSv1.2", "TLSv1.3"),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        LIST,
        (),
        "The cipher suites, by the names of the standards or of OpenSSL; by default OpenSSL's choice.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_principal_mapping_rules: str = setting(
        STRING,
        "DEFAULT",
        "How the subject of a client's certificate becomes its user name: RULE:pattern/replacement/[L|U], or "
        "DEFAULT for the subject itself; the first that matches wins.",
        per_listener=True,
    )
    ssl_allow_dn_changes: bool = setting(
        BOOLEAN, False, "Whether a new key store's certificate may have another subject.", per_listener=True
    )
    ssl_allow_san_changes: bool = setting(
        BOOLEAN,
        False,
        "Whether a new key store's certificate may have other alternative names.",
        per_listener=True,
    )
    kproc_tls_handshake_timeout_ms: int = setting(
        LONG,
        10_000,
        "Timeout of each part of a TLS handshake: the client's first record, the wait for its answer, and the rest. "
        "After it the connection is closed.",
        at_least(1),
    )
    kproc_tls_handshakes_max: int = setting(
        INT,
        1024,
        "Limit of answered, unfinished TLS handshakes of one Processor, some 50 KiB each. Above it clients wait. A "
        "handshake without progress for 1 s is closed for them if its client address has most.",
        at_least(1),
    )
