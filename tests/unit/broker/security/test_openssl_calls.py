"""TLS sessions: resumed across contexts with one secret, and never with client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.security import openssl_calls
from kproc.broker.security.tls import make_context, settings_of
from tests.support.certificates import Certificates
from tests.support.tls_handshakes import needs_openssl_symbols, shake_hands


def values(**settings: Any) -> Callable[[str], Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return settings_of(Config.build(given), DynamicSettings(), "SSL")


def context_of(secret: bytes = bytes(32), **settings: Any) -> ssl.SSLContext:
    return make_context("SSL", values(**settings), ticket_secret=secret).context


def client_of(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


# -- sessions ----------------------------------------------------------------------------------------------------


@needs_openssl_symbols
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_contexts_with_one_secret_resume_each_others_sessions(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    assert openssl_calls.library() is not None, "here it can be done"
    client = client_of(certificates)
    client.minimum_version = client.maximum_version = version
    location = str(certificates.server)
    first = shake_hands(context_of(ssl_keystore_location=location), client)
    assert not first.session_reused
    assert shake_hands(context_of(ssl_keystore_location=location), client, first.session).session_reused
    other = context_of(b"another secret", ssl_keystore_location=location)
    assert not shake_hands(other, client, first.session).session_reused


@pytest.mark.parametrize(
    "version",
    [pytest.param(ssl.TLSVersion.TLSv1_2, marks=needs_openssl_symbols), ssl.TLSVersion.TLSv1_3],
)
@pytest.mark.parametrize("client_auth", ["requested", "required"])
@pytest.mark.parametrize("before", ["none", "requested", "required"])
def test_tls_with_client_auth_resumes_no_session(
    certificates: Certificates, version: ssl.TLSVersion, client_auth: str, before: str
) -> None:
    """A resumed session would bring a certificate that nobody verifies again, or none where one is required."""
    client = client_of(certificates)
    client.minimum_version = client.maximum_version = version
    client.load_cert_chain(certificates.client)

    def context_with(auth: str) -> ssl.SSLContext:
        return context_of(
            ssl_keystore_location=str(certificates.server),
            ssl_truststore_location=str(certificates.ca),
            ssl_client_auth=auth,
        )

    ours = context_with(client_auth)
    session = shake_hands(context_with(before) if before != client_auth else ours, client).session
    again = shake_hands(ours, client, session)
    assert not again.session_reused
    assert not shake_hands(context_with("none"), client, again.session).session_reused
