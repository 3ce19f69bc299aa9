"""TlsTransport: a connection over TLS, with the interface of PlaintextTransport.

    socket -> scratch -> incoming BIO -> SSLObject -> the ring's reservation, or an arena block
    answer, file range -> SSLObject -> outgoing BIO -> socket

Three details stay inside this class, so that the Processor need not know about them:

- Until the handshake is over `recv_into` has no bytes for the caller: no frame can come before it (handshakes.py).
- Plaintext that the caller had no room for never makes the socket readable. Such a connection is in
  `TlsShare.unread`, which the Processor reads again in its next pass.
- Ciphertext that the socket did not accept is kept, in order. One byte too few is then reported as sent (`_ahead`). The
  caller retries that byte when the socket is writable, and this flushes the rest.

A large answer is encrypted in pieces, of which all connections together get `_PASS_BYTES` in a pass of the Processor.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING, Final, NoReturn

from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.transport_layer import FILE_TOO_SHORT
from kproc.broker.security.tls import TlsContext

if TYPE_CHECKING:
    from kproc.broker.processor.handshakes import Handshakes

logger = logging.getLogger(__name__)

_RECORD_BYTES: Final = 16 * 1024  # Most plaintext bytes in one TLS record.
_RECORD_BYTES_MAX: Final = 5 + (1 << 14) + 2048  # Longest TLS record with its header (RFC 5246, 6.2.3).
_SCRATCH_BYTES: Final = 32 * 1024
_FILE_BYTES: Final = 64 * 1024
_READ_BYTES_MAX: Final = 256 * 1024  # Limit for one connection in one pass.
_PASS_BYTES: Final = 1 << 20  # Limit of encryption in one pass, which takes about 1 ms.
_SMALL_ANSWERS_BYTES: Final = 256 * 1024  # Additional limit in a pass for answers of one record.
_UNSENT_REPLIES_MAX: Final = 64 * 1024
_HANDSHAKE, _MAJOR_VERSION = 0x16, 0x03
_HEAD_BYTES: Final = 5
# Fatal alerts of TLS 1.2 for bytes that OpenSSL never gets. Kafka sends the first one to a client that speaks no TLS.
_INTERNAL_ERROR: Final = b"\x15\3\3\0\2\2\x50"
_RECORD_OVERFLOW: Final = b"\x15\3\3\0\2\2\x16"


class TlsShare:
    """The buffers and the budget that the TLS connections of one Processor share."""

    __slots__ = ("_left", "file_bytes", "handshakes", "is_spent", "scratch", "state", "unread")

    def __init__(self, state: ProcessorState, handshakes: Handshakes) -> None:
        self.state = state
        self.handshakes = handshakes
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.file_bytes = memoryview(bytearray(_FILE_BYTES))
        self.unread: set[int] = set()  # Descriptors of connections with buffered plaintext or ciphertext.
        self._left = _PASS_BYTES
        # True if an answer had to wait in this pass, so that the next pass must call `renew`.
        self.is_spent = False

    def has_more(self, fd: int) -> None:
        """Have a connection read in the next pass, although its socket may not be readable."""
        self.unread.add(fd)
        self.state.press()

    def may_encrypt(self, count: int) -> bool:
        """Return True if `count` bytes may be encrypted in this pass. Answers of one record have an extra budget.

        Otherwise see to it that the connections with unsent bytes continue in the next pass.
        """
        if self._left > (-_SMALL_ANSWERS_BYTES if count <= _RECORD_BYTES else 0):
            return True
        self.is_spent = True
        self.state.press()
        return False

    def renew(self) -> None:
        """Reset the budget, because another pass has begun."""
        self._left = _PASS_BYTES
        self.is_spent = False

    def spent(self, count: int) -> None:
        """Subtract `count` bytes, which were encrypted, from the budget of this pass."""
        self._left -= count


class HandshakeFailed(OSError):
    """The handshake failed; handshakes.py has logged and counted it."""


class TlsTransport:
    """The TLS socket of one connection.

    It cannot migrate to another Processor, because an SSLObject cannot be exported.
    """

    __slots__ = (
        "_ahead", "_awaits_flight", "_context", "_has_ended", "_hello", "_incoming", "_is_open", "_outgoing",
        "_share", "_tls", "_unsent", "fd", "sock",
    )  # fmt: skip

    can_move: Final = False

    def __init__(self, sock: socket.socket, context: TlsContext, share: TlsShare) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self._context = context
        self._share = share
        self._is_open = False
        self._awaits_flight = False  # True after we answered in the handshake, until the client sends again.
        self._has_ended = False  # True after the client's close_notify.
        self._hello = b""  # Bytes that came before there was an SSLObject.
        self._tls: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._unsent: bytes | memoryview = b""
        self._ahead = 0  # 1 if the caller's next byte is already encrypted (`_all_but_one`).

    # -- reading -----------------------------------------------------------------------------------------------

    def recv_into(self, into: memoryview) -> int:
        """Decrypt into a buffer; return how many bytes came, 0 at the end of the client's stream.

        Raises BlockingIOError if there is nothing yet, OSError if the connection fails.
        """
        # The two loops are inline, because every read of a TLS connection would pay for a call.
        tls = self._tls
        if tls is None:
            self._receive_hello()
            raise BlockingIOError
        if not self._is_open and not self._shake(tls):
            raise BlockingIOError
        if self._has_ended:
            return 0
        incoming = self._incoming
        scratch = self._share.scratch
        room, count, came = len(into), 0, 0
        try:
            while True:
                if not (incoming.pending or tls.pending()):
                    came = self.sock.recv_into(scratch)
                    # The client ended without close_notify. If bytes came before the end, the next call returns 0.
                    if not came:
                        return count
                    incoming.write(scratch[:came])
                while count < room and (incoming.pending or tls.pending()):
                    # OpenSSL returns at most one record of plaintext a call, so read until it asks for more ciphertext.
                    got: int = tls.read(room - count, into[count:])  # type: ignore[assignment]
                    # read() returns 0 only after close_notify, TLS's own end of a stream. An end without it can be an
                    # attacker's cut.
                    if not got:
                        return self._handle_close_notify(count)
                    count += got
                # Do not read again if the buffer was not filled, because the socket is then empty, and a read would
                # only cost a system call.
                if came < _SCRATCH_BYTES or count >= min(room, _READ_BYTES_MAX):
                    break
        # SSLWantReadError: OpenSSL has only a part of a record. BlockingIOError: the socket is empty. In both cases the
        # client has to send more before there is plaintext.
        except (ssl.SSLWantReadError, BlockingIOError):
            if not count:
                self._share.unread.discard(self.fd)
                self._reply()
                raise BlockingIOError from None
        except ssl.SSLZeroReturnError:
            # CPython raises this for close_notify, in place of returning 0, after this side has sent its own.
            return self._handle_close_notify(count)
        self._reply()
        if incoming.pending or tls.pending():
            self._share.has_more(self.fd)
        else:
            self._share.unread.discard(self.fd)
        return count

    def _handle_close_notify(self, count: int) -> int:
        """Record that the client has sent close_notify. Return `count`, the number of bytes that came before it.

        If there are such bytes, the caller handles them first and reads the end of the stream in the next pass.
        """
        self._has_ended = True
        if count:
            self._share.has_more(self.fd)
        return count

    def _reply(self) -> None:
        """Send the replies that OpenSSL makes by itself: to a KeyUpdate, or an alert to a renegotiation.

        Raises OSError if the client lets too many of them pile up.
        """
        outgoing = self._outgoing
        # Bound only the replies, because `_unsent` may be part of an answer, which the client may read slowly.
        if outgoing.pending and not self._flush(0) and outgoing.pending > _UNSENT_REPLIES_MAX:
            raise OSError(
                "the client does not read the replies to its TLS messages (KeyUpdate, renegotiation)"
            )

    # -- the handshake -----------------------------------------------------------------------------------------

    def _receive_hello(self) -> None:
        """Receive the client's first record. When it is complete, queue the connection for its turn.

        Until its turn there is no SSLObject, so that a client that sends half a record costs only these bytes. Raises
        OSError if the client has closed the connection or its bytes are not TLS.
        """
        scratch = self._share.scratch
        came = self.sock.recv_into(scratch)
        if not came:
            raise ConnectionError("the client closed the connection before its TLS handshake")
        self._hello = hello = self._hello + bytes(scratch[:came])
        self._share.handshakes.received_hello(self, len(hello))
        # RFC 8446, section 5.1: a record begins with its type and the major version. Check both as soon as they have
        # come, because a client without TLS may wait for an answer and send nothing more.
        if hello[0] != _HANDSHAKE or (len(hello) > 1 and hello[1] != _MAJOR_VERSION):
            self._send_alert(_INTERNAL_ERROR)
            self._refuse("its bytes are not TLS: is the client set to security.protocol=SSL or SASL_SSL?")
        if len(hello) < _HEAD_BYTES:
            return
        length = _HEAD_BYTES + int.from_bytes(hello[3:_HEAD_BYTES], "big")
        if length > _RECORD_BYTES_MAX or len(hello) > _SCRATCH_BYTES:
            self._send_alert(_RECORD_OVERFLOW)
            self._refuse("its first record is longer than TLS allows")
        if len(hello) >= length:
            self._share.handshakes.wait_for_turn(self)

    def has_left(self) -> bool:
        """Return True if the client has closed the connection or its sending half. Its handshake cannot finish then."""
        poller = select.poll()
        # POLLRDHUP reports a client that has closed its sending side, even while bytes before the close are unread.
        # recv() would show the end only behind them.
        poller.register(self.fd, select.POLLRDHUP)
        return bool(poller.poll(0))

    def start_handshake(self) -> None:
        """Answer the client's first record, which is the expensive step. Raises OSError."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls = self._context.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._hello)
        self._hello = b""
        self._step(tls)

    def _shake(self, tls: ssl.SSLObject) -> bool:
        """Continue the handshake with the bytes that have arrived. Return True if it is over.

        Raises OSError if it has failed.
        """
        came = self.sock.recv_into(self._share.scratch)
        if not came:
            raise ConnectionError("the client closed the connection during its TLS handshake")
        if self._awaits_flight:
            self._awaits_flight = False
            self._share.handshakes.advanced(self)
        self._incoming.write(self._share.scratch[:came])
        return self._step(tls)

    def _step(self, tls: ssl.SSLObject) -> bool:
        try:
            # With memory BIOs a handshake never blocks: it consumes what came, writes its answer to the BIO, and asks
            # for more.
            tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._outgoing.pending:
                self._awaits_flight = True
            self.flush_handshake()
            return False
        except (ssl.SSLError, ValueError) as error:
            self._send_alert()
            self._refuse(_reason_of(error))
        self._is_open = True
        self.flush_handshake()
        self._share.handshakes.finished(self)
        return True

    def flush_handshake(self) -> None:
        """Send the handshake's bytes that the socket did not accept yet."""
        if self._tls is not None:
            self._flush(0)

    def _refuse(self, reason: str) -> NoReturn:
        self._share.handshakes.refused(self, reason)
        raise HandshakeFailed(reason)

    def _send_alert(self, alert: bytes = b"") -> None:
        """Send an alert to the client: `alert`, or without it the one that OpenSSL made.

        Then receive what the client sent meanwhile. Linux answers a close with unread bytes by a reset, which would
        destroy the alert.
        """
        try:
            if alert:
                self.sock.send(alert)
            else:
                self._flush(0)
            # Close only the sending side first, so that the client can read the alert before the socket goes.
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.recv_into(self._share.scratch)
        except OSError as error:
            logger.debug("cannot send a TLS alert to a client that is being closed: %s", error)

    def peer_certificate(self) -> bytes | None:
        """Return the client's verified certificate as DER, or None if it showed none."""
        assert self._tls is not None
        return self._tls.getpeercert(binary_form=True)

    @property
    def context(self) -> TlsContext:
        """Return the context that the connection was made with. A renewal does not change it."""
        return self._context

    # -- writing -----------------------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """Encrypt and send; return how many bytes count as sent: one too few while ciphertext waits (`_all_but_one`).

        Raises BlockingIOError if none do, OSError if the client is gone.
        """
        tls = self._tls
        assert tls is not None
        if (self._unsent or self._outgoing.pending) and not self._flush(0):
            raise BlockingIOError
        size, done = len(data), self._ahead
        self._ahead = 0
        share = self._share
        if size - done <= _RECORD_BYTES:  # Nearly every answer fits into one record.
            if done == size:
                return done
            if not share.may_encrypt(size - done):
                return self._sent(done)
            tls.write(data[done:] if done else data)
            share.spent(size - done)
            return size if self._flush(flags) else self._all_but_one(size)
        view = memoryview(data)
        while done < size and share.may_encrypt(size - done):
            part = view[done : done + _FILE_BYTES]
            done += len(part)
            if not self._encrypt_and_send(tls, part, flags):
                return self._all_but_one(done)
        return self._sent(done)

    def send_file(self, file_fd: int, position: int, count: int) -> int:
        """Encrypt and send a file's bytes; return how many count as sent.

        Raises BlockingIOError if none do, OSError if the client is gone, EOFError if the file is too short.
        """
        tls = self._tls
        assert tls is not None
        if (self._unsent or self._outgoing.pending) and not self._flush(0):
            raise BlockingIOError
        done = self._ahead
        self._ahead = 0
        share = self._share
        while done < count and share.may_encrypt(count - done):
            part = share.file_bytes[: count - done]
            # A file cannot be sent by sendfile, because TLS needs the plaintext in this process. preadv into a buffer
            # of all connections allocates nothing.
            read = os.preadv(file_fd, [part], position + done)
            if not read:
                raise EOFError(FILE_TOO_SHORT)
            done += read
            if not self._encrypt_and_send(tls, part[:read], 0):
                return self._all_but_one(done)
        return self._sent(done)

    def _encrypt_and_send(self, tls: ssl.SSLObject, part: memoryview, flags: int) -> bool:
        """Encrypt up to _FILE_BYTES and send them by one system call. Return True if the socket accepted all."""
        records = []
        for at in range(0, len(part), _RECORD_BYTES):
            # One record at a time, because OpenSSL allocates the ciphertext of a whole write at once.
            tls.write(part[at : at + _RECORD_BYTES])
            # Read each record at once, because a BIO never frees the memory of the most that it held.
            records.append(self._outgoing.read())
        self._share.spent(len(part))
        try:
            sent = self.sock.sendmsg(records, (), flags)
        except BlockingIOError:
            sent = 0
        if sent < sum(map(len, records)):
            self._unsent = memoryview(b"".join(records))[sent:]
            return False
        return True

    def _all_but_one(self, done: int) -> int:
        """Return one byte less than was encrypted, as the number of bytes that count as sent.

        The caller retries that byte when the socket is writable. That call flushes the rest of the ciphertext.
        """
        self._ahead = 1
        return self._sent(done - 1)

    def _sent(self, count: int) -> int:
        if not count:
            raise BlockingIOError
        return count

    def _flush(self, flags: int) -> bool:
        """Send the pending ciphertext. Return True if the socket accepted all of it. Raises OSError."""
        data = self._unsent
        try:
            while True:
                if data:
                    sent = self.sock.send(data, flags)
                    if sent < len(data):
                        self._unsent = memoryview(data)[sent:]
                        return False
                    self._unsent = b""
                if not self._outgoing.pending:
                    return True
                data = self._outgoing.read()
        except BlockingIOError:
            self._unsent = data
            return False

    # -- the socket --------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Send close_notify if the socket has room, and shut the connection down."""
        try:
            if self._tls is not None and self._is_open and not self._unsent:
                self._close_notify(self._tls)
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("a connection was already closed by its client: %s", error)

    def _close_notify(self, tls: ssl.SSLObject) -> None:
        try:
            tls.unwrap()
        except ssl.SSLError as error:  # We do not wait for the client's close_notify.
            logger.debug("closing: %s", error)
        self._flush(0)

    def close(self) -> None:
        """Close this process's descriptor of the socket."""
        self._share.unread.discard(self.fd)
        self._share.handshakes.remove(self)
        self.sock.close()


def _reason_of(error: ssl.SSLError | ValueError) -> str:
    """Return the reason in the words of OpenSSL, or the reason in the client's alert if it sent one."""
    reason = getattr(error, "reason", None)
    if not reason:
        return str(error)
    if "ALERT" in reason:
        return f"the client refused it: {reason.split('ALERT_')[-1].replace('_', ' ').lower()}"
    verify = getattr(error, "verify_message", None)
    return f"{reason.replace('_', ' ').lower()}{f': {verify}' if verify else ''}"
