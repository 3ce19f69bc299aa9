"""Both ends of a link in one process, over rings or over pipes, for tests that play one of the two agents."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Final

import pytest

from kproc.broker.ipc.arena import ArenaReader
from kproc.broker.ipc.link import create_link, open_first_end, open_second_end
from kproc.broker.transport.agent import AgentId, Link, Wakeable
from kproc.broker.transport.thread import Pipe, PipeReceiver, PipeSender

LINK_KINDS: Final = ("ring", "pipe")
# For fixtures. A plain run takes rings, which the processes of a broker have.
LINK_PARAMS: Final = ["ring", pytest.param("pipe", marks=pytest.mark.long)]


class CountingWaker:
    """Counts what it was asked for; nobody sleeps."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self) -> None:
        self.count += 1


class LinkMaker:
    """Makes links of one kind and closes their regions at the end of the block."""

    def __init__(self, kind: str) -> None:
        assert kind in LINK_KINDS, kind
        self.kind = kind
        self._stack = ExitStack()
        self._generation = 0

    def __enter__(self) -> LinkMaker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def make(
        self,
        near: AgentId,
        far: AgentId,
        capacity: int = 1 << 18,
        *,
        wake_near: Wakeable | None = None,
        near_arena: ArenaReader | None = None,
    ) -> tuple[Link, Link]:
        """The link as `near` is given it, and as `far` is, who may read the arena of `near`."""
        self._generation += 1
        if self.kind == "ring":
            region = create_link(capacity, capacity, self._generation)
            self._stack.callback(region.close)
            near_sender, near_receiver = open_first_end(region)
            far_sender, far_receiver = open_second_end(region)
        else:
            there, back = Pipe(capacity), Pipe(capacity)
            near_sender, near_receiver = PipeSender(there), PipeReceiver(back)
            far_sender, far_receiver = PipeSender(back), PipeReceiver(there)
        generation = self._generation
        return (
            Link(
                far,
                sender=near_sender,
                receiver=near_receiver,
                waker=CountingWaker(),
                generation=generation,
            ),
            Link(
                near,
                sender=far_sender,
                receiver=far_receiver,
                waker=wake_near or CountingWaker(),
                generation=generation,
                arena=near_arena,
            ),
        )
