"""Settings of TLS: keys, certificates, trust and protocols. Rows of settings.py's table.

Each of them may be set for one listener (`listener.name.<listener>.ssl.keystore.location`), which overrides the plain
setting. As in Kafka (KIP-226), only a listener's own settings can change while the broker runs. A client that sets a
file's path to its present value makes the broker read the file again.
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
    """Settings of listeners with the protocols SSL and SASL_SSL."""

    ssl_keystore_type: str = setting(
        STRING,
        "JKS",
        "Format of the file: PEM, PKCS12, or JKS for detection. Convert Java's key stores to PKCS12 first.",
        one_of(*_STORE_TYPES),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_keystore_location: str | None = setting(
        STRING,
        None,
        "File with the broker's private key and certificate chain.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_keystore_password: Secret | None = setting(
        PASSWORD,
        None,
        "Password of a PKCS12 key store. A PEM file has none.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_key_password: Secret | None = setting(
        PASSWORD, None, "Password of an encrypted private key.", dynamic=PER_BROKER, per_listener=True
    )
    ssl_keystore_key: Secret | None = setting(
        PASSWORD,
        None,
        "Private key as PEM text (PKCS#8), instead of ssl.keystore.location.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_keystore_certificate_chain: Secret | None = setting(
        PASSWORD,
        None,
        "Certificate chain as PEM text, for ssl.keystore.key.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_type: str = setting(
        STRING,
        "JKS",
        "Format of the file: PEM, PKCS12, or JKS for detection. Convert Java's key stores to PKCS12 first.",
        one_of(*_STORE_TYPES),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_location: str | None = setting(
        STRING,
        None,
        "File with the certificates of the authorities that sign the certificates of clients.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_password: Secret | None = setting(
        PASSWORD,
        None,
        "Password of a PKCS12 trust store. A PEM file has none.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_truststore_certificates: Secret | None = setting(
        PASSWORD,
        None,
        "Trusted certificates as PEM text, instead of ssl.truststore.location.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_client_auth: str = setting(
        STRING,
        "none",
        "Client authentication. required: a client must have a trusted certificate. requested: a client may have one. "
        "none: the broker does not request one.",
        one_of("required", "requested", "none"),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        LIST,
        ("TLSv1.2", "TLSv1.3"),
        "Enabled TLS versions: TLSv1.2, TLSv1.3 or both. kproc does not support older versions.",
        some_of("TLSv1.2", "TLSv1.3"),
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        LIST,
        (),
        "Enabled cipher suites, by their IANA or OpenSSL names. Default: OpenSSL's defaults.",
        dynamic=PER_BROKER,
        per_listener=True,
    )
    ssl_principal_mapping_rules: str = setting(
        STRING,
        "DEFAULT",
        "Rules that map the subject of a client's certificate to a user name: RULE:pattern/replacement/[L|U], or "
        "DEFAULT for the subject itself. The first rule that matches applies.",
        per_listener=True,
    )
    ssl_allow_dn_changes: bool = setting(
        BOOLEAN, False, "Allow a new key store whose certificate has another subject.", per_listener=True
    )
    ssl_allow_san_changes: bool = setting(
        BOOLEAN,
        False,
        "Allow a new key store whose certificate has other alternative names.",
        per_listener=True,
    )
    kproc_tls_handshake_timeout_ms: int = setting(
        LONG,
        10_000,
        "Timeout in ms of each part of a TLS handshake: the client's first record, the wait for its answer, and the "
        "rest. The broker then closes the connection.",
        at_least(1),
    )
    kproc_tls_handshakes_max: int = setting(
        INT,
        1024,
        "Maximum number of TLS handshakes that one Processor has answered but not finished, about 50 KiB each. Further "
        "clients wait. For them the broker closes a handshake of the client address with the most, if it made no "
        "progress for 1 s. Otherwise it closes the newest one of that address, preferably one without progress, but "
        "only if the waiting client's address has at least two fewer.",
        at_least(1),
    )
