"""Gate: what stands between a connection and the Handlers until its client has logged in.

While a connection has one, only its home gets its requests, marked with FLAG_GATED, one at a time and not longer than
sasl.server.max.receive.size; they are not routed, not timed, and the connection migrates nowhere. The Handler leads the
login (handler/logins.py) and opens the gate by AUTHENTICATED. When a session ends the gate closes again: a timer does
that, no request pays for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class LoginLimits(NamedTuple):
    """What a client that logs in may take."""

    bytes_max: int = 524_288  # Of a request.
    ns_max: int = 0  # 0: no limit.


DEFAULT_LIMITS: Final = LoginLimits()


class Gate:
    """The login of one connection as its Processor sees it."""

    __slots__ = ("has_session", "is_begun", "since_ns")

    def __init__(self, now_ns: int, *, has_session: bool = False) -> None:
        self.since_ns = now_ns
        self.has_session = has_session  # One that is over: its client may take its time to log in again.
        self.is_begun = False  # The home has got something of it: it cannot have another one.

    def begin(self, now_ns: int) -> None:
        """Something is passed on."""
        if not self.is_begun:
            self.is_begun = True
            if self.has_session:
                self.since_ns = now_ns

    def is_late(self, now_ns: int, longest_ns: int) -> bool:
        """Whether the login takes too long."""
        return (self.is_begun or not self.has_session) and now_ns - self.since_ns > longest_ns
