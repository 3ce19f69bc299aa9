"""asyncio's ways to serve a socket: streams, a Protocol, a BufferedProtocol, and callbacks on its loop.

    client (forked) --128 B--> loop: read, count, write --128 B--> client     one request under way, one connection

The question: which of them is the cheapest, so that the transport `asyncio` is the best that asyncio can do? It uses
callbacks (broker/loop_processor.py). A plain epoll loop is the yardstick: what kproc's Processors do. Time is the
server's CPU time, of user and kernel.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Final

from bench.timing import Benchmark, main

MESSAGE: Final = bytes(128)
CHILD_SECONDS_MAX: Final = 120


class _Echo(asyncio.Protocol):
    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._done.set_result(None)


class _BufferedEcho(asyncio.BufferedProtocol):
    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done
        self._buffer = memoryview(bytearray(32 * 1024))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(self._buffer[:nbytes])

    def connection_lost(self, error: Exception | None) -> None:
        self._done.set_result(None)


def _by_protocol(kind: type[_Echo] | type[_BufferedEcho]) -> Callable[[socket.socket], None]:
    async def serve(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        await loop.connect_accepted_socket(lambda: kind(done), sock)
        await done

    return lambda sock: asyncio.run(serve(sock))


def _by_streams(sock: socket.socket) -> None:
    async def serve() -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        while data := await reader.read(32 * 1024):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    asyncio.run(serve())


def _by_callbacks(sock: socket.socket) -> None:
    loop = asyncio.SelectorEventLoop()
    buffer = memoryview(bytearray(32 * 1024))

    def on_readable() -> None:
        count = sock.recv_into(buffer)
        if count == 0:
            loop.remove_reader(sock.fileno())
            loop.stop()
        elif sock.send(buffer[:count]) != count:
            raise RuntimeError("the socket is full")

    loop.add_reader(sock.fileno(), on_readable)
    loop.run_forever()
    loop.close()


def _by_epoll(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(32 * 1024))
    with select.epoll() as epoll:
        epoll.register(sock.fileno(), select.EPOLLIN)
        while True:
            for _ in epoll.poll():
                count = sock.recv_into(buffer)
                if count == 0:
                    return
                assert sock.send(buffer[:count]) == count


def _ask(sock: socket.socket, loops: int) -> None:
    for _ in range(loops):
        sock.sendall(MESSAGE)
        assert len(sock.recv(len(MESSAGE), socket.MSG_WAITALL)) == len(MESSAGE)
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""


def echo(serve: Callable[[socket.socket], None]) -> Benchmark:
    """A benchmark: one loop is one request of 128 B, answered with the same."""

    def run(loops: int) -> float:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            server, _ = listening.accept()
        pid = os.fork()
        if pid == 0:
            status = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_SECONDS_MAX)
            try:
                server.close()
                _ask(client, loops)
                status = 0
            finally:
                os._exit(status)
        client.close()
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started = time.process_time()
        serve(server)
        took = time.process_time() - started
        server.close()
        _, status = os.waitpid(pid, 0)
        assert status == 0, "the client did not get its answers"
        return took

    return run


BENCHMARKS = {
    "epoll": echo(_by_epoll),
    "asyncio callbacks": echo(_by_callbacks),
    "asyncio BufferedProtocol": echo(_by_protocol(_BufferedEcho)),
    "asyncio Protocol": echo(_by_protocol(_Echo)),
    "asyncio streams": echo(_by_streams),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.alternatives.asyncio_protocol", __doc__, BENCHMARKS))
