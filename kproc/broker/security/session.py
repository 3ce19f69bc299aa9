"""Session: the principal of a connection, its SASL mechanism, and the end of its authentication."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kproc.broker.security.principal import ANONYMOUS, Principal

_HEAD: Final = struct.Struct("=QB")  # End of the session, length of the mechanism's name behind it.
ENDS_NS_MAX: Final = (1 << 63) - 1
"""The latest end of a session in a record between roles, in ns: 292 years after boot. Later ends become this one."""


class Session(NamedTuple):
    """The authentication of a connection. `ends_ns` is by the monotonic clock, which all processes share. 0: never."""

    principal: Principal
    mechanism: str = ""  # The SASL mechanism.
    ends_ns: int = 0

    def pack(self) -> bytes:
        """Encode the session for the record that sends it from one role to another."""
        mechanism = self.mechanism.encode()
        return _HEAD.pack(self.ends_ns, len(mechanism)) + mechanism + self.principal.pack()

    @classmethod
    def unpack(cls, packed: bytes) -> Session:
        """Decode a session that `pack` has encoded."""
        ends_ns, length = _HEAD.unpack_from(packed)
        principal_at = _HEAD.size + length
        mechanism = packed[_HEAD.size : principal_at].decode()
        return cls(Principal.unpack(packed[principal_at:]), mechanism, ends_ns)


NO_SESSION: Final = Session(ANONYMOUS)
"""The session of a connection without authentication."""
