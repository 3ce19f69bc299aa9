"""Conversion of security settings for librdkafka, which `kproc produce` and `kproc consume` use for records."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kproc.broker.config.values import ConfigError
from kproc.client.security.sasl import bearer_token
from kproc.client.security.settings import ClientLogin, ClientSecurity, Tls
from kproc.client.security.tls import key_pem, trusted_pem
from kproc.common.clock import SystemClock
from kproc.common.json_bytes import parse_json

_LIFETIME_S: Final = 3600


def librdkafka_settings(security: ClientSecurity) -> Mapping[str, Any]:
    """Return the security settings for confluent_kafka, empty for PLAINTEXT. Raise ConfigError for unsupported ones."""
    if security.tls is None and security.login is None:
        return {}
    settings: dict[str, Any] = {"security.protocol": security.protocol}
    if security.tls is not None:
        settings |= _tls(security.tls)
    if security.login is not None:
        settings |= _login(security.login)
    return settings


def _tls(tls: Tls) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_host else "none",
        "enable.ssl.certificate.verification": tls.is_verified,
    }
    if tls.trust:
        if Path(tls.trust.location).is_dir():
            settings["ssl.ca.location"] = tls.trust.location
        else:
            settings["ssl.ca.pem"] = trusted_pem(tls.trust)
    if tls.key:
        pem, password = key_pem(tls)
        settings["ssl.key.pem"] = settings["ssl.certificate.pem"] = pem.decode()
        if password:
            settings["ssl.key.password"] = password
    return settings


def _login(login: ClientLogin) -> dict[str, Any]:
    if login.is_delegation_token:
        raise ConfigError(
            "librdkafka, which sends and receives the records, cannot log in by delegation tokens: log in as a user"
        )
    settings: dict[str, Any] = {"sasl.mechanism": login.mechanism}
    if login.mechanism == "OAUTHBEARER":
        return settings | {"oauth_cb": lambda _config: _token(login)}
    return settings | {"sasl.username": login.username, "sasl.password": login.password}


def _token(login: ClientLogin) -> tuple[str, float]:
    """Return the OAuth token and its expiry in seconds since 1970.

    If the token's `exp` cannot be read, the expiry is 1 hour from now.
    """
    token = bearer_token(login)
    try:
        payload = token.split(".")[1]
        claims = parse_json(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return token, float(claims["exp"])
    except (
        LookupError,
        ValueError,
        TypeError,
    ):
        # Not a JWT with an expiry. Do not reject it here: the broker rejects the login if the token is invalid.
        return token, SystemClock().wall_ms() / 1000 + _LIFETIME_S
