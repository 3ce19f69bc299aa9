"""MigrationState: how far one connection's migration to another Processor has come."""

from __future__ import annotations

from kproc.transport.agent import AgentId


class MigrationState:
    """The state of one migration; held by the connection while it migrates."""

    __slots__ = ("attempt", "is_asked", "is_lost", "kept", "target")

    def __init__(self, target: AgentId | None, attempt: int) -> None:
        # None: any target that has room, because the connection must leave this Processor.
        self.target = target
        # Tells a MOVED of this attempt from a late one of an attempt that was given up.
        self.attempt = attempt
        self.is_asked = False
        # The Handler that keeps its answers died during the migration: the connection must be closed.
        self.is_lost = False
        self.kept: list[int] = []
