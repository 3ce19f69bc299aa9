"""The secrets of delegation tokens (KIP-48). They are derived from the token's id and the key, so none is stored."""

from __future__ import annotations

import hmac

from kproc.broker.config import Config


def token_key(config: Config) -> bytes | None:
    """Return delegation.token.secret.key, or None if delegation tokens are disabled."""
    secret = config.delegation_token_secret_key
    return secret.reveal().encode() or None if secret is not None else None


def token_hmac(key: bytes, token_id: str) -> bytes:
    """Return the secret that a token's owner receives. In base64 it is the password of its SCRAM logins."""
    return hmac.digest(key, token_id.encode(), "sha512")
