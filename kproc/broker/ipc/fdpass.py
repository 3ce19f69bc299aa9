"""Descriptors between processes: one message, at most one descriptor, over AF_UNIX SOCK_SEQPACKET.

SEQPACKET keeps message borders, so a descriptor belongs to exactly the bytes it came with. The kernel lies by
silence in two places, which is why everything goes through this file:

- `socket.recv_fds` ignores its flags, so descriptors would arrive inheritable: we call recvmsg with
  MSG_CMSG_CLOEXEC ourselves.
- A receiver at its nofile limit, or with too short a control buffer, gets the bytes without the descriptor
  and MSG_CTRUNC as the only sign: `TruncatedDescriptor` here, so that it can be refused and go elsewhere.

The sender keeps its own descriptor until the receiver acknowledged or refused it, or was reaped; the
acknowledgement is a message of the caller's own protocol. A socket leaves every epoll before it is sent: an
epoll watches the open file, which lives on in the receiver.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from typing import Final

# CMSG_LEN, not CMSG_SPACE: the padding of the latter would let a second descriptor through.
_CONTROL_BYTES: Final = socket.CMSG_LEN(array.array("i").itemsize)
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
# EAGAIN: the receiver's queue is full. ETOOMANYREFS: too many descriptors are under way (without root's
# privileges as many as nofile allows). ENOBUFS: the kernel is short of memory. All of them pass.
_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS})


class TruncatedDescriptor(Exception):
    """The message came but its descriptor was lost: refuse it, so that the sender can try elsewhere."""

    def __init__(self, payload: bytes) -> None:
        super().__init__("a descriptor was lost on the way: is this process at its nofile limit?")
        self.payload = payload


def make_socket_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair for this file's functions: non-blocking, closed on exec."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.setblocking(False)
    second.setblocking(False)
    return first, second


def send_fd(sock: socket.socket, payload: bytes, fd: int | None = None) -> bool:
    """Send one message with or without a descriptor; False for "not now", and then nothing was sent.

    The caller still owns `fd` afterwards. A peer that is gone raises BrokenPipeError or ConnectionResetError.
    """
    assert payload, "an empty message would read as the end of the stream"
    control = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (fd,)))]
    try:
        sock.sendmsg((payload,), control, _SEND_FLAGS)
    except OSError as error:
        if error.errno in _NOT_NOW:
            return False
        raise
    return True


def recv_fd(sock: socket.socket, max_bytes: int) -> tuple[bytes, int | None] | None:
    """Receive one message and its descriptor, which the caller owns from now on; None if there is none yet.

    Raises EOFError when the peer has closed, and TruncatedDescriptor.
    """
    try:
        payload, control, flags, _ = sock.recvmsg(max_bytes, _CONTROL_BYTES, _RECEIVE_FLAGS)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        # The peer closed, or died, with messages of ours unread. The kernel says so once, before it gives out what
        # the peer had sent: sockets, and word of sockets.
        return recv_fd(sock, max_bytes)
    fd = _take_descriptor(control)
    if flags & socket.MSG_CTRUNC or flags & socket.MSG_TRUNC:
        if fd is not None:
            os.close(fd)
        if flags & socket.MSG_CTRUNC:
            raise TruncatedDescriptor(payload)
        raise ValueError(f"message longer than {max_bytes} bytes")
    if not payload:
        raise EOFError("peer closed the socket")
    return payload, fd


def _take_descriptor(control: list[tuple[int, int, bytes]]) -> int | None:
    """The one descriptor in a message's control data; any further ones are closed, so that none leaks."""
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for surplus in fds[1:]:
        os.close(surplus)
    return fds[0] if fds else None
