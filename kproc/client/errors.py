"""Errors of the client. Their messages are one line for the user and contain no secrets.

Client raises ClientError and its subclasses. TLS and SASL raise the last two, which Client converts.
"""

from __future__ import annotations


class ClientError(Exception):
    """A failed exchange with the broker. The message is one line for the user."""


class ConnectionFailed(ClientError):
    """No connection could be made."""


class AuthenticationFailed(ClientError):
    """The broker rejected our login or certificate, or we do not trust its certificate. A retry would fail, too."""


class ConnectionLost(ClientError):
    """The broker closed the connection, or sent bytes that are not a valid response."""


class AnswerTimeout(ClientError):
    """No complete response arrived in time."""


class ApiError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SecurityFailed(Exception):
    """A permanent failure, such as a wrong password or an untrusted authority. A retry would fail, too."""


class ConnectionBroken(Exception):
    """The peer closed the connection or violated the protocol. It may be starting, so a retry can succeed."""
