"""Why a connection could not be secured; one line, meant for a person, without a secret in it."""

from __future__ import annotations


class SecurityFailed(Exception):
    """It cannot be, and will not be when it is tried again: a wrong password, an authority that is not trusted."""


class ConnectionBroken(Exception):
    """The peer left, or did not speak as it should; it may be trying to start."""
