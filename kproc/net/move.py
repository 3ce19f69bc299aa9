"""Move: one connection's way to another Processor, as far as it has come."""

from __future__ import annotations

from kproc.transport.agent import AgentId


class Move:
    """What a connection carries while it moves."""

    __slots__ = ("attempt", "is_asked", "is_lost", "kept", "target")

    def __init__(self, target: AgentId | None, attempt: int) -> None:
        self.target = target  # None: whichever target has room; it must leave.
        self.attempt = (
            attempt  # Tells the Handler's word on this attempt from one on an attempt that was given up.
        )
        self.is_asked = False
        self.is_lost = False  # The Handler that keeps its answers died while it was given.
        self.kept: list[int] = []
