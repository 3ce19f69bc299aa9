"""The interface of SASL mechanisms: an exchange of tokens that ends with a user name or a failure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ExchangeFailed(Exception):
    """A client failed to authenticate. Neither text contains a secret.

    `why` is for the broker's log. `told` is for the client. If it is None, the client learns only that its credentials
    are invalid, because the reason could reveal which users exist.
    """

    def __init__(self, why: str, *, told: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.told = told


class KeysAwaited(Exception):
    """The token cannot be verified before keys have been loaded. Evaluate it again afterwards."""


class AuthenticatedUser(NamedTuple):
    """The user that a SASL exchange has authenticated, and the expiry of the credential."""

    name: str
    expires_ms: int | None = None  # Expiry of the credential in ms since 1970. None: never.
    is_token: bool = False  # True if the client logged in by a delegation token of the user.


class Exchange(Protocol):
    """One client's SASL exchange by a mechanism."""

    outcome: AuthenticatedUser | None  # Set when the exchange is complete.

    def evaluate(self, token: bytes) -> bytes:
        """Evaluate the client's next token and return the response. Raises ExchangeFailed, KeysAwaited."""


class Mechanism(Protocol):
    """A SASL mechanism, set up with the settings of one listener."""

    @property
    def name(self) -> str: ...

    def start(self) -> Exchange:
        """Return the exchange of a new client."""
