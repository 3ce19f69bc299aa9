"""BusyClient: makes each request cost its Handler more CPU time, for studies of how roles share the CPUs.

`--work-us` is the CPU time in microseconds that the Handler burns before it handles a request. It is the thread's
CPU time, not elapsed time, so waiting for the GIL or a core does not count. The entry lets the Handler build this class
where it builds a ProcessorPeer.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time_ns

from kproc.broker.handler.processor_peer import ProcessorPeer
from kproc.broker.transport.agent import Link, Receiver
from kproc.broker.transport.envelope import HEAD_BYTES, REQUEST, REQUEST_BLOCK
from kproc.broker.transport.outbox import Inbox


def burn(work_ns: int) -> None:
    """Use `work_ns` of this thread's CPU time. The loop holds the GIL, as the code of an API would."""
    until_ns = thread_time_ns() + work_ns
    while thread_time_ns() < until_ns:
        pass


def frame_count(view: memoryview) -> int:
    """Return the number of frames in a REQUEST record."""
    count, position, end = 0, HEAD_BYTES, len(view)
    while position < end:
        position += 4 + int.from_bytes(view[position : position + 4], "big")
        count += 1
    return count


class BusyInbox(Inbox):
    """Burns CPU time for each batch that it returns. All responses of a batch are sent together, so once is enough."""

    __slots__ = ("_work_ns",)

    def __init__(self, receiver: Receiver, work_us: int) -> None:
        super().__init__(receiver)
        self._work_ns = work_us * 1000

    def poll(self, limit: int) -> Sequence[tuple[int, memoryview]]:
        batch = super().poll(limit)
        frames = sum(frame_count(view) if kind == REQUEST else kind == REQUEST_BLOCK for kind, view in batch)
        if frames:
            burn(self._work_ns * frames)
        return batch


class BusyClient(ProcessorPeer):
    """A Processor's link whose requests burn `work_us` microseconds each."""

    __slots__ = ()

    def __init__(self, link: Link, *, work_us: int) -> None:
        super().__init__(link)
        self.inbox = BusyInbox(link.receiver, work_us)
