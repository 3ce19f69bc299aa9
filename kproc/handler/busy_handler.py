"""BusyHandler: a Handler whose requests cost more CPU, for studies of how roles share the processors' time.

`kproc.work.us` burns that much at each request, before it is served: as if the APIs did more in Python than they do.
CPU time of the thread and not time that passes, so that waiting for the interpreter's lock, or for a core, counts for
nothing. It is a class of its own because the Handler's loop would pay for the question.
"""

from __future__ import annotations

from time import thread_time_ns
from typing import Any

from kproc.handler.handler import Handler
from kproc.transport.envelope import HEAD_BYTES


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


class BusyHandler(Handler):
    """A Handler that burns `work_us` microseconds at each request."""

    __slots__ = ("_work_ns",)

    def __init__(self, *arguments: Any, work_us: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._work_ns = work_us * 1000

    def _take_frames(self, client: Any, view: memoryview) -> None:
        burn(self._work_ns * frame_count(view))
        super()._take_frames(client, view)

    def _take_block(self, client: Any, view: memoryview) -> None:
        burn(self._work_ns)
        super()._take_block(client, view)
