"""Login: how one connection authenticates, without I/O.

    ApiVersions (at most once) -> SaslHandshake -> tokens -> complete

After SaslHandshake version 0 the client sends bare tokens, each with its length in front; after version 1
SaslAuthenticate requests (KIP-152). Anything else ends the connection. A client prolongs a session that expires by the
same steps without ApiVersions, with the same mechanism and the same principal (KIP-368). As in Kafka's
SaslServerAuthenticator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kproc.broker.security.principal import USER, Principal
from kproc.broker.security.sasl.mechanism import Exchange, ExchangeFailed, Mechanism
from kproc.broker.security.session import Session
from kproc.common.errors import ErrorCode


class Stage(Enum):
    """The stage of a login. The values complete the sentence "a client that ..." in log lines."""

    BEGUN = "has not sent SaslHandshake"
    ASKED_VERSIONS = "has sent ApiVersions, but not SaslHandshake"
    TOKENS = "must send SASL tokens"
    COMPLETE = "has logged in already"
    FAILED = "has failed to log in"


class SaslListener(NamedTuple):
    """The mechanisms of a listener, and the lifetime of a login in ms by mechanism. 0: no limit."""

    mechanisms: Mapping[str, Mechanism]
    lifetimes_ms: Mapping[str, int]

    @property
    def enabled(self) -> list[str]:
        return list(self.mechanisms)


class Refused(Exception):
    """The login has failed. `why` is for the log, and `code` and `told` for the client.

    With `code` NONE the client gets no response; its connection is closed.
    """

    def __init__(self, why: str, code: ErrorCode = ErrorCode.NONE, told: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.code = code
        self.told = told


class CompletedLogin(NamedTuple):
    """A complete login: the client's principal, and the time in ms for which the login is valid."""

    principal: Principal
    lifetime_ms: int | None  # None: the session never expires.


class Login:
    """The login of one connection. `before` is the session that it prolongs, or None for the first login."""

    __slots__ = ("_before", "_exchange", "_has_requests", "_listener", "mechanism", "stage")

    def __init__(self, listener: SaslListener, before: Session | None = None) -> None:
        self._listener = listener
        self._before = before
        self._exchange: Exchange | None = None
        self._has_requests = False
        self.mechanism = ""
        self.stage = Stage.BEGUN

    @property
    def is_again(self) -> bool:
        """True if the client has been authenticated before (KIP-368)."""
        return self._before is not None

    @property
    def takes_bare_tokens(self) -> bool:
        """True if the next frame is a bare token instead of a request, after SaslHandshake v0."""
        return self.stage is Stage.TOKENS and not self._has_requests

    def check_versions(self) -> None:
        """Check that the client may send ApiVersions now. Raises Refused."""
        # As in SaslServerAuthenticator, ApiVersions comes at most once, and only before the mechanism is chosen.
        if self.stage is not Stage.BEGUN or self.is_again:
            raise self._out_of_turn("ApiVersions")

    def on_versions_sent(self) -> None:
        """Store that ApiVersions was answered. The client must not send that request again before it has logged in."""
        self.stage = Stage.ASKED_VERSIONS

    def handshake(self, version: int, mechanism: str) -> Sequence[str]:
        """Handle SaslHandshake. Return the mechanisms for the response. Raises Refused."""
        # Reject a second SaslHandshake, which would let a client try one mechanism after the other on one connection.
        if self.stage not in (Stage.BEGUN, Stage.ASKED_VERSIONS):
            raise self._out_of_turn("SaslHandshake")
        # KIP-368: bare tokens have no request header, so the broker could not distinguish them from the requests of a
        # connection in use.
        if self.is_again and version < 1:
            raise self._refused("a client that uses SaslHandshake version 0 cannot re-authenticate")
        self.mechanism = mechanism
        offered = self._listener.mechanisms.get(mechanism)
        if offered is None:
            raise self._refused(
                "a SASL mechanism that the listener does not offer", ErrorCode.UNSUPPORTED_SASL_MECHANISM
            )
        # KIP-152: after SaslHandshake v1 tokens come as SaslAuthenticate requests, after v0 as bare bytes.
        self._has_requests = version > 0
        self.stage = Stage.TOKENS
        # As in Kafka, a session can be prolonged only by the mechanism of its first login. With another one no exchange
        # starts, and the first token is answered with an error.
        if self._before is None or self._before.mechanism == mechanism:
            self._exchange = offered.start()
        return self._listener.enabled

    def token(self, token: bytes, now_ms: int) -> tuple[bytes, CompletedLogin | None]:
        """Evaluate the client's next token. Return (response, the completed login or None).

        Raises Refused, and KeysAwaited if the same token must be evaluated again later. `now_ms`: since 1970.
        """
        if self.stage is not Stage.TOKENS:
            raise self._refused(f"a token from a client that {self.stage.value}")
        if self._exchange is None:
            assert self._before is not None
            told = (
                f"SASL mechanism '{self.mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._before.mechanism}'"
            )
            raise self._refused(told, ErrorCode.SASL_AUTHENTICATION_FAILED, told)
        try:
            answer = self._exchange.evaluate(token)
        except ExchangeFailed as error:
            raise self._refused(
                error.why, ErrorCode.SASL_AUTHENTICATION_FAILED, error.told or self._general()
            ) from error
        # The outcome is missing until the exchange is complete: SCRAM needs two tokens, and a bad OAUTHBEARER token
        # needs an acknowledgement.
        outcome = self._exchange.outcome
        if outcome is None:
            return answer, None
        principal = Principal(USER, outcome.name, outcome.is_token)
        if problem := principal.problem():
            raise self._refused(problem, ErrorCode.SASL_AUTHENTICATION_FAILED, self._general())
        # KIP-368: a re-authentication must not change the user, who would inherit what earlier requests of the
        # connection have started.
        self._check_unchanged(principal)
        self.stage = Stage.COMPLETE
        return answer, CompletedLogin(principal, self._lifetime_ms(outcome.expires_ms, now_ms))

    def _general(self) -> str:
        """Return the text for a client with wrong credentials. It does not reveal which users exist."""
        which = "re-authentication" if self.is_again else "authentication"
        return (
            f"Authentication failed during {which} due to invalid credentials with SASL mechanism "
            f"{self.mechanism}"
        )

    def _check_unchanged(self, principal: Principal) -> None:
        if self._before is None:
            return
        before = self._before.principal
        # As in Kafka, a token of the user may replace the password, or the other way round.
        if (before.type, before.name) == (principal.type, principal.name):
            return
        told = (
            f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
            f"{principal.type}.{principal.name}"
        )
        raise self._refused(told, ErrorCode.SASL_AUTHENTICATION_FAILED, told)

    def _lifetime_ms(self, expires_ms: int | None, now_ms: int) -> int | None:
        """Return the time in ms until the client must log in again. 0: the credential has expired. None: no limit."""
        limits = [expires_ms - now_ms] if expires_ms is not None else []
        if longest := self._listener.lifetimes_ms.get(self.mechanism, 0):
            limits.append(longest)
        # KIP-368: the session ends with the credential or with connections.max.reauth.ms, whichever is earlier. Never
        # return a negative number: Kafka took it for no limit (KAFKA-13848).
        return max(0, min(limits)) if limits else None

    def _out_of_turn(self, request: str) -> Refused:
        """Return the error for a request at the wrong stage.

        As in Kafka, it is sent only to a client in the stage TOKENS; other connections are just closed.
        """
        code = ErrorCode.ILLEGAL_SASL_STATE if self.stage is Stage.TOKENS else ErrorCode.NONE
        return self._refused(f"{request} from a client that {self.stage.value}", code)

    def _refused(self, why: str, code: ErrorCode = ErrorCode.NONE, told: str | None = None) -> Refused:
        self.stage = Stage.FAILED
        return Refused(why, code, told)
