"""ProcessorState: what the parts of one Processor share beside the connections."""

from __future__ import annotations


class ProcessorState:
    """One per Processor; written by its parts, which one thread runs."""

    __slots__ = ("counts", "due_ns", "is_leaving", "is_pressed", "is_stopping", "now_ns")

    def __init__(self, counts: list[int], now_ns: int) -> None:
        self.counts = counts  # The metrics, by metrics/spec.py: SLOT.
        self.now_ns = now_ns  # When this duty cycle's poll returned.
        # When Processor._on_due is to be called, at the end of a pass: at the next tick, or, by a 0, of the next one.
        self.due_ns = 0
        self.is_stopping = False  # Nothing more is read; what was read is answered.
        self.is_leaving = False  # Every connection goes to another Processor.
        # Something waits that no descriptor will announce: stalled, throttled, moving or muted connections. Whoever
        # makes one wait sets it; only Processor._relieve, which looks at all of them, clears it.
        self.is_pressed = False

    def make_due(self) -> None:
        """Something has to be told or looked at when this pass ends."""
        self.due_ns = 0
