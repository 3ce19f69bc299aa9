"""Principals and identities: who is at the other end of a connection, as Kafka's KafkaPrincipal."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
STRING_BYTES_MAX: Final = 32_767


class Principal(NamedTuple):
    """`type:name`, for example `User:alice`; `is_token`: it logged in by a delegation token (KIP-48)."""

    type: str
    name: str
    is_token: bool = False

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def complaint(self) -> str | None:
        """Why nobody can be it, or None: rules and answers name it by a string of the protocol."""
        try:
            size = len(str(self).encode())
        except UnicodeEncodeError:
            return "a name that is no text"
        return f"a name of {size} bytes" if size > STRING_BYTES_MAX else None

    def pack(self) -> bytes:
        """For a record between roles."""
        return b"%d\0%s\0%s" % (self.is_token, self.type.encode(), self.name.encode())

    @classmethod
    def unpack(cls, packed: bytes) -> Principal:
        """What `pack` packed."""
        is_token, kind, name = packed.split(b"\0", 2)
        return cls(kind.decode(), name.decode(), is_token == b"1")


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Who nobody has authenticated: every client of a PLAINTEXT listener."""


class Identity(NamedTuple):
    """What a Handler knows of a connection's client: its address as Java prints it (`/127.0.0.1`), and who it is."""

    host: str
    principal: Principal
