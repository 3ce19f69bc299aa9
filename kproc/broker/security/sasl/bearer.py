"""OAUTHBEARER (RFC 7628, KIP-255): the message with a token, and the response to a rejected token.

The response to a bad token is a JSON error in a successful SaslAuthenticate. The client acknowledges it with one byte
1, and only then does the login fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from kproc.broker.config.sasl_settings import OAUTHBEARER
from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed

_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_INITIAL: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_ACKNOWLEDGED: Final = b"\x01"
INVALID: Final = "invalid_token"
INSUFFICIENT: Final = "insufficient_scope"


class BadToken(Exception):
    """A token that authenticates nobody. `why` is for the log and contains no part of the token."""

    def __init__(self, why: str, status: str = INVALID, scope: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.status = status
        self.scope = scope

    def answer(self) -> str:
        """Encode the error for the client (RFC 7628, section 3.2.2)."""
        scope = f',"scope":"{self.scope}"' if self.scope else ""
        return f'{{"status":"{self.status}"{scope}}}'


class Claims(NamedTuple):
    """The user name of a valid token, and its expiry in ms since 1970."""

    name: str
    expires_ms: int


Validate = Callable[[str], Claims]
"""A function that validates a token. Raises BadToken, and KeysAwaited until the keys have been loaded."""


class TokenMechanism:
    """The mechanism OAUTHBEARER of one listener, with the function that validates tokens."""

    name = OAUTHBEARER

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    def start(self) -> TokenExchange:
        """Return a new exchange, for one login of a client."""
        return TokenExchange(self._validate)


class TokenExchange:
    """One client's SASL exchange by OAUTHBEARER.

    It takes one message with the token, and a second one if the token is rejected.
    """

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._refused: BadToken | None = None
        self.outcome: AuthenticatedUser | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Evaluate the message with the token, or the client's acknowledgement of a rejection."""
        # RFC 7628, section 3.2.3: the client answers an error with one byte 0x01, and only then does the server end the
        # exchange.
        if self._refused is not None:
            if token == _ACKNOWLEDGED:
                raise ExchangeFailed(self._refused.why, told=self._refused.answer())
            raise ExchangeFailed(f"{self._refused.why}; and the client did not acknowledge the rejection")
        match = _INITIAL.fullmatch(token.decode("utf-8", "replace"))
        if match is None:
            raise ExchangeFailed("the client's OAUTHBEARER message does not follow RFC 7628")
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01")[:-1])
        scheme, _, bearer = pairs.get("auth", "").partition(" ")
        # RFC 6750 defines the scheme, and RFC 7235 lets clients write it in any case.
        if scheme.lower() != "bearer":
            raise ExchangeFailed("the client's OAUTHBEARER message has no auth=Bearer with a token")
        try:
            claims = self._validate(bearer.strip())
        except BadToken as error:
            # Store the error and do not fail yet: RFC 7628 sends the reason as a challenge, which the client
            # acknowledges.
            self._refused = error
            return error.answer().encode()
        # The client may name the identity that it wants to act as (RFC 7628). As in Kafka, only the name in the token
        # is accepted.
        if match["authorization"] and match["authorization"] != claims.name:
            told = (
                f"Authentication failed: Client requested an authorization id ({match['authorization']}) that is "
                f"different from the token's principal name ({claims.name})"
            )
            raise ExchangeFailed(told, told=told)
        self.outcome = AuthenticatedUser(claims.name, claims.expires_ms)
        return b""
