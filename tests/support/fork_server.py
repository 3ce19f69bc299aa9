"""A process that has imported the broker and forks one for each request: most of a start of `kproc` is imports.

    python -m tests.support.fork_server DESCRIPTOR

Requests come over a seqpacket socket: the command's arguments as JSON, with its stdin, stdout and stderr. The answer is
the pid. A broker is a child of the process that started this one, as it would be after an exec, so that its parent can
wait for it and no other process reaps it. `tests/support/broker_starts.py` is the other end.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import platform
import signal
import socket
import sys
from typing import Any, Final

REQUEST_BYTES_MAX: Final = 1 << 18
_CLONE_PARENT: Final = 0x8000
_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220}
CAN_FORK: Final = platform.machine() in _SYS_CLONE


def load_broker() -> None:
    """Import what a broker has imported when it is ready. This process must not start a thread."""
    gc.disable()
    for name in (
        "kproc.cli.main",
        "kproc.broker.supervisor.service_manager",
        "kproc.broker.supervisor.run",
    ):
        importlib.import_module(name)
    importlib.import_module("kproc.broker.api").load_all()
    # A round of garbage collection in a broker would copy the pages that it shares with this process.
    gc.freeze()
    gc.enable()


def fork_as_sibling() -> int:
    """Fork a child whose parent is our parent. Return its pid, and 0 in the child.

    `os.fork` makes children of this process alone. The interpreter's own three functions around its fork() are called.
    """
    system_call = ctypes.PyDLL(None).syscall
    system_call.restype = ctypes.c_long
    interpreter = ctypes.pythonapi
    interpreter.PyOS_BeforeFork()
    pid = system_call(
        *map(ctypes.c_long, (_SYS_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    )
    if pid == 0:
        interpreter.PyOS_AfterFork_Child()
    else:
        interpreter.PyOS_AfterFork_Parent()
    return int(pid)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request with its descriptors; None when the other end is closed."""
    body, ancillary, _, _ = sock.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not body:
        return None
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return json.loads(body), descriptors.tolist()


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process what an exec of the command would have given it."""
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The former object has found out whether it can seek. It was /dev/null then, and now it can be a pipe, for which
    # reconfigure() would fail.
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115 - for the whole process
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def serve(sock: socket.socket) -> bool:
    """Fork a broker for each request. Return True in each broker, and False here when the other end is closed."""
    while (received := receive(sock)) is not None:
        pid = fork_as_sibling()
        if pid == 0:
            sock.close()
            become(*received)
            return True
        for descriptor in received[1]:
            os.close(descriptor)
        sock.send(str(pid).encode())
    return False


if __name__ == "__main__":
    load_broker()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        from kproc.cli.main import main

        try:
            main()
        except SystemExit as ended:
            # The interpreter would free each module, and copy the pages that it shares with this process to do so.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code)
