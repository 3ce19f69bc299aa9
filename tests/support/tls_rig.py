"""Clients over TLS for the Processor of processor_rig.py, by the standard library's TLS over a socket pair."""

from __future__ import annotations

import _ssl
import ctypes
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from kproc.broker.config import Config
from kproc.broker.processor.tls_connections import TlsConnections
from kproc.broker.processor.tls_listeners import TlsListeners
from kproc.broker.transport.envelope import FLAG_TLS
from tests.support.certificates import Certificates
from tests.support.processor_rig import Client, ProcessorRig


def listeners_of(certificates: Certificates, client_auth: str = "none", **settings: Any) -> TlsListeners:
    """One TLS listener, SSL; `settings` by Kafka's names with underscores."""
    given = certificates.broker_settings(client_auth=client_auth)
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    config = Config.build(given)
    return TlsListeners(config, ["SSL"], ticket_secret=bytes(32), make=TlsConnections)


def client_context(certificates: Certificates, *, pem: Path | None = None) -> ssl.SSLContext:
    """What a client needs to trust the broker, and to be trusted."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if pem is not None:
        context.load_cert_chain(pem)
    return context


class TlsClient:
    """A client of the rig that speaks TLS; never blocks."""

    def __init__(
        self,
        rig: ProcessorRig,
        context: ssl.SSLContext,
        session: Any = None,
        *,
        flags: int = FLAG_TLS,
        host: str = "127.0.0.1",
    ) -> None:
        self.raw: Client = rig.connect(flags=flags, host=host)
        self._rig = rig
        self.has_ended = False  # close_notify has come.
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost", session=session
        )

    def hello(self) -> bytes:
        """The first bytes of the handshake, not sent."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    def shake_hands(self) -> TlsClient:
        """The whole handshake."""
        for _ in range(10):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange()
                continue
            self._exchange()
            return self
        raise AssertionError("no end of the handshake")

    def encrypt(self, data: bytes) -> bytes:
        """The ciphertext of `data`, not sent."""
        view = memoryview(data)
        sealed = b""
        while view:
            view = view[self.tls.write(view) :]
            sealed += self._outgoing.read()
        return sealed

    def new_keys(self, times: int) -> bytes:
        """So many KeyUpdates that each ask for one in return, not sent. The standard library cannot make them."""
        openssl = ctypes.CDLL(_ssl.__file__)
        # The SSL of OpenSSL stands behind the object's head and one word, in CPython 3.11 to 3.14.
        own = self.tls._sslobj  # type: ignore[attr-defined]
        address = ctypes.c_void_p.from_address(id(own) + object.__basicsize__ + 8)
        sealed = b""
        for _ in range(times):
            assert openssl.SSL_key_update(address, 1) == 1
            assert openssl.SSL_do_handshake(address) == 1
            sealed += self._outgoing.read()
        return sealed

    def send(self, data: bytes) -> None:
        """Send; the Processor reads it as it can."""
        self.raw.send_through(self.encrypt(data))

    def _exchange(self) -> None:
        if self._outgoing.pending:
            self.raw.send_through(self._outgoing.read())
        self._rig.settle()
        self._incoming.write(self.raw.received())

    def received(self) -> bytes:
        """All plaintext that has arrived. Raises ssl.SSLError for an alert."""
        self._incoming.write(self.raw.received())
        data = b""
        with suppress(ssl.SSLWantReadError):
            while part := self.tls.read(1 << 16):
                data += part
            self.has_ended = True
        return data

    def receive_through(self, count: int) -> bytes:
        """That many bytes, as the Processor sends them."""
        data = b""
        for _ in range(100_000):
            data += self.received()
            if len(data) >= count:
                return data
            self._rig.step()
        raise AssertionError(f"{len(data)} of {count} bytes came")
