"""TokenChanges: turns CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken into records (KIP-48).

A token is stored without its secret, which follows from its id and delegation.token.secret.key: neither the metadata
log nor a snapshot holds what somebody could log in with. Sans-IO, for the controller only. The checks, their order and
the answers' fields are those of Kafka's DelegationTokenControlManager.
"""

from __future__ import annotations

import base64
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.broker.config.values import LONG_MAX
from kproc.broker.security.principal import USER
from kproc.common.clock import Clock
from kproc.common.errors import ErrorCode
from kproc.common.log_rate import LogRate

logger = logging.getLogger(__name__)

REMOVE_EXPIRED: Final = "remove_expired_tokens"
# Field of a reply for the change log: the id of a changed token, for which Kafka's responses have no field.
# RequestContext.reply removes it.
LOG_ONLY: Final = "log_only"
_REMOVED_AT_ONCE: Final = 1000  # Limit of records in one batch. The next tick removes the others.
# Limits, because every user who has logged in may create tokens, and every role stores them until they expire. Kafka
# has none.
TOKENS_MAX: Final = 10_000
RENEWER_BYTES_MAX: Final = 16 << 10

Reply = dict[str, Any]
Handled = tuple[Reply, list[r.Record]]


def has_expired(token: r.DelegationTokenSet, now_ms: int) -> bool:
    """Return True if the token has expired. Clients can then neither log in with it nor renew it."""
    return min(token.expires_ms, token.max_ms) < now_ms


def creation_fields(owner: r.Name, requester: r.Name, code: ErrorCode, times: int) -> Reply:
    """Return the response to CreateDelegationToken without a token.

    times: value of all timestamps. In Kafka it is -1 in errors of the broker, and 0 in those of the controller.
    """
    return {
        "error_code": int(code),
        "principal_type": owner[0],
        "principal_name": owner[1],
        "token_requester_principal_type": requester[0],
        "token_requester_principal_name": requester[1],
        "issue_timestamp": times,
        "expiry_timestamp": times,
        "max_timestamp": times,
        "token_id": "",
        "hmac": b"",
    }


class TokenChanges:
    """Validates changes of delegation tokens, and returns the records to write.

    Its only state are the tokens' HMACs, by which requests name a token.
    """

    __slots__ = ("_clock", "_config", "_ids_by_hmac", "_image", "_key", "_random_id", "_rejection_lines")

    def __init__(
        self, config: Config, image: ClusterImage, clock: Clock, random_id: Callable[[], bytes]
    ) -> None:
        self._config = config
        self._image = image
        self._clock = clock
        self._random_id = random_id
        self._key = token_key(config)
        self._ids_by_hmac: dict[bytes, str] = {}
        self._rejection_lines = LogRate(logger, "rejected %d more delegation tokens")

    def create(self, body: dict[str, Any]) -> Handled:
        """Handle CreateDelegationToken. Body: {"requester", "owner", "renewers", "max_lifetime"}.

        max_lifetime is in ms. Principals are (type, name).
        """
        requester, owner = _name(body["requester"]), _name(body["owner"])
        if self._key is None:
            return creation_fields(owner, requester, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0), []
        renewers = tuple(_name(each) for each in body["renewers"])
        # As in Kafka, only users can renew a token.
        if any(kind != USER for kind, _ in renewers):
            return creation_fields(owner, requester, ErrorCode.INVALID_PRINCIPAL_TYPE, 0), []
        renewer_bytes = sum(len(name) for _, name in renewers)
        # Limit tokens and renewers, because every token costs memory in each Handler, and any authenticated client may
        # create some.
        count = len(self._image.delegation_tokens)
        if count >= TOKENS_MAX or renewer_bytes > RENEWER_BYTES_MAX:
            self._log_limits(count, renewer_bytes)
            return creation_fields(owner, requester, ErrorCode.POLICY_VIOLATION, 0), []
        now_ms, longest_ms = self._clock.wall_ms(), self._config.delegation_token_max_lifetime_ms
        # KIP-48: a client sends -1 for the longest lifetime that the broker allows.
        if body["max_lifetime"] > 0:
            longest_ms = min(longest_ms, body["max_lifetime"])
        # Limit the sum, because responses encode the time as an int64.
        max_ms = min(now_ms + longest_ms, LONG_MAX)
        # KIP-48: a token has two ends. A renewal delays the first, but never beyond the second.
        expires_ms = min(max_ms, now_ms + self._config.delegation_token_expiry_time_ms)
        token_id = base64.urlsafe_b64encode(self._random_id()).decode().rstrip("=")
        token = r.DelegationTokenSet(token_id, owner, requester, renewers, now_ms, expires_ms, max_ms)
        reply = {
            **creation_fields(owner, requester, ErrorCode.NONE, 0),
            "issue_timestamp": now_ms,
            "expiry_timestamp": expires_ms,
            "max_timestamp": max_ms,
            "token_id": token_id,
            "hmac": token_hmac(self._key, token_id),
        }
        return reply, [token]

    def _log_limits(self, count: int, renewer_bytes: int) -> None:
        """Log why a token was rejected, because the response has no field for a message."""
        if self._rejection_lines.has_room(self._clock.host_ns()):
            logger.warning(
                "rejected a delegation token: there are %d tokens (limit %d), and its renewers have %d characters "
                "(limit %d)",
                count,
                TOKENS_MAX,
                renewer_bytes,
                RENEWER_BYTES_MAX,
            )

    def renew(self, body: dict[str, Any]) -> Handled:
        """Handle RenewDelegationToken. Body: {"requester", "hmac", "period"}.

        The token then expires `period` ms from now, but not later than delegation.token.expiry.time.ms and its maximum
        lifetime allow. A period of 0 or less requests the longest time.
        """
        token, now_ms = self._find(body["hmac"]), self._clock.wall_ms()
        if token is None:
            return self._refused()
        # An expired token stays until the next removal. It must not become valid again, because its owner
        # relies on its end.
        if has_expired(token, now_ms):
            return _failed(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        # KIP-48: only the owner and the named renewers may prolong or end a token.
        if not _may_renew(token, body):
            return _failed(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        period_ms = self._config.delegation_token_expiry_time_ms
        if body["period"] > 0:
            period_ms = min(period_ms, body["period"])
        return _expires(token, now_ms + period_ms)

    def expire(self, body: dict[str, Any]) -> Handled:
        """Handle ExpireDelegationToken. Body: {"requester", "hmac", "period"}.

        The token with this HMAC expires `period` ms from now, or at the end of its maximum lifetime if that is earlier.
        A negative period removes the token at once.
        """
        token, now_ms = self._find(body["hmac"]), self._clock.wall_ms()
        if token is None:
            return self._refused()
        if not _may_renew(token, body):
            return _failed(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        # KIP-48: a negative period expires the token at once.
        if body["period"] < 0:
            return _changed(token, now_ms), [r.DelegationTokenRemoved(token.token_id)]
        # Check this after the removal, because an owner can remove a token that has expired.
        if has_expired(token, now_ms):
            return _failed(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        return _expires(token, now_ms + body["period"])

    def remove_expired(self, _body: dict[str, Any]) -> Handled:
        """Remove expired tokens, at most _REMOVED_AT_ONCE of them."""
        now_ms, tokens = self._clock.wall_ms(), self._image.delegation_tokens.values()
        expired = [token.token_id for token in tokens if has_expired(token, now_ms)][:_REMOVED_AT_ONCE]
        return {"removed": expired}, [r.DelegationTokenRemoved(token_id) for token_id in expired]

    def _find(self, hmac: bytes) -> r.DelegationTokenSet | None:
        """Return the token with this HMAC, or None if no token has it."""
        if self._key is None:
            return None
        tokens = self._image.delegation_tokens
        # The records do not contain the HMACs. Compute each of them once, because a look-up must not compute all.
        known = set(self._ids_by_hmac.values())
        for token_id in tokens.keys() - known:
            self._ids_by_hmac[token_hmac(self._key, token_id)] = token_id
        for token_id in known - tokens.keys():
            self._ids_by_hmac.pop(token_hmac(self._key, token_id), None)
        return tokens.get(self._ids_by_hmac.get(hmac, ""))

    def _refused(self) -> Handled:
        """Return the error for a token that does not exist, or for a broker without delegation tokens."""
        # Without the secret key no HMAC can be computed, so no token can be found at all.
        disabled = self._key is None
        return _failed(
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED if disabled else ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        )


def _failed(code: ErrorCode) -> Handled:
    return {"error_code": int(code), "expiry_timestamp": 0}, []


def _expires(token: r.DelegationTokenSet, at_ms: int) -> Handled:
    # KIP-48: the longest lifetime was fixed when the token was issued, so that renewals cannot keep a token
    # for ever.
    expires_ms = min(token.max_ms, at_ms)
    changed = msgspec.structs.replace(token, expires_ms=expires_ms)
    return _changed(token, expires_ms), [changed]


def _changed(token: r.DelegationTokenSet, expires_ms: int) -> Reply:
    """Return the response for a token whose expiry has changed.

    The field LOG_ONLY has the token's id, for the broker's log of changes. It is not sent to the client.
    """
    return {
        "error_code": int(ErrorCode.NONE),
        "expiry_timestamp": expires_ms,
        LOG_ONLY: token.token_id,
    }


def _may_renew(token: r.DelegationTokenSet, body: dict[str, Any]) -> bool:
    return _name(body["requester"]) in (token.owner, *token.renewers)


def _name(principal: Sequence[str]) -> r.Name:
    kind, name = principal
    return kind, name


def token_key(config: Config) -> bytes | None:
    """Return delegation.token.secret.key, or None if delegation tokens are disabled."""
    secret = config.delegation_token_secret_key
    return secret.reveal().encode() or None if secret is not None else None


def token_hmac(key: bytes, token_id: str) -> bytes:
    """Return the secret that a token's owner receives. In base64 it is the password of its SCRAM logins."""
    return hmac.digest(key, token_id.encode(), "sha512")
