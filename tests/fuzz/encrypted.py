"""Fuzz over a TLS listener: sockets that behave as the attack's others do, and the broker's settings for them."""

from __future__ import annotations

import ssl
from typing import Any

from tests.support.certificates import Certificates

LISTENER = "SSL"


def settings_of(certificates: Certificates) -> dict[str, Any]:
    """A TLS listener beside the one that the checks use."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,{LISTENER}://127.0.0.1:0",
        "ssl.keystore.location": certificates.server,
    }


def context_of(certificates: Certificates) -> ssl.SSLContext:
    """What makes such sockets."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.check_hostname = False
    context.sslsocket_class = EncryptedSocket
    return context


class EncryptedSocket(ssl.SSLSocket):
    """A socket that says BlockingIOError when it would block, and keeps nothing inside that no poll tells of."""

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        parts = []
        try:
            while part := super().recv(buflen, flags):
                parts.append(part)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not parts:
                raise BlockingIOError from None
        except OSError:
            if not parts:
                raise
        return b"".join(parts)
