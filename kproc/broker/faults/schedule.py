"""Schedule: on which of the requests that a fault rule matches it acts. A function of a request's number alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import FaultRule


_BLOCK: Final = 1024
"""Number of candidates whose draws share a random generator. To seed one costs as much as 100 draws."""


class Schedule:
    """Decides by the number of a matching request, from 1 on, whether a rule acts on it.

    Candidates are every `every`-th request behind the first `after` ones. The rule acts on a candidate with
    `probability`, drawn from `seed` and the candidate's number, until it has acted `times` times. Handlers therefore
    agree without talking to each other, and a test that is repeated with one client sees the same faults.
    """

    def __init__(self, rule: FaultRule) -> None:
        self._rule = rule
        # Number of candidates whose hits were counted, and their hits.
        self._counted = self._hits = 0
        # The draws of one block of candidates, and its number.
        self._block = -1
        self._draws: list[bool] = []

    def acts_on(self, number: int) -> bool:
        """Return True if the rule acts on the matching request with this number."""
        rule = self._rule
        beyond = number - rule.after - 1
        if beyond < 0 or beyond % rule.every:
            return False
        candidate = beyond // rule.every + 1
        if rule.probability < 1 and not self._draws_of((candidate - 1) // _BLOCK)[(candidate - 1) % _BLOCK]:
            return False
        return rule.times is None or self._count(candidate - 1) < rule.times

    def hits(self, matches: int) -> int:
        """Return on how many of the first `matches` matching requests the rule has acted."""
        rule = self._rule
        beyond = matches - rule.after - 1
        hits = self._count(beyond // rule.every + 1) if beyond >= 0 else 0
        return hits if rule.times is None else min(hits, rule.times)

    def _draws_of(self, block: int) -> list[bool]:
        """Return a flag for each of the _BLOCK candidates in this block: True if the random draw lets the rule act."""
        if block != self._block:
            rule = self._rule
            draw = random.Random(f"{rule.seed}:{block}").random  # noqa: S311 - repeatable
            self._draws = [draw() < rule.probability for _ in range(_BLOCK)]
            self._block = block
        return self._draws

    def _count(self, candidates: int) -> int:
        """Return on how many of the first `candidates` candidates the rule acts, without the limit `times`.

        Continue the count of the last call, because most calls pass a larger number than the call before.
        """
        if self._rule.probability >= 1:
            return candidates
        if candidates < self._counted:
            self._counted = self._hits = 0
        while self._counted < candidates:
            block, start = divmod(self._counted, _BLOCK)
            end = min(_BLOCK, start + candidates - self._counted)
            self._hits += sum(self._draws_of(block)[start:end])
            self._counted += end - start
        return self._hits
