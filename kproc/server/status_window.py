"""StatusWindow: the supervisor itself answers a request for the status from a process of this host.

A request for `status` by the network needs an Acceptor, a Processor, a Handler and the controller. If one of them
hangs it is not answered, which is just when an operator wants to know what hangs. The window is a Unix socket in the
abstract namespace, named after the supervisor's pid: it leaves no file behind, and `/proc/net/unix` lists all of them.
The answer is JSON in a memfd whose descriptor is sent, so the supervisor never blocks on a slow reader.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import orjson

from kproc.ipc.fdpass import TruncatedDescriptor, recv_fd, send_fd
from kproc.metrics.slab import Slab
from kproc.observe.status import Status
from kproc.role.plan import Plan
from kproc.server.regions import Regions

WINDOW_PREFIX: Final = "kproc-status-"
_BACKLOG: Final = 16
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
# An idle role stores its row twice a second; one that has not done so for this long is shown as hung.
_SILENT_MS: Final = 1500


class StatusWindow:
    """One per supervisor. `describe` makes the answer when somebody asks."""

    def __init__(self, describe: Callable[[], dict[str, Any]]) -> None:
        self._describe = describe
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._socket.bind(f"\0{WINDOW_PREFIX}{os.getpid()}")
        self._socket.listen(_BACKLOG)

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve(self) -> None:
        """Answer one connection; an answer that the peer does not take at once is dropped."""
        try:
            asker, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The peer did not wait.
        with asker, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not _is_ours(asker):
                return
            answer = os.memfd_create("status", os.MFD_CLOEXEC)
            try:
                os.write(answer, orjson.dumps(self._describe()))
                send_fd(asker, b"status", answer)
            finally:
                os.close(answer)

    def close(self) -> None:
        self._socket.close()


def _is_ours(asker: socket.socket) -> bool:
    """Whether root or the broker's own user asks: the name has no file whose mode would decide."""
    _, uid, _ = _CREDENTIALS.unpack(
        asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return uid in (0, os.geteuid())


def describe_from_outside(
    plan: Plan, regions: Regions, started_ns: int, message: dict[str, Any]
) -> dict[str, Any]:
    """The controller's answer to `status`, as far as the supervisor knows it; roles that hang are named as a problem.

    `message` is the supervisor's message to the controller about the processes.
    """
    with regions.slab_for_a_look() as words:
        status = Status(plan, Slab(words, is_new=False), started_ns=started_ns)
        status.update(message)
        status.look(plan.clock.now_ns())
        answer = {**status.describe(), "apis": [each.row() for each in status.figures.apis()]}
    silent = [row for row in answer["processes"] if (row["heartbeat_age_ms"] or 0) >= _SILENT_MS]
    for row in silent:
        row["state"] = "hung"
        row["hung_ms"] = row["heartbeat_age_ms"]
    complaints = [
        f"{row['role']}-{row['index']} (pid {row['pid']}) hangs: no duty cycle for {row['hung_ms'] / 1000:.1f} s"
        for row in silent
    ]
    answer["problem"] = "; ".join(filter(None, (*complaints, answer["problem"]))) or None
    answer["topics"] = answer["partitions"] = answer["offline"] = None  # Only the controller knows.
    return answer


def look_in(name: str, *, timeout_ms: int) -> dict[str, Any] | None:
    """Ask a supervisor for the status; None if it has ended, is stopped, or may not be asked by us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_ms / 1000)
        try:
            sock.connect(f"\0{name}")
            if not select.select([sock], [], [], timeout_ms / 1000)[0]:
                return None
            received = recv_fd(sock, 64)
        except (OSError, EOFError, TruncatedDescriptor):
            return None
    if received is None or received[1] is None:
        return None
    with os.fdopen(received[1], "rb") as file:
        file.seek(0)
        answer: dict[str, Any] = orjson.loads(file.read())
    return answer
