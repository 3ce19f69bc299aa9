"""Starts of `kproc serve` in tests: by exec, as users do, or by a fork of a process that has imported it already."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.fork_server import CAN_FORK

ROOT = Path(__file__).resolve().parent.parent.parent


class _Forked(subprocess.Popen[bytes]):
    """A child of ours that the fork server has made. It is waited for and killed like any other."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        # All that __init__ of Popen sets but for what it needs to start a process.
        self._waitpid_lock = threading.Lock()
        self._input = self._communication_started = None
        self.stdin = self.stdout = self.stderr = self.returncode = None
        self.encoding = self.errors = None
        self._sigint_wait_secs = 0.25
        self._child_created = True
        self.args, self.pid = args, pid


class ForkServer:
    """A process that forks brokers. Its own start costs about what it saves with the first broker."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._loader_settings = _loader_settings()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        """End it. The brokers go on."""
        self._sock.close()
        self._process.wait()

    def can_start(self) -> bool:
        """Return False if variables that the interpreter or the loader reads at an exec have changed."""
        return self._loader_settings == _loader_settings()

    def start(
        self, arguments: Sequence[str], *, cwd: Path | str, stdout: int, stderr: int, new_session: bool
    ) -> _Forked:
        """Start `kproc` with these arguments, without stdin, in the present environment."""
        umask = os.umask(0)
        os.umask(umask)
        request = {
            "arguments": list(arguments),
            "cwd": str(cwd),
            "environment": dict(os.environ),
            "umask": umask,
            "new_session": new_session,
        }
        with open(os.devnull) as nothing:
            descriptors = array.array("i", (nothing.fileno(), stdout, stderr))
            self._sock.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
            )
        return _Forked(int(self._sock.recv(32)), ["kproc", *arguments])


def _loader_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LD_"))}


_server: ForkServer | None = None


@contextmanager
def forked_starts() -> Iterator[None]:
    """Start brokers by forks, where the machine can."""
    global _server
    if not CAN_FORK or _server is not None:
        yield
        return
    _server = ForkServer()
    try:
        yield
    finally:
        _server.close()
        _server = None


@contextmanager
def real_starts() -> Iterator[None]:
    """Start brokers by exec, as users do, although there is a fork server."""
    global _server
    server, _server = _server, None
    try:
        yield
    finally:
        _server = server


def start_kproc(
    command: Sequence[str], *, cwd: Path | str, stdout: int, stderr: int, new_session: bool
) -> subprocess.Popen[bytes]:
    """Start a command: the interpreter, two words that name kproc or bench.alternatives, and the arguments."""
    if _server is not None and command[2] != "bench.alternatives" and _server.can_start():
        return _server.start(command[3:], cwd=cwd, stdout=stdout, stderr=stderr, new_session=new_session)
    return subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=new_session,
    )
