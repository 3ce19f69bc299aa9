"""The client's side of SCRAM, written from RFC 5802 for tests: what is sent can be changed on its way."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One login. `extensions` stand behind the first message, for instance `,tokenauth=true`."""

    def __init__(
        self, digest: str, name: str, password: str, *, nonce: str = "clients-nonce", extensions: str = ""
    ) -> None:
        self._digest = digest
        self._password = password
        self._nonce = nonce
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}{extensions}"
        self._signature = b""

    def first(self, *, authorization: str = "") -> bytes:
        """The first message."""
        return f"n,{authorization},{self._bare}".encode()

    def final(self, server_first: bytes, *, nonce: str | None = None, channel: str = "biws") -> bytes:
        """The final message; `nonce` replaces the one that the server has sent."""
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac(
            self._digest, self._password.encode(), base64.b64decode(parts["s"]), int(parts["i"])
        )
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        unproved = f"c={channel},r={parts['r'] if nonce is None else nonce}"
        signed = f"{self._bare},{server_first.decode()},{unproved}".encode()
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = hmac.digest(stored_key, signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._digest), signed, self._digest)
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def is_server(self, server_final: bytes) -> bool:
        """Return True if the server has proved that it knows the user."""
        return server_final == b"v=" + base64.b64encode(self._signature)
