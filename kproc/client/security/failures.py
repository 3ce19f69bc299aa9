"""Why a connection could not be secured; one line, meant for a person, without a secret in it."""

from __future__ import annotations


class SecurityFailed(Exception):
    """A permanent failure, such as a wrong password or an untrusted authority. A retry would fail, too."""


class ConnectionBroken(Exception):
    """The peer left, or did not speak as it should; it may be trying to start."""
