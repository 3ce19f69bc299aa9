"""Delegation tokens. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.values import LONG, PASSWORD, Secret, at_least, setting

# Whoever holds one token can try keys offline, at millions a second and core.
KEY_CHARACTERS_MIN: Final = 16


def _check_key(key: Secret | None) -> str | None:
    """Reject a key that can be guessed. An empty one means that there are no tokens."""
    if key is None or not key.reveal() or len(key.reveal()) >= KEY_CHARACTERS_MIN:
        return None
    return (
        f"must have at least {KEY_CHARACTERS_MIN} characters, this one has {len(key.reveal())}: whoever holds a token "
        "could guess it; make one by `openssl rand -hex 32` (tokens of the old key end, as with any new key)"
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TokenSettings:
    """The key of the tokens' secrets, and how long tokens are good."""

    delegation_token_secret_key: Secret | None = setting(
        PASSWORD,
        None,
        f"Secret that the secrets of delegation tokens are made with, at least {KEY_CHARACTERS_MIN} characters. "
        "Without it there are no delegation tokens.",
        _check_key,
    )
    delegation_token_max_lifetime_ms: int = setting(
        LONG, 604_800_000, "Longest life of a delegation token, however often it is renewed.", at_least(1)
    )
    delegation_token_expiry_time_ms: int = setting(
        LONG, 86_400_000, "A delegation token must be renewed before this time is over.", at_least(1)
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        LONG, 3_600_000, "How often delegation tokens that have expired are removed.", at_least(1)
    )
