"""PLAIN (RFC 4616): `authorization id NUL user NUL password`, against the users of the listener's JAAS line."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from kproc.config.sasl_settings import PLAIN, USER_PREFIX
from kproc.security.sasl.mechanism import AuthenticationFailed, Outcome

_OTHER_NAME: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


def users_of(options: Mapping[str, str]) -> dict[str, str]:
    """Passwords by user, from a JAAS line's options `user_<name>="<password>"`."""
    return {
        name.removeprefix(USER_PREFIX): password
        for name, password in options.items()
        if name.startswith(USER_PREFIX)
    }


class PlainMechanism:
    """PLAIN with a fixed set of users."""

    name = PLAIN

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = {user: password.encode() for user, password in passwords.items()}

    def begin(self) -> PlainExchange:
        """A new client's exchange."""
        return PlainExchange(self._passwords)


class PlainExchange:
    """One client's run through PLAIN: one token."""

    def __init__(self, passwords: Mapping[str, bytes]) -> None:
        self._passwords = passwords
        self.outcome: Outcome | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Take the token. It is answered by nothing."""
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed(f"a PLAIN token of {len(parts)} parts instead of 3")
        try:
            authorization_id, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("a PLAIN token that is not UTF-8") from error
        if not user:
            raise _told("Authentication failed: username not specified")
        if not parts[2]:
            raise _told("Authentication failed: password not specified")
        # An unknown user is compared with something, too: the time must not tell who exists.
        known = self._passwords.get(user)
        is_equal = hmac.compare_digest(parts[2], known if known is not None else parts[2] + b"-")
        if not is_equal or known is None:
            raise _told("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user:
            raise _told(_OTHER_NAME)
        self.outcome = Outcome(user)
        return b""


def _told(text: str) -> AuthenticationFailed:
    return AuthenticationFailed(text, told=text)
