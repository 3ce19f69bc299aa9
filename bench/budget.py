"""Time budget of a comparison: it sheds rounds, then seconds of each run, and cells only when nothing else is left.

Pure arithmetic on estimates. What a run costs beside its measured seconds is a guess at first and known from the
last run of the same cell on the same broker afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.cells import Cell

SECONDS_MIN: Final = 0.3
"""Below this a run shows the start of a connection and little else."""
SLOW_PEERS: Final = {"kafka": 1.7}
"""A JVM that makes thousands of partitions, or joins groups, takes longer; known after the first round."""


@dataclass(frozen=True)
class Step:
    """One run that is still to be made."""

    cell: Cell
    peer: str


@dataclass
class Budget:
    """The time that there is, and what the steps are thought to cost. `clock` is in seconds."""

    total_seconds: float
    run_seconds: float  # wanted for each run
    warmup_seconds: float
    clock: Callable[[], float]
    _overheads: dict[tuple[str, str], float] = field(default_factory=dict)
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self.clock()

    @property
    def left(self) -> float:
        return self.total_seconds - (self.clock() - self._begun)

    def overhead(self, step: Step) -> float:
        guess = step.cell.overhead_seconds * (
            SLOW_PEERS.get(step.peer, 1.0) if not step.cell.is_timed else 1.0
        )
        return self._overheads.get((step.cell.name, step.peer), guess)

    def learn(self, step: Step, took: float, seconds: float) -> None:
        """A run of the step took so long, of which it measured `seconds` (and warmed up in proportion)."""
        timed = self._timed(seconds) if step.cell.is_timed else 0.0
        self._overheads[step.cell.name, step.peer] = max(0.0, took - timed)

    def cost(self, steps: Sequence[Step], seconds: float | None = None) -> float:
        """Of all these steps, with so many measured seconds in each."""
        timed = self._timed(self.run_seconds if seconds is None else seconds)
        return sum(self.overhead(step) + timed * step.cell.is_timed for step in steps)

    def seconds_for(self, steps: Sequence[Step], reserve: float = 0.0) -> float:
        """Return the seconds of each run with which all steps fit into the time left, within sensible limits."""
        timed = sum(step.cell.is_timed for step in steps)
        if not timed:
            return self.run_seconds
        fixed = self.cost(steps, 0.0)
        share = (self.left - reserve - fixed) / timed
        return min(self.run_seconds, max(SECONDS_MIN, share / (1 + self._warm_share)))

    def fits(self, steps: Sequence[Step], reserve: float = 0.0) -> bool:
        return bool(steps) and self.cost(steps) + reserve <= self.left

    @property
    def _warm_share(self) -> float:
        return self.warmup_seconds / self.run_seconds

    def _timed(self, seconds: float) -> float:
        return seconds * (1 + self._warm_share)

    def warmup_for(self, seconds: float) -> float:
        """The warm-up shrinks with the run."""
        return seconds * self._warm_share
