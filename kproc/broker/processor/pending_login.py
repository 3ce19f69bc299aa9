"""PendingLogin: the barrier between a connection and the Handlers until its client has logged in.

While a connection has a PendingLogin, only its home Handler gets its requests. They are marked with FLAG_LOGIN, one at
a time, and not longer than sasl.server.max.receive.size. They are not routed and not timed, and the connection does not
migrate. The Handler performs the login (handler/logins.py) and ends it by AUTHENTICATED. When a session ends (KIP-368),
a timer has the client log in again, so that no request pays for a check.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class LoginLimits(NamedTuple):
    """Limits for a client that has not logged in: bytes of a request, and duration of the login."""

    bytes_max: int = 524_288  # Size of a request.
    ns_max: int = 0  # Duration of the login; 0 means no limit.


DEFAULT_LIMITS: Final = LoginLimits()


class PendingLogin:
    """The login of one connection as its Processor sees it."""

    __slots__ = ("has_session", "is_begun", "since_ns")

    def __init__(self, now_ns: int, *, has_session: bool = False) -> None:
        self.since_ns = now_ns
        # True if an earlier session has ended. No time limit runs until the client begins to log in again.
        self.has_session = has_session
        # True once the home has received a request of the login. The connection must keep that home.
        self.is_begun = False

    def start(self, now_ns: int) -> None:
        """Record that the home receives a request. After an ended session, the time limit starts now."""
        if not self.is_begun:
            self.is_begun = True
            if self.has_session:
                self.since_ns = now_ns

    def is_late(self, now_ns: int, longest_ns: int) -> bool:
        """Return True if the login has taken longer than `longest_ns`.

        After an ended session this time begins with `start`.
        """
        return (self.is_begun or not self.has_session) and now_ns - self.since_ns > longest_ns
