"""ProcessorState: the state that all parts of one Processor share."""

from __future__ import annotations

import logging

from kproc.common.log_rate import LogRate

logger = logging.getLogger(__name__)


class ProcessorState:
    """One per Processor. Its parts read and write it; one thread runs them all."""

    __slots__ = ("counts", "due_ns", "is_leaving", "is_pressed", "is_stopping", "now_ns", "refusals")

    def __init__(self, counts: list[int], now_ns: int) -> None:
        self.counts = counts  # The metrics, by metrics/spec.py: SLOT.
        self.now_ns = now_ns  # The time at which this duty cycle's poll returned.
        # The end of a pass calls Processor._on_due from this time on: the next tick's, or 0 if it has to do it at once.
        self.due_ns = 0
        self.is_stopping = False  # No more requests are read; those that were read are answered.
        self.is_leaving = False  # Every connection migrates to another Processor.
        # A connection waits for what no descriptor reports: room, memory, the end of a throttle, a migration. Only
        # Processor._relieve clears it, after a look at all of them.
        self.is_pressed = False
        # Lines about connections that are closed for what their clients do.
        self.refusals = LogRate(logger, "and %d more connections were closed for what their clients did")

    @property
    def keeps_connections(self) -> bool:
        """Whether connections may come to stay."""
        return not (self.is_stopping or self.is_leaving)

    def press(self) -> None:
        """Look after the connections that wait at the end of each pass: one waits from now on."""
        self.is_pressed = True

    def make_due(self) -> None:
        """Have Processor._on_due called at the end of this pass."""
        self.due_ns = 0
