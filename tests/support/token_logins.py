"""A raw connection's login by delegation token."""

from __future__ import annotations

import base64
from typing import Any

from kproc.wire.header import ApiKey
from tests.support.raw import RawConnection
from tests.support.scram_client import ScramClient


def log_in_by(connection: RawConnection, token: dict[str, Any]) -> dict[str, Any]:
    """Log in by what CreateDelegationToken answered; the last answer."""
    secret = base64.b64encode(token["hmac"]).decode()
    client = ScramClient("sha256", token["token_id"], secret, extensions=",tokenauth=true")
    connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
    first = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": client.first()})
    return connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": client.final(first["auth_bytes"])})
