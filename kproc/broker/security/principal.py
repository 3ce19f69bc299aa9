"""Principals and identities of clients, as in Kafka's KafkaPrincipal."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
STRING_BYTES_MAX: Final = 32_767


class Principal(NamedTuple):
    """`type:name`, for example `User:alice`. `is_token`: the client logged in by a delegation token (KIP-48)."""

    type: str
    name: str
    is_token: bool = False

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def problem(self) -> str | None:
        """Return an error if the name does not fit into a string of the protocol, as ACLs and responses require."""
        try:
            size = len(str(self).encode())
        except UnicodeEncodeError:
            return "a name that is not text"
        return f"a name of {size} bytes" if size > STRING_BYTES_MAX else None

    def pack(self) -> bytes:
        """Encode the principal for the record that sends it from one role to another."""
        return b"%d\0%s\0%s" % (self.is_token, self.type.encode(), self.name.encode())

    @classmethod
    def unpack(cls, packed: bytes) -> Principal:
        """Decode a principal that `pack` has encoded."""
        is_token, kind, name = packed.split(b"\0", 2)
        return cls(kind.decode(), name.decode(), is_token == b"1")


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of clients without authentication, such as all clients of a PLAINTEXT listener."""


class Identity(NamedTuple):
    """The address of a connection's client, as Java prints it (`/127.0.0.1`), and its principal."""

    host: str
    principal: Principal
