"""Validation of signed tokens (JWT, RFC 7519) as in BrokerJwtValidator: signature, times, issuer, audience, name."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from kproc.broker.security.sasl.bearer import BadToken, Claims
from kproc.broker.security.sasl.key_set import KeySet

# Only algorithms with public keys. With HMAC the published key would be the secret, so anybody could sign a token.
_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448",
)  # fmt: skip


class ExpectedClaims(NamedTuple):
    """The claims that a signed token must have, the allowed clock skew, and the claim that has the user's name."""

    audience: Collection[str]  # A token must be for one of these audiences; empty: for any.
    issuer: str | None  # None: any issuer.
    skew_s: int
    name_claim: str


class SignedValidator:
    """Validates signed tokens (JWT) by the keys of a key set, and checks their claims."""

    def __init__(self, keys: KeySet, expected: ExpectedClaims, now_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._expected = expected
        self._now_ms = now_ms

    def __call__(self, token: str) -> Claims:
        header = _header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        # A token chooses its algorithm itself. With "none", or with HMAC and the public key as its secret, anybody
        # could sign it.
        if algorithm not in _ALGORITHMS:
            raise BadToken("a token whose algorithm (alg) is not one with a public key, such as RS256")
        key = self._keys.find(key_id if isinstance(key_id, str) else None)
        if key is None:
            raise BadToken("a token signed with a key that is not in the JSON Web Key Set")
        return self._judge(_claims(token, key, algorithm))

    def _judge(self, claims: Mapping[str, Any]) -> Claims:
        expected, now_s = self._expected, self._now_ms() / 1000
        expires_s, issued_s, begins_s = _time(claims, "exp"), _time(claims, "iat"), _time(claims, "nbf")
        # Reject a token without an expiry: a stolen one would be valid for ever. As in Kafka, `iat` is needed, too.
        if expires_s is None or issued_s is None:
            raise BadToken("a token that does not say when it was issued and when it expires")
        # Both comparisons allow the configured skew, because the clocks of issuer and broker differ.
        if now_s - expected.skew_s >= expires_s:
            raise BadToken("an expired token")
        if begins_s is not None and now_s + expected.skew_s < begins_s:
            raise BadToken("a token that is not valid yet (nbf)")
        if expected.issuer is not None and claims.get("iss") != expected.issuer:
            raise BadToken("a token whose issuer (iss) is not sasl.oauthbearer.expected.issuer")
        audience = claims.get("aud")
        # RFC 7519: the audience is one text or a list of texts.
        named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        if expected.audience and not set(expected.audience).intersection(
            each for each in named if isinstance(each, str)
        ):
            raise BadToken("a token whose audience (aud) is not in sasl.oauthbearer.expected.audience")
        name = claims.get(expected.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise BadToken(f"a token without the claim {expected.name_claim}")
        return Claims(name, int(expires_s * 1000))


def _header(token: str) -> dict[str, Any]:
    first, _, rest = token.partition(".")
    try:
        header = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise BadToken("a token whose header is not JSON") from error
    if not isinstance(header, dict) or rest.count(".") != 1:
        raise BadToken("a token that is not header.claims.signature, or whose header is not a JSON object")
    return header


def _claims(token: str, key: Any, algorithm: str) -> Mapping[str, Any]:
    """Verify the signature and return the claims. Raises BadToken."""
    from joserfc import jwt
    from joserfc.errors import JoseError

    try:
        # Let the library accept only the algorithm that was checked, not every algorithm that the key permits.
        claims: Mapping[str, Any] = jwt.decode(token, key, algorithms=[algorithm]).claims
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise BadToken(f"a token whose signature is wrong ({type(error).__name__})") from error
    return claims


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # NaN and infinity compare as neither early nor late, so they must not get into the checks of times.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise BadToken(f"a token whose claim {name} is not a time in seconds")
    return float(value)
