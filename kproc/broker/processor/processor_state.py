"""ProcessorState: the state that all parts of one Processor share."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kproc.common.containment import Containment
from kproc.common.log_rate import LogRate

logger = logging.getLogger(__name__)


class ProcessorState:
    """The state that all parts of one Processor share: metrics, time of the cycle, and whether it stops or leaves."""

    __slots__ = (
        "containment",
        "counts",
        "due_ns",
        "is_leaving",
        "is_pressed",
        "is_stopping",
        "moved_ns",
        "now_ns",
        "refusals",
    )

    # Returns the broker's time in ns, which tests can move. Sessions and throttles end by it. Everything else in a
    # Processor uses the host's clock.
    moved_ns: Callable[[], int]

    def __init__(self, counts: list[int], now_ns: int, containment: Containment) -> None:
        self.counts = counts  # The metrics, by metrics/spec.py: SLOT.
        self.containment = containment  # Logs and counts unexpected exceptions.
        self.now_ns = now_ns  # The time at which this duty cycle's poll returned.
        # A pass that ends at or after this time calls Processor._on_due. It is the time of the next tick, or 0 for at
        # once.
        self.due_ns = 0
        self.is_stopping = False  # No more requests are read; those that were read are answered.
        self.is_leaving = False  # Every connection migrates to another Processor.
        # True while a connection waits for something that no descriptor reports: room, memory, the end of a throttle, a
        # migration. Only Processor._relieve clears it, after checking all of them.
        self.is_pressed = False
        # Limits the log lines about connections that are closed because of their clients' behaviour.
        self.refusals = LogRate(logger, "and %d more connections were closed for what their clients did")

    @property
    def keeps_connections(self) -> bool:
        """Return True if new connections may stay here, because the Processor neither stops nor leaves."""
        return not (self.is_stopping or self.is_leaving)

    def press(self) -> None:
        """Have each duty cycle call Processor._relieve from now on.

        A connection waits for something that no descriptor reports, for example for room in a ring.
        """
        self.is_pressed = True

    def make_due(self) -> None:
        """Have Processor._on_due called at the end of this pass."""
        self.due_ns = 0
