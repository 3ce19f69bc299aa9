"""SO_REUSEPORT instead of an Acceptor that hands sockets over.

    client --connect--> Acceptor: accept --SCM_RIGHTS--> Processor (child) --answers one byte          what kproc does
    client --connect--> kernel chooses by hash --> Processor (child): accept --answers one byte        SO_REUSEPORT

The question: what does a connection cost from connect to the first byte when the Processors accept themselves? With
REUSEPORT the kernel chooses by a hash of the addresses: connections are spread by chance and not by count, and those in
the backlog of a Processor that dies are lost with it. That is why kproc pays for the handoff.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, NoReturn

from bench.timing import Benchmark, main
from kproc.broker.ipc.fdpass import make_socket_pair, recv_fd, send_fd

PROCESSORS: Final = 2
BACKLOG: Final = 128
CHILD_SECONDS_MAX: Final = 120


def _answer(client: socket.socket) -> None:
    """Handle a new client as a Processor would: send the name of this process, and close."""
    client.sendall(bytes((os.getpid() & 0xFF,)))
    client.close()


def _accepting(listening: socket.socket) -> None:
    while True:
        _answer(listening.accept()[0])


def _receiving(channel: socket.socket) -> None:
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        poll.poll()
        message = recv_fd(channel, 16)
        if message is not None and message[1] is not None:
            _answer(socket.socket(fileno=message[1]))


def _handing_over(listening: socket.socket, channels: list[socket.socket]) -> None:
    turn = 0
    while True:
        client, _ = listening.accept()
        while not send_fd(channels[turn % PROCESSORS], b"c", client.fileno()):
            turn += 1  # That one is full: the next.
        client.close()
        turn += 1


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    _run_child(body)


def _run_child(body: Callable[[], None]) -> NoReturn:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CHILD_SECONDS_MAX)
    try:
        body()
    finally:
        os._exit(1)


def _listen(port: int, *, is_shared: bool) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(BACKLOG)
    return sock


def connecting(*, is_shared: bool) -> Benchmark:
    """A benchmark: one loop is one connection, to its first byte and its end."""

    def run(loops: int) -> float:
        with ExitStack() as stack:
            pids: list[int] = []

            def end_children() -> None:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

            stack.callback(end_children)
            first = stack.enter_context(_listen(0, is_shared=is_shared))
            address = first.getsockname()
            if is_shared:
                others = [
                    stack.enter_context(_listen(address[1], is_shared=True)) for _ in range(PROCESSORS - 1)
                ]
                pids += [_fork(lambda sock=sock: _accepting(sock)) for sock in (first, *others)]  # type: ignore[misc]
            else:
                pairs = [make_socket_pair() for _ in range(PROCESSORS)]
                for end in (end for pair in pairs for end in pair):
                    stack.enter_context(end)
                pids += [_fork(lambda end=theirs: _receiving(end)) for _, theirs in pairs]  # type: ignore[misc]
                pids.append(_fork(lambda: _handing_over(first, [ours for ours, _ in pairs])))
            return _connect_often(loops, address)

    return run


def _connect_often(loops: int, address: tuple[str, int]) -> float:
    served = 0
    started = time.perf_counter()
    for _ in range(loops):
        with socket.create_connection(address, timeout=10) as client:
            served += len(client.recv(1))
            assert client.recv(1) == b"", "more than one byte"
    took = time.perf_counter() - started
    assert served == loops, f"{served} of {loops} were served"
    return took


BENCHMARKS = {
    "Acceptor and handoff": connecting(is_shared=False),
    "SO_REUSEPORT": connecting(is_shared=True),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.alternatives.reuseport", __doc__, BENCHMARKS))
