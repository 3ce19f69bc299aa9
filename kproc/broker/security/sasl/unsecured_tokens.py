"""Tokens without a signature (alg "none"), for development: anybody can write one. Kafka's unsecured validator."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from kproc.broker.config.sasl_settings import SKEW_OPTION, UNSECURED_PREFIX
from kproc.broker.security.sasl.bearer import INSUFFICIENT, BadToken, Claims


class UnsecuredValidator:
    """Validator of unsigned tokens. It checks only their times and scope. `options` are those of the JAAS line."""

    def __init__(self, options: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        self._name_claim = options.get(f"{UNSECURED_PREFIX}PrincipalClaimName", "sub")
        self._scope_claim = options.get(f"{UNSECURED_PREFIX}ScopeClaimName", "scope")
        self._scope = options.get(f"{UNSECURED_PREFIX}RequiredScope", "").split()
        self._skew_ms = int(options.get(SKEW_OPTION, 0))
        self._now_ms = now_ms

    def __call__(self, token: str) -> Claims:
        parts = token.split(".")
        # RFC 7515: header, claims and an empty signature, each in base64 without padding.
        if len(parts) != 3 or parts[2]:
            raise BadToken("a token that is not `header.claims.` with an empty signature")
        # Reject a signed token, because this validator verifies no signature.
        if _section(parts[0]).get("alg") != "none":
            raise BadToken("a token whose algorithm is not none")
        claims = _section(parts[1])
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip():
            raise BadToken(f"a token without the claim {self._name_claim}")
        return Claims(name, self._expiry(claims, scope_of(claims.get(self._scope_claim))))

    def _expiry(self, claims: Mapping[str, Any], scope: list[str]) -> int:
        times = {key: claims[key] for key in ("exp", "iat") if claims.get(key) is not None}
        if "exp" not in times or not all(_is_number(value) for value in times.values()):
            raise BadToken("a token without exp, or whose exp or iat is not a number")
        now_ms, expires_ms = self._now_ms(), int(times["exp"] * 1000)
        # RFC 7519: a token is valid before `exp`, with a tolerance for clocks that differ.
        if now_ms - self._skew_ms >= expires_ms:
            raise BadToken("an expired token")
        if "iat" in times and (now_ms + self._skew_ms < times["iat"] * 1000 or times["exp"] <= times["iat"]):
            raise BadToken("a token whose iat is in the future, or not before its exp")
        if missing := [each for each in self._scope if each not in scope]:
            raise BadToken("a token without the required scope", INSUFFICIENT, " ".join(missing))
        return expires_ms


def scope_of(value: object) -> list[str]:
    """Return a scope claim, which is a list or one text, as a list."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _is_number(value: object) -> bool:
    # Exclude NaN and infinity, because Python reads them, although they are no JSON.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _section(text: str) -> dict[str, Any]:
    """Decode a header or a body, which must be a JSON object. Raises BadToken."""
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise BadToken("a token whose header or claims are not JSON") from error
    if not isinstance(found, dict):
        raise BadToken("a token whose header or claims are not a JSON object")
    return found
