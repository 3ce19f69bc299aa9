"""Settings of delegation tokens. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.values import LONG, PASSWORD, Check, Secret, at_least, setting

# Shortest delegation.token.secret.key. A client that has a token can test millions of keys per second and core offline,
# because the token's secret is an HMAC with this key.
KEY_CHARACTERS_MIN: Final = 16


def _check_key(key: Secret | None) -> str | None:
    """Return an error for a key that can be guessed. An empty key is valid: there are no tokens."""
    if key is None or not key.reveal() or len(key.reveal()) >= KEY_CHARACTERS_MIN:
        return None
    return (
        f"must have at least {KEY_CHARACTERS_MIN} characters, this one has {len(key.reveal())}: a client with a token "
        "could guess it; make one with `openssl rand -hex 32` (a new key invalidates existing tokens)"
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TokenSettings:
    """Settings of delegation tokens: the key of the tokens' secrets, and the lifetime of tokens."""

    delegation_token_secret_key: Secret | None = setting(
        PASSWORD,
        None,
        f"Key from which the secrets of delegation tokens are derived, at least {KEY_CHARACTERS_MIN} characters. "
        "Default: no delegation tokens.",
        Check(f"at least {KEY_CHARACTERS_MIN} characters, or empty", _check_key),
    )
    delegation_token_max_lifetime_ms: int = setting(
        LONG,
        604_800_000,
        "Longest lifetime of a delegation token in ms. Renewal cannot extend it.",
        at_least(1),
    )
    delegation_token_expiry_time_ms: int = setting(
        LONG, 86_400_000, "Time in ms within which a delegation token must be renewed.", at_least(1)
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        LONG, 3_600_000, "Interval in ms at which expired delegation tokens are removed.", at_least(1)
    )
