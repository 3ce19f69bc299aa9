"""Descriptors between processes: one message, at most one descriptor, over AF_UNIX SOCK_SEQPACKET.

SEQPACKET keeps message borders, so a descriptor belongs to exactly the bytes it came with. Two failures are silent,
which is why all descriptors go through this file:

- `socket.recv_fds` ignores its flags, so that descriptors would arrive inheritable. We therefore call recvmsg with
  MSG_CMSG_CLOEXEC ourselves.
- A receiver at its nofile limit, or with too short a control buffer, gets the bytes without the descriptor. The only
  sign is MSG_CTRUNC. `recv_fd` then raises TruncatedDescriptor, so that the receiver can refuse the message and the
  sender can try elsewhere.

The sender keeps its own descriptor until the receiver has acknowledged or refused it, or was reaped. The
acknowledgement is a message of the caller's own protocol. A socket must leave every epoll before it is sent, because an
epoll watches the open file, which stays open in the receiver.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from typing import Final

# CMSG_LEN, not CMSG_SPACE, because the padding of the latter has room for a second descriptor.
_CONTROL_BYTES: Final = socket.CMSG_LEN(array.array("i").itemsize)
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
# Temporary errors. EAGAIN: the receiver's queue is full. ETOOMANYREFS: too many descriptors are in flight (the limit is
# nofile, except for root). ENOBUFS: the kernel is short of memory.
_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS})


class TruncatedDescriptor(Exception):
    """A message came, but its descriptor was lost. Refuse the message, so that the sender can try elsewhere."""

    def __init__(self, payload: bytes) -> None:
        super().__init__("a descriptor was lost on the way: is this process at its nofile limit?")
        self.payload = payload


def make_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair for the functions of this file: non-blocking, closed on exec."""
    # A stream socket would join neighbouring messages, and then nobody could tell to which of them a
    # descriptor belongs.
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Non-blocking although every call passes MSG_DONTWAIT, so that a forgotten flag cannot stop a role.
    first.setblocking(False)
    second.setblocking(False)
    return first, second


def send_fd(sock: socket.socket, payload: bytes, fd: int | None = None) -> bool:
    """Send one message, with or without a descriptor. Return False if it cannot be sent now; then nothing was sent.

    The caller still owns `fd` afterwards. Raises BrokenPipeError or ConnectionResetError if the peer is gone.
    """
    assert payload, "an empty message would read as the end of the stream"
    control = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (fd,)))]
    try:
        # The kernel takes a reference to the open file while the message is in flight, so the sender may close its
        # descriptor at any time after this. MSG_NOSIGNAL turns SIGPIPE into an error.
        sock.sendmsg((payload,), control, _SEND_FLAGS)
    except OSError as error:
        if error.errno in _NOT_NOW:
            return False
        raise
    return True


def recv_fd(sock: socket.socket, max_bytes: int) -> tuple[bytes, int | None] | None:
    """Receive one message and its descriptor, if any, which the caller then owns. None: no message has arrived.

    Raises EOFError when the peer has closed, and TruncatedDescriptor.
    """
    try:
        payload, control, flags, _ = sock.recvmsg(max_bytes, _CONTROL_BYTES, _RECEIVE_FLAGS)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        # The peer closed, or died, with messages of ours unread. The kernel reports this once, and then delivers the
        # messages that the peer had sent. We must read them, because they carry sockets and acknowledgements.
        return recv_fd(sock, max_bytes)
    fd = _single_descriptor(control)
    if flags & socket.MSG_CTRUNC or flags & socket.MSG_TRUNC:
        if fd is not None:
            # The descriptor belongs to a message that is refused as a whole, and nobody else would close it.
            os.close(fd)
        if flags & socket.MSG_CTRUNC:
            raise TruncatedDescriptor(payload)
        raise ValueError(f"a received message is longer than the limit of {max_bytes} bytes")
    if not payload:
        raise EOFError("peer closed the socket")
    return payload, fd


def _single_descriptor(control: list[tuple[int, int, bytes]]) -> int | None:
    """Return the one descriptor in a message's control data, or None. Close any further ones, so that none leaks."""
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # Cut the data to whole numbers, because a truncated control message can end inside one.
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for surplus in fds[1:]:
        os.close(surplus)
    return fds[0] if fds else None
