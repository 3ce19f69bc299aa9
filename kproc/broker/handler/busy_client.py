"""BusyClient: requests cost their Handler more CPU, for studies of how roles share the processors' time.

`kproc.work.us` burns that much at each request, before it is served: as if the APIs did more in Python than they do.
CPU time of the thread and not time that passes, so that waiting for the interpreter's lock, or for a core, counts for
nothing. A class of its own, because the Handler's loop would pay for the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time_ns

from kproc.broker.handler.client_requests import Client
from kproc.broker.transport.agent import Link, Receiver
from kproc.broker.transport.envelope import HEAD_BYTES, REQUEST, REQUEST_BLOCK
from kproc.broker.transport.outbox import Inbox


def burn(work_ns: int) -> None:
    """Use this thread's CPU time, in Python: the interpreter's lock is held as any other code of ours would."""
    until_ns = thread_time_ns() + work_ns
    while thread_time_ns() < until_ns:
        pass


def frame_count(view: memoryview) -> int:
    """How many frames a REQUEST record holds."""
    count, position, end = 0, HEAD_BYTES, len(view)
    while position < end:
        position += 4 + int.from_bytes(view[position : position + 4], "big")
        count += 1
    return count


class BusyInbox(Inbox):
    """Burns for what it hands out: a batch's answers leave together, so when in it makes no difference."""

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


class BusyClient(Client):
    """A Processor's link whose requests burn `work_us` microseconds each."""

    __slots__ = ()

    def __init__(self, link: Link, *, work_us: int) -> None:
        super().__init__(link)
        self.inbox = BusyInbox(link.receiver, work_us)
