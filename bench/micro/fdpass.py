"""Handing a client's socket from one process to another.

    Acceptor --message with a descriptor (SCM_RIGHTS), SEQPACKET--> Processor: recv_fd, close

The question: what does a handoff cost, and how much of it is the descriptor?
"""

from __future__ import annotations

import os
import socket
import time

from bench.timing import Benchmark, main
from kproc.broker.ipc.fdpass import make_socket_pair, recv_fd, send_fd
from kproc.broker.role.handoff import HANDOFF

BATCH = 8  # What waits in the queue when an Acceptor has taken several.


def handing(*, with_descriptor: bool) -> Benchmark:
    """A benchmark: one loop is one message, both ends in one process."""

    def run(loops: int) -> float:
        ours, theirs = make_socket_pair()
        passed = socket.socket()
        payload = bytes(HANDOFF.size)
        got = 0
        before = os.fstat(passed.fileno()).st_ino
        started = time.perf_counter()
        for at in range(0, loops, BATCH):
            count = min(BATCH, loops - at)
            for _ in range(count):
                assert send_fd(ours, payload, passed.fileno() if with_descriptor else None)
            for _ in range(count):
                message = recv_fd(theirs, HANDOFF.size)
                assert message is not None
                got += len(message[0])
                if message[1] is not None:
                    last = os.fstat(message[1]).st_ino
                    os.close(message[1])
                    assert last == before, "another file came"
        took = time.perf_counter() - started
        for sock in (ours, theirs, passed):
            sock.close()
        assert got == loops * len(payload), "a message was lost"
        return took

    return run


BENCHMARKS = {
    "message with a descriptor": handing(with_descriptor=True),
    "message without": handing(with_descriptor=False),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.micro.fdpass", __doc__, BENCHMARKS))
