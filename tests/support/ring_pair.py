"""Real forked processes and rings between them, for the tests of kproc.broker.ipc."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from kproc.broker.ipc.layout import RING_HEADER, WORD_BYTES, ring_bytes
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, RingProducer, format_ring
from tests.support.wait import PATIENCE_SECONDS


def make_ring(capacity: int, *, generation: int = 1, start_sequence: int = 0) -> Region:
    """A region with one ring, whose sequences begin where told."""
    region = Region.create(RegionKind.LINK, ring_bytes(capacity), generation)
    format_ring(region, 0, capacity)
    for name in ("tail", "head"):
        region.write_word(RING_HEADER.word[name] * WORD_BYTES, start_sequence)
    return region


@contextlib.contextmanager
def open_ring(capacity: int, *, start_sequence: int = 0) -> Iterator[tuple[RingProducer, RingConsumer]]:
    """Both ends of a ring in this process."""
    with make_ring(capacity, start_sequence=start_sequence) as region:
        yield RingProducer(region), RingConsumer(region)


CHILD_SECONDS_MAX = 240


class Forked:
    """A child that runs `body` and sends back what it returns. Ends with `result()` or `kill()`, once."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._result_fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            # A parent that fails an assertion never comes to end us, and some of us spin on a full ring.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_SECONDS_MAX)
            try:
                os.close(self._result_fd)
                with open(write_end, "wb") as out:
                    pickle.dump(body(), out)
                status = 0
            except BaseException:  # noqa: BLE001 - the child must never return into the test runner
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write_end)

    def result(self, seconds: float = PATIENCE_SECONDS) -> Any:
        """What the child returned; AssertionError if it failed or took too long."""
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._result_fd, select.POLLIN)
        chunks: list[bytes] = []
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            chunk = os.read(self._result_fd, 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
        else:
            self.kill()
            raise AssertionError(f"the child was not done within {seconds} s")
        # It closed its end, so it is a few instructions from its exit.
        os.close(self._result_fd)
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, f"the child failed: status {status}"
        return pickle.loads(b"".join(chunks))

    def kill(self) -> None:
        """SIGKILL and reap it, whatever it was doing."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._result_fd)
