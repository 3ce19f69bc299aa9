"""Errors of the client. Their messages are one line for the user and contain no secrets.

Client raises ClientError and its subclasses. The modules for TLS and SASL raise SecurityFailed and ConnectionBroken,
which Client converts.
"""

from __future__ import annotations


class ClientError(Exception):
    """A failed exchange with the broker. The message is one line for the user."""


class ConnectionFailed(ClientError):
    """The connection to the broker could not be opened."""


class AuthenticationFailed(ClientError):
    """The broker rejected the login or the client's certificate, or its listener requires TLS.

    Also raised if the client does not trust the broker's certificate. Do not retry.
    """


class ConnectionLost(ClientError):
    """The broker closed the connection, or sent bytes that are not a valid response."""


class AnswerTimeout(ClientError):
    """No complete response arrived within the client's timeout."""


class ApiError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class OperationUnavailable(ClientError):
    """The broker cannot run one of kproc's own operations now. The same request can succeed later."""


class SecurityFailed(Exception):
    """A permanent failure of TLS or SASL, such as a wrong password or an untrusted authority. Do not retry."""


class ConnectionBroken(Exception):
    """The peer closed the connection or violated the protocol during TLS or SASL.

    If the peer is starting, a retry can succeed.
    """
