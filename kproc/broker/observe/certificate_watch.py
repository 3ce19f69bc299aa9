"""CertificateWatch: warns before the certificates of the TLS listeners end. Runs in the controller.

The supervisor reports the certificates in use at the start, after SIGHUP and after changed settings (tls_check.py). A
file that was replaced is not in use until then, so that a renewal without a reload is noticed, too.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from logging import ERROR, WARNING, Logger
from typing import Any, Final

from kproc.common.clock import NS_PER_S, Clock

_DAY_MS: Final = 86_400_000
_WARN_MS: Final = 30 * _DAY_MS
_REPEAT_NS: Final = 86_400 * NS_PER_S
_WAY_OUT: Final = "renew it and send SIGHUP"


class CertificateWatch:
    """The certificates of the TLS listeners, with the times at which they, or issuers in their chains, expire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._certificates: Mapping[str, dict[str, Any]] = {}
        self._next_log_ns = 0

    def use(self, certificates: Mapping[str, dict[str, Any]]) -> None:
        """Watch these certificates: {"subject", "expires_ms"} by listener."""
        if certificates != self._certificates:
            self._certificates = certificates
            self._next_log_ns = 0

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the section of `kproc status --json`: subject and end in ms since 1970, by listener."""
        return dict(self._certificates)

    def problems(self) -> list[str]:
        """Return a line for each certificate that has ended or ends within 30 days."""
        now_ms = self._clock.wall_ms()
        return [
            _problem(listener, each, now_ms)
            for listener, each in self._certificates.items()
            if each["expires_ms"] - now_ms < _WARN_MS
        ]

    def log_problems(self, logger: Logger, now_ns: int) -> None:
        """Log the problems once a day, and at once after a change of the certificates."""
        if now_ns < self._next_log_ns:
            return
        self._next_log_ns = now_ns + _REPEAT_NS
        now_ms = self._clock.wall_ms()
        for listener, each in self._certificates.items():
            left_ms = each["expires_ms"] - now_ms
            if left_ms < _WARN_MS:
                logger.log(WARNING if left_ms > 0 else ERROR, "%s", _problem(listener, each, now_ms))


def _problem(listener: str, certificate: Mapping[str, Any], now_ms: int) -> str:
    left_ms = certificate["expires_ms"] - now_ms
    ends = datetime.datetime.fromtimestamp(certificate["expires_ms"] / 1000, datetime.UTC)
    name = f"the certificate chain of listener {listener} ({certificate['subject']})"
    if left_ms <= 0:
        return f"{name} ended at {ends:%Y-%m-%d %H:%M} UTC, and clients reject it: {_WAY_OUT}"
    days = left_ms // _DAY_MS
    left = "less than a day" if days < 1 else "1 day" if days == 1 else f"{days} days"
    return f"{name} ends in {left}, at {ends:%Y-%m-%d %H:%M} UTC: {_WAY_OUT}"
