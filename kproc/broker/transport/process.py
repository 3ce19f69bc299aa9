"""Children: forks child processes, each with a control socket and without the parent's other descriptors.

The parent must be single-threaded. A child closes every descriptor that its role was not given. CLOEXEC does nothing
without exec, and if a sibling kept a copy of a handoff socket, passing a connection to a dead Processor would succeed
and the client would hang, which has happened. Regions, sockets and eventfds arrive later over the control socket, one
per message.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import textwrap
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

import msgspec

from kproc.broker.ipc.fdpass import make_socket_pair, recv_fd, send_fd
from kproc.broker.transport.agent import AgentId
from kproc.common.errors import FatalError, KafkaError
from kproc.common.printable import printable_lines

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
# One packet: the kernel's default for a socket's unsent bytes is 208 KiB. Longer messages go in several.
_PACKET_BYTES_MAX: Final = 64 * 1024
_LAST, _MORE = b"\0", b"\1"
_STDIO: Final = (0, 1, 2)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_libc = ctypes.CDLL(None, use_errno=True)


class ControlSocket:
    """One end of the socket between the supervisor and a child: messages in order, none lost.

    A message is a dict with the key `do` and may carry one descriptor. A message longer than a packet (the connections
    of a Processor) is sent in several. The supervisor never blocks on a child: what the kernel does not take waits in
    `_unsent`, with a duplicate of its descriptor.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._partial = bytearray()

    @property
    def has_unsent(self) -> bool:
        """True while something waits for `flush`."""
        return bool(self._unsent)

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send now, or queue until `flush`. Raises BrokenPipeError or ConnectionResetError if the peer is gone."""
        payload = _encode(message)
        start = 0
        while len(payload) - start > _PACKET_BYTES_MAX:
            self._send_packet(_MORE + payload[start : start + _PACKET_BYTES_MAX], None)
            start += _PACKET_BYTES_MAX
        self._send_packet(_LAST + payload[start:], fd)

    def _send_packet(self, packet: bytes, fd: int | None) -> None:
        # In order: the first packets of a long message, and the descriptors before a "start", must come first. The
        # caller closes its descriptor when it likes, so what waits needs one of its own.
        if self._unsent or not send_fd(self.sock, packet, fd):
            self._unsent.append((packet, None if fd is None else os.dup(fd)))

    def flush(self) -> bool:
        """Send what waits; True when nothing waits any more."""
        while self._unsent:
            payload, fd = self._unsent[0]
            if not send_fd(self.sock, payload, fd):
                return False
            if fd is not None:
                os.close(fd)
            self._unsent.popleft()
        return True

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """The next message and its descriptor, or None; raises EOFError when the peer is gone."""
        while (received := recv_fd(self.sock, 1 + _PACKET_BYTES_MAX)) is not None:
            packet, fd = received
            if packet[:1] == _MORE:
                self._partial += packet[1:]
                continue
            payload = bytes(self._partial) + packet[1:]
            self._partial.clear()
            return _decode(payload), fd
        return None

    def close(self) -> None:
        for _, fd in self._unsent:
            if fd is not None:
                os.close(fd)
        self._unsent.clear()
        self.sock.close()


class Child:
    """One running child as the supervisor holds it: pid, pidfd, control socket."""

    def __init__(self, agent: AgentId, pid: int, pidfd: int, control: ControlSocket) -> None:
        self.agent = agent
        self.pid = pid
        self.pidfd = pidfd
        self.control = control

    @property
    def watched_fds(self) -> tuple[int, int]:
        """What the supervisor watches: the pidfd, and the control socket."""
        return self.pidfd, self.control.fd

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """`ControlSocket.send`."""
        self.control.send(message, fd)

    def receive(self) -> dict[str, Any] | None:
        """What it says next, or None; raises EOFError when it has ended. Children send no descriptors."""
        received = self.control.receive()
        if received is None:
            return None
        message, fd = received
        assert fd is None, message
        return message

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Signal the child by its pidfd: its pid may belong to another process by now."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal_number)
        except ProcessLookupError:
            return  # It has ended and waits to be reaped.

    def reap(self) -> int:
        """Wait for the ended child; its exit status, negative for a signal."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.control.close()
        return os.waitstatus_to_exitcode(status)


def fork_child(agent: AgentId, main: Callable[[ControlSocket], int], *, keep: Iterable[int]) -> Child:
    """Fork; `main` runs in the child with its control socket, and its result is the exit status.

    `keep` are the descriptors that the child may keep beside its standard ones.
    """
    ours, theirs = make_socket_pair()
    parent_pid = os.getpid()
    # Until the child has reset its handlers, a signal would run the parent's handler in the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(agent, main, theirs, {*keep, theirs.fileno(), *_STDIO}, parent_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    theirs.close()
    return Child(agent, pid, os.pidfd_open(pid), ControlSocket(ours))


def _run_child(
    agent: AgentId,
    main: Callable[[ControlSocket], int],
    control: socket.socket,
    keep: set[int],
    parent_pid: int,
) -> NoReturn:
    """Everything that the child does. Never returns: finalising the parent's objects on the stack would close
    descriptor numbers that mean something else in the child."""
    status = 70  # EX_SOFTWARE, unless `main` returns.
    try:
        # Stopping is the supervisor's business: Ctrl-C and a service manager's SIGTERM reach the whole group.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        # A role without its supervisor would keep the data directory's lock and the port from the next broker.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # The parent died before prctl took effect.
            os._exit(0)
        _libc.prctl(_PR_SET_NAME, f"kproc:{agent}".encode()[:15], 0, 0, 0)
        close_all_but(keep)
        status = main(ControlSocket(control))
    except BaseException as error:  # noqa: BLE001 - nothing may travel up into the parent's stack.
        if isinstance(error, (FatalError, KafkaError)) and isinstance(error.__cause__, OSError):
            # The host failed, so a stack would explain nothing.
            logger.error("%s cannot go on: %s", agent, error)
        else:
            sys.stderr.write(textwrap.indent(printable_lines(traceback.format_exc()), "  "))
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    """End the process, also when flushing stderr raises because nobody reads it any more."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def close_all_but(keep: set[int]) -> None:
    """Close every open descriptor that is not in `keep`."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                continue  # The descriptor of the listing itself.
