"""Session: as whom a connection is authenticated, how, and until when."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kproc.broker.security.principal import ANONYMOUS, Principal

_HEAD: Final = struct.Struct("=QB")  # When it ends, bytes of the mechanism's name that follow.
ENDS_NS_MAX: Final = (1 << 63) - 1
"""The latest end that can be told between roles, in 292 years: settings and tokens may name later ones."""


class Session(NamedTuple):
    """`ends_ns` is by the monotonic clock that all processes of a host share; 0: never."""

    principal: Principal
    mechanism: str = ""  # Of SASL.
    ends_ns: int = 0

    def pack(self) -> bytes:
        """For a record between roles."""
        mechanism = self.mechanism.encode()
        return _HEAD.pack(self.ends_ns, len(mechanism)) + mechanism + self.principal.pack()

    @classmethod
    def unpack(cls, packed: bytes) -> Session:
        """What `pack` packed."""
        ends_ns, length = _HEAD.unpack_from(packed)
        principal_at = _HEAD.size + length
        mechanism = packed[_HEAD.size : principal_at].decode()
        return cls(Principal.unpack(packed[principal_at:]), mechanism, ends_ns)


NO_SESSION: Final = Session(ANONYMOUS)
"""Of a connection that nobody has authenticated."""
