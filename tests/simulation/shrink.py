"""Shrinks a plan that fails: clients and events are left out one by one while the same kind of failure stays."""

from __future__ import annotations

import re

from tests.simulation.plan import ClientPlan, Event, Plan
from tests.simulation.run import simulate

_TRIES = 2


def kind_of(violation: str) -> str:
    """A violation without its numbers and names."""
    return re.sub(r"b'[^']*'|[-\w]*\d[-\w.]*", "#", violation)


def shrink(plan: Plan) -> Plan:
    """The smallest plan found; the plan itself if it does not fail."""
    violations = simulate(plan).violations
    if not violations:
        return plan
    wanted = kind_of(violations[0])
    for _ in range(_TRIES):
        before = plan
        parts: list[ClientPlan | Event] = [*plan.events, *plan.clients]
        for part in parts:
            smaller = plan.without(part)
            if any(kind_of(each) == wanted for each in simulate(smaller).violations):
                plan = smaller
        if plan is before:
            break
    return plan
