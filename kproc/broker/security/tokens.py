"""The secrets of delegation tokens (KIP-48): what is not stored, because it follows from the token's id and the key."""

from __future__ import annotations

import hmac

from kproc.broker.config import Config


def token_key(config: Config) -> bytes | None:
    """delegation.token.secret.key; None: there are no delegation tokens here."""
    secret = config.delegation_token_secret_key
    return secret.reveal().encode() or None if secret is not None else None


def token_hmac(key: bytes, token_id: str) -> bytes:
    """What a token's owner is given; in base64 it is the password of its SCRAM logins."""
    return hmac.digest(key, token_id.encode(), "sha512")
