"""TokenCredentials: the SCRAM credentials of delegation tokens (KIP-48). A client logs in with the token's id as name.

The password is the token's secret in base64. The credential follows from it by PBKDF2, with 4096 rounds as in Kafka,
which takes a few milliseconds. A Handler computes it at the first login with a token, and caches it.

Anybody can request the salt of any name before a login. Salts are therefore derived from a secret of this Handler and
never from delegation.token.secret.key, which could otherwise be guessed offline. A token id has the same salt before
and after the token is created, so that salts do not reveal which tokens exist.

Differs from Kafka for a token that has expired, but is not removed yet: kproc rejects the login. Kafka accepts the
login and ends its session at once.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from kproc.broker.cluster.delegation_tokens import has_expired, token_hmac, token_key
from kproc.broker.cluster.records import DelegationTokenSet
from kproc.broker.config import Config
from kproc.broker.security.sasl.mechanism import AuthenticatedUser
from kproc.broker.security.sasl.scram import (
    ITERATIONS_MIN,
    FoundCredential,
    ScramCredential,
    ScramKind,
    credential_of,
    made_up,
    salted_password,
)

_SECRET_BYTES: Final = 32
# Limit of cached credentials, because an owner can create many tokens. Above it the cache is cleared.
_KEPT_MAX: Final = 1000


class TokenCredentials:
    """SCRAM credentials of the delegation tokens, with a cache. Each Handler has one instance."""

    __slots__ = ("_key", "_made", "_now_ms", "_salt_secret", "_tokens")

    def __init__(
        self,
        config: Config,
        tokens: Callable[[], Mapping[str, DelegationTokenSet]],
        now_ms: Callable[[], int],
    ) -> None:
        self._key = token_key(config)
        self._salt_secret = secrets.token_bytes(_SECRET_BYTES)
        self._tokens = tokens
        self._now_ms = now_ms
        self._made: dict[tuple[str, str], ScramCredential] = {}

    def find(self, kind: ScramKind, token_id: str) -> FoundCredential:
        """Return the credential of a token, with its owner and expiry.

        For an unknown or expired token return a fake credential that looks like a real one, so that a client cannot
        find out which tokens exist.
        """
        token = self._tokens().get(token_id)
        # A broker without tokens, an unknown token and an expired token must look alike to a client.
        if self._key is None or token is None or has_expired(token, self._now_ms()):
            return FoundCredential(made_up(kind, token_id, self._salt_secret), None)
        credential = self._made.get((kind.name, token_id))
        if credential is None:
            # Clear the whole cache, because an order of use would need another structure for a cache that rarely fills.
            if len(self._made) >= _KEPT_MAX:
                self._made.clear()
            credential = self._made[kind.name, token_id] = self._make(self._key, kind, token_id)
        # KIP-48: the client acts as the token's owner, and its session ends with the token at the latest (KIP-368).
        outcome = AuthenticatedUser(token.owner[1], min(token.expires_ms, token.max_ms), is_token=True)
        return FoundCredential(credential, outcome)

    def _make(self, key: bytes, kind: ScramKind, token_id: str) -> ScramCredential:
        password = base64.b64encode(token_hmac(key, token_id)).decode()
        salt = made_up(kind, token_id, self._salt_secret).salt
        salted = salted_password(kind, password, salt, ITERATIONS_MIN)
        return credential_of(kind, salted, salt, ITERATIONS_MIN)
