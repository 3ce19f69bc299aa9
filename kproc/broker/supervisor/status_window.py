"""StatusWindow: the supervisor itself answers a request for the status from a process of this host.

A request for `status` over the network needs an Acceptor, a Processor, a Handler and the controller. If one of them
hangs, the request gets no response, although an operator needs the status then most. The window is a Unix socket in the
abstract namespace, named after the supervisor's pid. It leaves no file behind, and `/proc/net/unix` lists all windows
of the host. The answer is JSON in a memfd whose descriptor is sent, so that the supervisor never blocks on a slow
reader.

An abstract name has no owner and no mode: every user of the host can listen at one. Both sides therefore check the
other's user with SO_PEERCRED first. The reader also requires a sealed memfd of bounded size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson

from kproc.broker.ipc.fdpass import TruncatedDescriptor, recv_fd, send_fd
from kproc.broker.metrics.slab import Slab
from kproc.broker.observe.status import Status
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.supervisor.regions import Regions

WINDOW_PREFIX: Final = "kproc-status-"
_BACKLOG: Final = 16
_RETRY_MS: Final = 5
# The status of a broker with every role and API is below 1 MiB.
ANSWER_BYTES_MAX: Final = 64 << 20
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
# An idle role stores its slab row twice a second. A role that has stored none for this long is shown as hung.
_SILENT_MS: Final = 1500


class StatusWindow:
    """The Unix socket at which the supervisor itself answers `kproc status`, even while other roles hang.

    One per supervisor. `describe` is called at each request and returns the status.
    """

    def __init__(self, describe: Callable[[], dict[str, Any]]) -> None:
        self._describe = describe
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._bind()
        self._socket.listen(_BACKLOG)

    def _bind(self) -> None:
        """Bind to a name with this process's pid. If the name is in use, add random digits.

        Without them another user could bind the names of the next pids and keep every broker of the host from starting.
        """
        name = f"\0{WINDOW_PREFIX}{os.getpid()}"
        try:
            self._socket.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._socket.bind(f"{name}-{secrets.token_hex(8)}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def respond(self) -> None:
        """Accept one connection and send it the status. Send nothing if its user is neither root nor the broker's."""
        try:
            asker, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The peer disconnected before it was accepted.
        with asker, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not _peer_of(asker).is_trusted:
                return
            answer = os.memfd_create("status", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.write(answer, orjson.dumps(self._describe()))
                # Seal the memfd, because readers accept no other file: it could be endless or change while they read.
                fcntl.fcntl(answer, fcntl.F_ADD_SEALS, _SEALS)
                send_fd(asker, b"status", answer)
            finally:
                os.close(answer)

    def close(self) -> None:
        self._socket.close()


class Peer(msgspec.Struct, frozen=True):
    """The process at the other end of a Unix socket, as the kernel reports it."""

    pid: int
    uid: int

    @property
    def is_trusted(self) -> bool:
        """True for root and for this process's own user."""
        return self.uid in (0, os.geteuid())


def _peer_of(sock: socket.socket) -> Peer:
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Peer(pid, uid)


def describe_from_outside(
    plan: BrokerPlan, regions: Regions, started_ns: int, message: dict[str, Any]
) -> dict[str, Any]:
    """Return the response to `status` as far as the supervisor knows it, with the roles that hang in `problem`.

    `message` is the supervisor's message "processes" to the controller. Fields that only the controller knows are None.
    """
    with regions.mapped_slab() as words:
        status = Status(plan, Slab(words, is_new=False), started_ns=started_ns)
        status.update(message)
        status.sample(plan.clock.now_ns())
        answer = {**status.describe(), "apis": [each.row() for each in status.figures.apis()]}
    silent = [row for row in answer["processes"] if (row["heartbeat_age_ms"] or 0) >= _SILENT_MS]
    for row in silent:
        row["state"] = "hung"
        row["hung_ms"] = row["heartbeat_age_ms"]
    problems = [
        f"{row['role']}-{row['index']} (pid {row['pid']}) hangs: no duty cycle for {row['hung_ms'] / 1000:.1f} s"
        for row in silent
    ]
    answer["problem"] = "; ".join(filter(None, (*problems, answer["problem"]))) or None
    # The supervisor has no metadata, so it does not know the numbers of topics and partitions.
    for name in (
        "topics",
        "partitions",
        "internal_topics",
        "internal_partitions",
        "offline",
        "uncleanable",
    ):
        answer[name] = None
    return answer


def window_owner(name: str) -> Peer | None:
    """Return the process that listens at the window `name`, or None if no process does or its backlog is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(f"\0{name}")
        # ECONNREFUSED: no process has bound the name. EAGAIN: the backlog is full (unix(7)).
        except OSError:
            return None
        return _peer_of(sock)


def request_status(name: str, *, timeout_ms: int) -> dict[str, Any] | None:
    """Request the status from the supervisor that listens at the window `name`.

    Returns None if the supervisor has ended or is stopped, belongs to a user other than root and ours, or sends
    anything but a sealed JSON object of at most ANSWER_BYTES_MAX.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_ms / 1000)
        try:
            _connect(sock, name, timeout_ms)
            # Any user can bind an abstract name, because it has no file with access rights. SO_PEERCRED shows the
            # listener's user.
            if not _peer_of(sock).is_trusted:
                return None
            if not select.select([sock], [], [], timeout_ms / 1000)[0]:
                return None
            received = recv_fd(sock, 64)
        # ECONNREFUSED: no process has bound the name, because the supervisor has ended. EOFError: it ended before it
        # responded. TruncatedDescriptor: this process has no free descriptor for the memfd.
        except (OSError, EOFError, TruncatedDescriptor):
            return None
    if received is None or received[1] is None:
        return None
    with os.fdopen(received[1], "rb") as file:
        return _read_sealed(file.fileno())


def _connect(sock: socket.socket, name: str, timeout_ms: int) -> None:
    """Connect to the window `name`. Raises OSError.

    Retry until `timeout_ms` is over if the backlog is full (EAGAIN), because another user can fill it.
    """
    attempts = max(1, timeout_ms // _RETRY_MS)
    for attempt in range(attempts):
        try:
            return sock.connect(f"\0{name}")
        except BlockingIOError:
            if attempt == attempts - 1:
                raise
            select.select([], [], [], _RETRY_MS / 1000)


def _read_sealed(descriptor: int) -> dict[str, Any] | None:
    """Return the JSON object in a sealed memfd, or None if it has other content.

    Also return None for any other file, without reading it: it can be endless or block.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # EINVAL: not a memfd.
        return None
    size = os.fstat(descriptor).st_size
    if seals & _SEALS != _SEALS or size > ANSWER_BYTES_MAX:
        return None
    try:
        answer = orjson.loads(os.pread(descriptor, size, 0))
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None
