"""Delegation tokens. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.config.values import LONG, PASSWORD, Secret, at_least, setting


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TokenSettings:
    """The key of the tokens' secrets, and how long tokens are good."""

    delegation_token_secret_key: Secret | None = setting(
        PASSWORD, None, "What the secrets of delegation tokens are made with. Without it there are none."
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
