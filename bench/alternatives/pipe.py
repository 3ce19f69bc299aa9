"""A pipe or a socket pair instead of a ring.

    sender --write--> kernel's buffer --read--> receiver, cuts the bytes into records

The question: what does a record of 100 B cost from one process to another when the kernel copies it twice and is
called at each batch of 32, beside the ring that kproc has?
"""

from __future__ import annotations

import os
import socket

from bench.channels import RingChannel
from bench.oneway import RECORD_BYTES, Buffer, one_way
from bench.timing import main

_READ_BYTES = 256 * RECORD_BYTES


class StreamChannel:
    """Records of one length over a stream; both ends block."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._rest = b""

    def send(self, records: list[bytes]) -> None:
        data = memoryview(b"".join(records))
        while data:
            data = data[os.write(self._write_fd, data) :]

    def receive(self) -> list[Buffer]:
        data = memoryview(self._rest + os.read(self._read_fd, _READ_BYTES))
        whole = len(data) // RECORD_BYTES * RECORD_BYTES
        self._rest = bytes(data[whole:])
        return [data[at : at + RECORD_BYTES] for at in range(0, whole, RECORD_BYTES)]

    def done(self) -> None:
        """Nothing is lent."""

    def close(self) -> None:
        for fd in {self._read_fd, self._write_fd}:
            os.close(fd)


def over_pipe() -> StreamChannel:
    return StreamChannel(*os.pipe())


def over_socket_pair() -> StreamChannel:
    ends = socket.socketpair()
    return StreamChannel(ends[0].detach(), ends[1].detach())


BENCHMARKS = {
    "ring": one_way(RingChannel),
    "pipe": one_way(over_pipe),
    "socket pair": one_way(over_socket_pair),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.alternatives.pipe", __doc__, BENCHMARKS))
