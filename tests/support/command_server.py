"""A process that has imported kproc's commands and forks one for each `kproc` that a shell runs.

    python -m tests.support.command_server DESCRIPTOR

A process for a command spends half a second of CPU on imports. Here `kproc` on the PATH is a short script that sends
its arguments, environment and descriptors to this process, and ends with the exit code of the fork.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.fork_server import become, load_broker

ROOT: Final = Path(__file__).resolve().parent.parent.parent
_REQUEST_BYTES_MAX: Final = 1 << 18
# Without the `site` module and the module `socket` an interpreter starts in 10 ms.
_SCRIPT: Final = """#!{python} -IS
import _socket, array, marshal, os, sys
mask = os.umask(0)
os.umask(mask)
request = marshal.dumps((sys.argv[1:], os.getcwd(), dict(os.environ), mask))
sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
sock.connect({address!r})
sock.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))])
code = sock.recv(16)
sys.exit(int(code) if code else 255)
"""


@contextlib.contextmanager
def kproc_on_path(directory: Path) -> Iterator[Path]:
    """Make a directory `bin` with the script `kproc`, for the PATH of a shell.

    At the end, kill what the commands have left running, such as a broker.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("")  # The kernel chooses an abstract name.
        listening.listen(16)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_server", str(listening.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
        address = listening.getsockname()
    (directory / "bin").mkdir()
    script = directory / "bin" / "kproc"
    script.write_text(_SCRIPT.format(python=sys.executable, address=address))
    script.chmod(0o700)
    try:
        yield script.parent
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _load_commands() -> None:
    """Import the commands, and build their parser once. This process must not start a thread."""
    import typer.main

    from kproc.cli.main import run

    load_broker()
    typer.main.get_command = functools.cache(typer.main.get_command)
    for name in ("kproc.client.requests", "kproc.client.security.librdkafka", "confluent_kafka"):
        importlib.import_module(name)
    # A command loads the rest when it parses its arguments and connects. Nobody listens at port 1.
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        run(["status", "--bootstrap", "127.0.0.1:1"])
    gc.freeze()


def _run_command(connection: socket.socket, request: bytes, descriptors: list[int]) -> None:
    """Run one command in this process, which was forked for it, and send its exit code."""
    from kproc.cli.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    arguments, directory, environment, mask = marshal.loads(request)
    code = 1
    try:
        become(
            {
                "new_session": False,
                "cwd": directory,
                "umask": mask,
                "environment": environment,
                "arguments": arguments,
            },
            descriptors,
        )
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - nothing may travel up into the loop of the parent
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):  # The shell has killed the script.
            connection.send(str(code).encode())
        os._exit(code)


def _reap(_number: int, _frame: object) -> None:
    """Wait for children that have ended, so that their CPU counts. Each has sent its exit code itself."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(listening: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        connection, _ = listening.accept()
        request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
        if os.fork() == 0:
            listening.close()
            _run_command(connection, request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()


if __name__ == "__main__":
    _load_commands()
    _serve(socket.socket(fileno=int(sys.argv[1])))
