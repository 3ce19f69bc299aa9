"""Forks child processes, each with a control socket and without the parent's other descriptors.

The parent must be single-threaded. A child closes every inherited descriptor but its own. CLOEXEC has no effect without
exec. If a sibling kept a copy of a Processor's handoff socket, the Acceptor could still send connections to it after
the Processor's death, and their clients would hang. That has happened. Regions, sockets and eventfds arrive later over
the control socket, one per message.
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
# Longest SEQPACKET packet. A longer message is sent in several, because Linux limits a socket's unsent bytes to 208 KiB
# by default.
_PACKET_BYTES_MAX: Final = 64 * 1024
_LAST, _MORE = b"\0", b"\1"
_STDIO: Final = (0, 1, 2)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_libc = ctypes.CDLL(None, use_errno=True)


class ControlSocket:
    """One end of the socket between the supervisor and a child: messages in order, none lost.

    A message is a dict with the key `do` and may carry one descriptor. A message longer than a packet (the connections
    of a Processor) is sent in several packets. The supervisor never blocks on a child: packets that the kernel has no
    room for wait in `_unsent`, with a duplicate of their descriptor.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        # True while packets wait for `flush`. A field, because a role reads it in every duty cycle.
        self.has_unsent = False
        self._partial = bytearray()

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send now, or queue until `flush`. Raises BrokenPipeError or ConnectionResetError if the peer has ended."""
        payload = _encode(message)
        start = 0
        while len(payload) - start > _PACKET_BYTES_MAX:
            self._send_packet(_MORE + payload[start : start + _PACKET_BYTES_MAX], None)
            start += _PACKET_BYTES_MAX
        self._send_packet(_LAST + payload[start:], fd)

    def _send_packet(self, packet: bytes, fd: int | None) -> None:
        # Keep the order, because a long message is joined from its packets, and the links' descriptors must arrive
        # before the message "start". The caller may close its descriptor when this returns, so a queued packet needs a
        # duplicate.
        if self._unsent or not send_fd(self.sock, packet, fd):
            self._unsent.append((packet, None if fd is None else os.dup(fd)))
            self.has_unsent = True

    def flush(self) -> bool:
        """Send queued packets without blocking. Return True if none is left."""
        while self._unsent:
            payload, fd = self._unsent[0]
            if not send_fd(self.sock, payload, fd):
                return False
            if fd is not None:
                os.close(fd)
            self._unsent.popleft()
        self.has_unsent = False
        return True

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the next message with its descriptor, if any, or None if no message has arrived. Never blocks.

        Raises EOFError when the peer has ended.
        """
        while (received := recv_fd(self.sock, 1 + _PACKET_BYTES_MAX)) is not None:
            packet, fd = received
            # Packets of one message arrive consecutively, because send() queues them together.
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
        self.has_unsent = False
        self.sock.close()


class Child:
    """The supervisor's handle of one running child: pid, pidfd and control socket."""

    def __init__(self, agent: AgentId, pid: int, pidfd: int, control: ControlSocket) -> None:
        self.agent = agent
        self.pid = pid
        self.pidfd = pidfd
        self.control = control

    @property
    def watched_fds(self) -> tuple[int, int]:
        """The descriptors in the supervisor's epoll: the pidfd and the control socket."""
        return self.pidfd, self.control.fd

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send a message, as ControlSocket.send does."""
        self.control.send(message, fd)

    def receive(self) -> dict[str, Any] | None:
        """Return the child's next message, or None if none has arrived. Raises EOFError if the child has ended."""
        received = self.control.receive()
        if received is None:
            return None
        message, fd = received
        assert fd is None, message
        return message

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to the child by its pidfd, because its pid may belong to another process by now."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal_number)
        except ProcessLookupError:
            return  # It has ended and waits to be reaped.

    @property
    def is_paused(self) -> bool:
        """True if SIGSTOP has stopped the child."""
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, self.pidfd, options) is not None

    def wait_paused(self) -> None:
        """Wait until a SIGSTOP has stopped every thread of the child, or the child has ended."""
        # WNOWAIT leaves the status of a child that has ended to reap().
        os.waitid(os.P_PIDFD, self.pidfd, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def reap(self) -> int:
        """Wait for the ended child and close its descriptors. Return its exit status, or minus the signal's number."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.control.close()
        return os.waitstatus_to_exitcode(status)


def fork_child(agent: AgentId, main: Callable[[ControlSocket], int], *, keep: Iterable[int]) -> Child:
    """Fork a child that runs `main` with its control socket and exits with its result.

    `keep` are the descriptors that the child keeps beside its standard ones.
    """
    ours, theirs = make_socket_pair()
    parent_pid = os.getpid()
    # Block signals until the child has reset its handlers. Otherwise a signal would run the parent's handler in the
    # child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    # Flush before the fork. Otherwise the child would inherit the buffered text and write it a second time.
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # Fork and do not start a new interpreter, because a forked child shares the memory of the loaded modules.
        pid = os.fork()
        if pid == 0:
            _run_child(agent, main, theirs, {*keep, theirs.fileno(), *_STDIO}, parent_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    # The kernel cannot have reused the pid, even if the child is dead, because only reap() waits for the child.
    return Child(agent, pid, os.pidfd_open(pid), ControlSocket(ours))


def _run_child(
    agent: AgentId,
    main: Callable[[ControlSocket], int],
    control: socket.socket,
    keep: set[int],
    parent_pid: int,
) -> NoReturn:
    """Run `main` in the child and exit with its result.

    Never return, because finalising the parent's objects on the stack would close descriptor numbers that mean
    something else in the child.
    """
    status = 70  # EX_SOFTWARE, unless `main` returns.
    try:
        _set_child_signals()
        _die_with(parent_pid)
        # Linux stores at most 15 bytes of a process's name.
        _libc.prctl(_PR_SET_NAME, f"kproc:{agent}".encode()[:15], 0, 0, 0)
        close_all_but(keep)
        status = main(ControlSocket(control))
    except BaseException as error:  # noqa: BLE001 - nothing may travel up into the parent's stack.
        if isinstance(error, (FatalError, KafkaError)) and isinstance(error.__cause__, OSError):
            # Log one line without a traceback, because the cause is an OSError of the host, not a bug.
            logger.error("%s cannot continue: %s", agent, error)
        else:
            sys.stderr.write(textwrap.indent(printable_lines(traceback.format_exc()), "  "))
    finally:
        _exit_process(status)


def _set_child_signals() -> None:
    """Ignore SIGTERM, SIGINT, SIGHUP and SIGPIPE. Reset SIGCHLD, SIGUSR1 and SIGUSR2, and unblock all signals.

    Ctrl-C and a service manager's SIGTERM reach every process of the group, but only the supervisor decides in which
    order the roles stop.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    # Unblock all signals, also those that the parent has blocked itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent dies. Exit at once if the parent has died already.

    A role that survived the supervisor would hold the data directory's lock and the port, and the next broker could not
    start.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # If the parent died before prctl(PR_SET_PDEATHSIG) took effect, the kernel sends no signal.
    if os.getppid() != parent_pid:
        os._exit(0)


def _exit_process(status: int) -> NoReturn:
    """End the process, even if flushing stderr raises because nobody reads it any more."""
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
