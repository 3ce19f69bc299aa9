"""The blocking client: one connection to a Kafka broker, with TLS and SASL."""

from __future__ import annotations

from kproc.client.client import Client, reason
from kproc.client.error_texts import error_text, failure_text
from kproc.client.errors import (
    AnswerTimeout,
    ApiError,
    AuthenticationFailed,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    OperationUnavailable,
)
from kproc.client.own_operations import STATUS_KEY, STATUS_VERSION
from kproc.client.versions import NEWEST

__all__ = [
    "NEWEST",
    "STATUS_KEY",
    "STATUS_VERSION",
    "AnswerTimeout",
    "ApiError",
    "AuthenticationFailed",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "ConnectionLost",
    "OperationUnavailable",
    "error_text",
    "failure_text",
    "reason",
]
