"""InspectionBudget: how much work the produced batches of one duty cycle may cause beside their writes.

- Logs that need the records inside (`LogConfig.looks_inside`) decompress and read each produced batch, which takes up
  to 25 ms a batch. One request can have 2,000 of them.
- A batch can need a new segment, which takes 1 ms. The timestamps of a producer decide that.

When the budget of a duty cycle is used up, the append stops before the next such batch with `InspectionPaused`, and the
AppendQueue continues it in a later duty cycle. Work is counted and not timed, so that a simulation repeats it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kproc.broker.storage.log_state import LogState
    from kproc.broker.storage.results import AppendResult

# Budget of one duty cycle, in records. Reading a record takes about 1 us, as does decompressing or compressing 64
# bytes.
INSPECTED_MAX: Final = 20_000
_BYTES_PER_RECORD: Final = 64
# Cost of a new segment, as a number of records.
ROLL_COST: Final = 1_000


class InspectionPaused(Exception):
    """An append stopped before a batch, because the duty cycle has used up its budget.

    `results` has the results of the batches before it.
    """

    def __init__(self) -> None:
        super().__init__("the duty cycle has used up its budget")
        self.results: list[AppendResult] = []


class InspectionBudget:
    """Counts the work of a duty cycle as a number of records that were read. One per Handler, shared by its logs."""

    __slots__ = ("_left", "paused")

    def __init__(self) -> None:
        self._left = INSPECTED_MAX
        # Logs whose batches wait for a later duty cycle. Later batches of these logs must not overtake them.
        self.paused: set[LogState] = set()

    def check(self, state: LogState, *, reads_records: bool = True) -> None:
        """Raise InspectionPaused if a batch of this log must wait for a later duty cycle.

        A batch that costs nothing (`reads_records` is False) only waits behind paused batches of its log.
        """
        if (reads_records and self._left <= 0) or state in self.paused:
            raise InspectionPaused

    def pause(self, state: LogState) -> None:
        """Let `check` raise InspectionPaused for every batch of a log until `unpause` is called."""
        self.paused.add(state)
        state.limits = None

    def unpause(self, state: LogState) -> None:
        """Undo `pause`: batches of the log need not wait for a later duty cycle any more."""
        self.paused.discard(state)
        state.limits = None

    def spend(self, record_count: int, raw_bytes: int) -> None:
        """Subtract a batch with these numbers of records and of decompressed bytes from the budget."""
        self._left -= record_count + raw_bytes // _BYTES_PER_RECORD

    def renew(self) -> None:
        """Start the budget of another duty cycle."""
        self._left = INSPECTED_MAX
