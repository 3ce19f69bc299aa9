"""Errors of TLS and SASL. Their messages are one line for the user and contain no secrets."""

from __future__ import annotations


class SecurityFailed(Exception):
    """A permanent failure, such as a wrong password or an untrusted authority. A retry would fail, too."""


class ConnectionBroken(Exception):
    """The peer closed the connection or violated the protocol. It may be starting, so a retry can succeed."""
