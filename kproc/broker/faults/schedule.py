"""Schedule: on which of the requests that a fault rule matches it acts. A function of a request's number alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import FaultRule


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

    def acts_on(self, number: int) -> bool:
        """Return True if the rule acts on the matching request with this number."""
        rule = self._rule
        beyond = number - rule.after - 1
        if beyond < 0 or beyond % rule.every:
            return False
        candidate = beyond // rule.every + 1
        if not self._draws(candidate):
            return False
        return rule.times is None or self._count(candidate - 1) < rule.times

    def hits(self, matches: int) -> int:
        """Return on how many of the first `matches` matching requests the rule has acted."""
        rule = self._rule
        beyond = matches - rule.after - 1
        hits = self._count(beyond // rule.every + 1) if beyond >= 0 else 0
        return hits if rule.times is None else min(hits, rule.times)

    def _draws(self, candidate: int) -> bool:
        rule = self._rule
        if rule.probability >= 1:
            return True
        return random.Random(f"{rule.seed}:{candidate}").random() < rule.probability  # noqa: S311 - repeatable

    def _count(self, candidates: int) -> int:
        """Return how many of the first candidates are drawn. Their numbers grow, so count on from the last call."""
        if self._rule.probability >= 1:
            return candidates
        if candidates < self._counted:
            self._counted = self._hits = 0
        while self._counted < candidates:
            self._counted += 1
            self._hits += self._draws(self._counted)
        return self._hits
