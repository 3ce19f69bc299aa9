"""Rare states are counted where they are reached, and missed where they are not."""

from __future__ import annotations

from collections import Counter

from tests.simulation.sometimes import FREQUENT, STATES, RareState, never_reached, watch


class Machine:
    """Something with a state."""

    def __init__(self) -> None:
        self.level = 0

    def rise(self, count: int) -> int:
        self.level += count
        return self.level


def test_state_is_counted_after_or_before_its_call() -> None:
    states = [
        RareState("high", Machine, "rise", lambda result, _machine, _count: result > 2),
        RareState(
            "from zero", Machine, "rise", lambda _, machine, _count: machine.level == 0, is_before=True
        ),
        RareState("any", Machine, "rise"),
    ]
    reached = watch(states)
    machine = Machine()
    assert [machine.rise(count) for count in (1, 1, 2)] == [1, 2, 4]
    assert reached == {"high": 1, "from zero": 1, "any": 3}


def test_state_that_no_seed_reached_is_named() -> None:
    seen = Counter({state.name: 1 for state in STATES if state.name != FREQUENT[0]})
    assert never_reached(seen, "all") == never_reached(seen, "frequent") == [FREQUENT[0]]
    assert never_reached(Counter(FREQUENT), "frequent") == []
    assert len(never_reached(Counter(FREQUENT), "all")) == len(STATES) - len(FREQUENT)


def test_every_state_names_a_function_of_the_broker() -> None:
    names = [state.name for state in STATES]
    assert len(set(names)) == len(names)
    assert set(FREQUENT) <= set(names)
    assert all(callable(getattr(state.owner, state.function)) for state in STATES)
