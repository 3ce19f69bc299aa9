"""TLS contexts of listeners: protocols, suites, and which settings apply."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.config import SETTINGS, Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.config.values import Secret
from kproc.broker.security.tls import make_context, openssl_name, problem_with_change, settings_of
from tests.support.cases import in_one_test
from tests.support.certificates import LOCAL_NAMES, Certificates
from tests.support.tls_handshakes import needs_openssl_symbols, shake_hands


def values(**settings: Any) -> Callable[[str], Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return settings_of(Config.build(given), DynamicSettings(), "SSL")


def context_of(secret: bytes = bytes(32), **settings: Any) -> ssl.SSLContext:
    return make_context("SSL", values(**settings), ticket_secret=secret).context


def client_of(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


# -- protocols and suites ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_only_enabled_versions_are_spoken(certificates: Certificates, version: str) -> None:
    server = context_of(ssl_keystore_location=str(certificates.server), ssl_enabled_protocols=version)
    client = client_of(certificates)
    assert shake_hands(server, client).version() == version
    if version == "TLSv1.2":
        client.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        shake_hands(server, client)


@needs_openssl_symbols
@pytest.mark.parametrize(
    ("suites", "version", "chosen"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLSv1.3", "TLS_AES_128_GCM_SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (
            "ECDHE-ECDSA-AES256-GCM-SHA384,TLS_CHACHA20_POLY1305_SHA256",
            "TLSv1.3",
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
    ],
)
def test_suites_by_the_names_of_java_and_of_openssl(
    certificates: Certificates, suites: str, version: str, chosen: str
) -> None:
    server = context_of(ssl_keystore_location=str(certificates.server), ssl_cipher_suites=suites)
    end = shake_hands(server, client_of(certificates))
    cipher = end.cipher()
    assert cipher is not None
    assert (end.version(), cipher[0]) == (version, chosen)


@in_one_test(
    ("java", "ours"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_javas_names_of_suites_are_openssls(java: str, ours: str) -> None:
    assert openssl_name(java) == ours
    assert openssl_name(java) in {each["name"] for each in _all_suites()}


def _all_suites() -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context.get_ciphers()


# -- settings ----------------------------------------------------------------------------------------------------


def test_run_time_value_precedes_listeners_and_plain_value() -> None:
    config = Config.build(
        {"ssl.keystore.location": "/plain", "listener.name.OUT.ssl.keystore.location": "/own"}
    )
    changed = DynamicSettings({"listener.name.out.ssl.keystore.location": "/changed"})
    name = "ssl.keystore.location"
    assert settings_of(config, DynamicSettings(), "IN")(name) == "/plain"
    assert settings_of(config, DynamicSettings(), "OUT")(name) == "/own"
    assert settings_of(config, changed, "OUT")(name) == "/changed"
    password = DynamicSettings({"listener.name.out.ssl.key.password": "word"})
    assert settings_of(config, password, "OUT")("ssl.key.password") == Secret("word")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_sasl_listener_asks_certificate_only_by_own_setting(protocol: str) -> None:
    given = {"listener.security.protocol.map": f"OUT:{protocol},OWN:{protocol},PLAINTEXT:PLAINTEXT"}
    given |= {"ssl.client.auth": "required", "listener.name.own.ssl.client.auth": "requested"}
    config = Config.build(given)
    name = "ssl.client.auth"
    assert settings_of(config, DynamicSettings(), "OUT")(name) == (
        "required" if protocol == "SSL" else "none"
    )
    assert settings_of(config, DynamicSettings(), "OWN")(name) == "requested"


def test_every_setting_of_tls_may_be_a_listeners_own() -> None:
    assert all(row.per_listener for name, row in SETTINGS.items() if name.startswith("ssl."))


def test_new_certificate_keeps_names_unless_change_is_allowed(certificates: Certificates) -> None:
    def made(subject: str, hosts: tuple[str, ...], name: str, **settings: Any) -> Any:
        path = certificates.write(name, certificates.authority.issue(subject, hosts=hosts).pem())
        value = values(ssl_keystore_location=str(path), **settings)
        return make_context("SSL", value, ticket_secret=b""), value

    old, _ = made("CN=localhost", LOCAL_NAMES, "old.pem")
    same, value = made("CN=localhost", LOCAL_NAMES, "same.pem")
    assert problem_with_change(old, same, "SSL", value) is None
    renamed, value = made("CN=other", LOCAL_NAMES, "renamed.pem")
    assert "from CN=localhost to CN=other (ssl.allow.dn.changes)" in str(
        problem_with_change(old, renamed, "SSL", value)
    )
    moved, value = made("CN=localhost", ("example.org",), "moved.pem")
    assert "ssl.allow.san.changes" in str(problem_with_change(old, moved, "SSL", value))
    other, value = made("CN=x", ("y",), "o.pem", ssl_allow_dn_changes="true", ssl_allow_san_changes="true")
    assert problem_with_change(old, other, "SSL", value) is None
