"""MigrationState: the progress of one connection's migration to another Processor."""

from __future__ import annotations

from kproc.broker.transport.agent import AgentId


class MigrationState:
    """The progress of one connection's migration to another Processor. The connection holds it while it migrates."""

    __slots__ = ("attempt", "is_asked", "is_lost", "kept", "target")

    def __init__(self, target: AgentId | None, attempt: int) -> None:
        # None: any target that has room, because the connection must leave this Processor.
        self.target = target
        # Distinguishes a MOVED record of this attempt from a late one of an attempt that was given up.
        self.attempt = attempt
        self.is_asked = False
        # True if the Handler that keeps its answers died during the migration: the connection must then be closed.
        self.is_lost = False
        self.kept: list[int] = []

    def must_leave(self) -> None:
        """Allow any Processor as the target, because the connection may not stay at the present one."""
        self.target = None

    def keep(self, attempt: int, sequences: list[int]) -> bool:
        """Store the requests whose answers a Handler keeps. Return False if `attempt` was given up."""
        if attempt != self.attempt:
            return False
        self.kept += sequences
        return True

    def mark_lost(self) -> None:
        """Record that the Handler that keeps the answers has died."""
        self.is_lost = True

    def is_ready(self, inflight: int, stashed: int) -> bool:
        """Return True if all outstanding answers are kept by the Handler or came before their turn."""
        return inflight == len(self.kept) + stashed
