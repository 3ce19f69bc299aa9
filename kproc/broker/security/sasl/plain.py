"""PLAIN (RFC 4616): `authorization id NUL user NUL password`, against the users of the listener's JAAS line."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final

from kproc.broker.config.sasl_settings import PLAIN, USER_PREFIX
from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed

_KEY_BYTES: Final = 32
_OTHER_NAME: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


def users_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the passwords by user, from a JAAS line's options `user_<name>="<password>"`."""
    return {
        name.removeprefix(USER_PREFIX): password
        for name, password in options.items()
        if name.startswith(USER_PREFIX)
    }


class PlainPasswords:
    """Passwords by user, stored and compared as digests of equal length.

    The time to compare texts depends on their lengths, and would reveal whether a user exists and how long the password
    is. A digest of the received password takes the same time for every user. Each process has its own random key, so
    that nobody can prepare digests.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._digests = {user: self._digest(password.encode()) for user, password in passwords.items()}
        self._nobody = secrets.token_bytes(len(self._digest(b"")))

    def is_right(self, user: str, password: bytes) -> bool:
        """Return True if the user exists and has this password. Does the same work in every case."""
        return hmac.compare_digest(self._digests.get(user, self._nobody), self._digest(password))

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")


class PlainMechanism:
    """The mechanism PLAIN of one listener, with the users of its JAAS line."""

    name = PLAIN

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = PlainPasswords(passwords)

    def start(self) -> PlainExchange:
        """Return the exchange of a new client."""
        return PlainExchange(self._passwords)


class PlainExchange:
    """One client's SASL exchange by PLAIN, which takes one token from the client."""

    def __init__(self, passwords: PlainPasswords) -> None:
        self._passwords = passwords
        self.outcome: AuthenticatedUser | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Evaluate the token, and return the empty response.

        Raises ExchangeFailed if the token authenticates nobody.
        """
        # RFC 4616: authorization id, user and password, separated by NUL. None of the three may contain NUL.
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise ExchangeFailed(f"the client's PLAIN token has {len(parts)} parts instead of 3")
        try:
            authorization_id, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError as error:
            raise ExchangeFailed("the client's PLAIN token is not UTF-8") from error
        if not user:
            raise _shown_failure("Authentication failed: username not specified")
        if not parts[2]:
            raise _shown_failure("Authentication failed: password not specified")
        # One message for an unknown user and a wrong password, because the difference would reveal which users exist.
        if not self._passwords.is_right(user, parts[2]):
            raise _shown_failure("Authentication failed: Invalid username or password")
        # RFC 4616 lets a user act as another one. As in Kafka, reject that, because ACLs name the authenticated user.
        if authorization_id and authorization_id != user:
            raise _shown_failure(_OTHER_NAME)
        self.outcome = AuthenticatedUser(user)
        return b""


def _shown_failure(text: str) -> ExchangeFailed:
    return ExchangeFailed(text, told=text)
