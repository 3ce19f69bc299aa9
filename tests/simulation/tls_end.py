"""TlsEnd: a client's end of a TLS connection over a simulated socket, with the interface of the kernel's Socket.

Every byte that comes is looked at twice: no record may be in it as it is, and OpenSSL must find it sound. What a client
does wrong on purpose (`damage`, the methods that send ciphertext themselves) is done here, too.
"""

from __future__ import annotations

import contextlib
import random
import re
import ssl
from typing import Any, Final

from tests.simulation.kernel import Socket
from tests.simulation.tls_doubles import NAME, client_context
from tests.simulation.world import World

Data = bytes  # Inside the class that name is the socket's.
_RECORD_BYTES: Final = 16 * 1024
PADDING: Final = b"not for other people's eyes "
# A record's value (history.py: value_of), or what makes large ones large (tls_workload.py).
_PLAIN: Final = re.compile(rb"[0-9a-f]{8}-\d+\|[-\w.]+\|\d+\|\d|" + re.escape(PADDING[:12]))
_OVERLAP: Final = 80  # Of two looks; longer than any value.
_HEAD_BYTES: Final = 5


class TlsEnd:
    """One connection. Methods that send raise what a socket does."""

    room = 1 << 60  # Of what waits to be read: OpenSSL takes it from the socket as it comes.

    def __init__(
        self,
        world: World,
        name: str,
        raw: Socket,
        *,
        rng: random.Random,
        version: ssl.TLSVersion,
        session: Any,
    ) -> None:
        self.raw = raw
        self.version = version
        self.life = world.life
        self.is_open = False
        self.has_notified = False  # close_notify has come.
        self.is_damaged = False  # We have sent what is not sound.
        self.must_resume = False
        self._world = world
        self._name = name
        self._rng = rng
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context(version).wrap_bio(
            self._incoming, self._outgoing, server_hostname=NAME, session=session
        )
        self._plain = bytearray()
        self._unsent = b""
        self._last = b""

    # -- the interface of Socket -------------------------------------------------------------------------------

    @property
    def watchers(self) -> Any:
        return self.raw.watchers

    @property
    def peer(self) -> Socket | None:
        return self.raw.peer

    @property
    def bytes(self) -> bytearray:
        """What has come and was not taken yet, decrypted."""
        self._pump()
        return self._plain

    @property
    def has_ended(self) -> bool:
        return self.has_notified or (self.raw.has_ended and not self.raw.bytes)

    @property
    def is_reset(self) -> bool:
        return self.raw.is_reset and not self.raw.bytes

    @property
    def has_unread_request(self) -> bool:
        """True if the broker has shut the connection down before it read all bytes.

        A real socket is reset by its last close. A paused Acceptor may keep its copy of the descriptor open meanwhile.
        """
        peer = self.raw.peer
        return peer is not None and peer.is_shut and bool(peer.bytes)

    def send(self, data: Any) -> int:
        """Encrypt the next bytes once everything before them has left."""
        if not self.flush():
            raise BlockingIOError
        part = memoryview(data)[:_RECORD_BYTES]
        self._unsent = self.encrypt(part)
        self.flush()
        return len(part)

    def on_last_close(self) -> None:
        """Close, with close_notify or without it."""
        if self.is_open and self._rng.random() < 0.5:
            self.say_goodbye()
        self.raw.on_last_close()

    # -- the handshake -----------------------------------------------------------------------------------------

    def shake(self) -> bool:
        """Go on with the handshake; whether it is over. Raises OSError if the connection has ended."""
        if not self._unsent:
            self.take()
            try:
                self._tls.do_handshake()
                self.is_open = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as problem:
                self._found_unsound(problem)
                self._unsent += self._outgoing.read()  # The alert.
                self.flush()
                raise ConnectionError(f"the handshake failed: {problem.reason}") from problem
            self._unsent += self._outgoing.read()
        self.flush()
        if not self.is_open and (self.has_ended or self.is_reset):
            raise ConnectionError("the connection ended in the handshake")
        return self.is_open

    @property
    def is_resumed(self) -> bool:
        return bool(self._tls.session_reused)

    @property
    def certificate(self) -> Data | None:
        """The broker's."""
        return self._tls.getpeercert(binary_form=True)

    def ticket(self) -> Any:
        """What another connection can resume; None if none has come."""
        session = self._tls.session if self.is_open else None
        return session if session is not None and session.has_ticket else None

    # -- ciphertext --------------------------------------------------------------------------------------------

    def hello(self) -> Data:
        """The first bytes of the handshake, not sent."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    def encrypt(self, data: Any) -> Data:
        """The ciphertext of `data`, not sent."""
        self._tls.write(data)
        return self._outgoing.read()

    def damaged(self, data: Data, *, first: int = _HEAD_BYTES) -> Data:
        """The same with another byte somewhere."""
        self.is_damaged = True
        at = self._rng.randrange(first, len(data))
        return data[:at] + bytes([data[at] ^ self._rng.randrange(1, 256)]) + data[at + 1 :]

    def say_goodbye(self) -> None:
        """Send close_notify if there is room."""
        with contextlib.suppress(ssl.SSLError):  # The broker's own has not come; nobody waits for it.
            self._tls.unwrap()
        self._unsent += self._outgoing.read()
        with contextlib.suppress(OSError):  # It is gone already.
            self.flush()

    def flush(self) -> bool:
        """Return True if everything has left."""
        while self._unsent:
            try:
                sent = self.raw.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        return True

    # -- what comes --------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        with contextlib.suppress(OSError):  # What came before the end is read all the same.
            self.flush()
        if not self.take():
            return
        try:
            while True:
                part = self._tls.read(1 << 16)
                if not part:
                    self.has_notified = True
                    return
                self._plain += part
        except ssl.SSLWantReadError:
            self._unsent += self._outgoing.read()
        except ssl.SSLZeroReturnError:
            self.has_notified = True
        except ssl.SSLError as problem:
            self._found_unsound(problem)
            self.raw.has_ended = True
            self.raw.bytes.clear()

    def take(self) -> bool:
        """Take what the socket has; whether that was anything."""
        raw = self.raw
        if not raw.bytes:
            return False
        came = bytes(raw.bytes)
        raw.bytes.clear()
        if raw.peer is not None:
            raw.peer.notify()
        seen = self._last + came
        if _PLAIN.search(seen):
            self._world.violate(f"{self._name}: a record left unencrypted")
        self._last = seen[-_OVERLAP:]
        self._incoming.write(came)
        return True

    def _found_unsound(self, problem: ssl.SSLError) -> None:
        self._world.tell(self._name, "TLS:", problem)
        if not self.is_damaged:
            self._world.violate(f"{self._name}: what came is not sound TLS: {problem.reason}")
