"""TLS handshakes between two contexts in memory."""

from __future__ import annotations

import _ssl
import ssl
from contextlib import suppress
from typing import Any

import pytest

needs_openssl_symbols = pytest.mark.skipif(
    not hasattr(_ssl, "__file__"), reason="OpenSSL is a part of this Python, without its symbols"
)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, session: Any = None) -> ssl.SSLObject:
    """The client's end after a handshake and the ticket that follows it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    for _ in range(3):
        for end in (asking, serving):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    with suppress(ssl.SSLWantReadError):
        asking.read(1)
    return asking
