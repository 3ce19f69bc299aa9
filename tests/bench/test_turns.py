"""Turns of agents in one thread: which agent gets one, and when the next one is due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.alternatives.broker.turns import Turns
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import ManualClock


class _Agent:
    """Has so much to do, and does one piece of it in a turn."""

    def __init__(self, name: str, *, pieces: int = 0, on_turn: Callable[[], None] = lambda: None) -> None:
        self.id = AgentId(name, 0)
        self.pieces = pieces
        self.turns = 0
        self.deadline_ms = 100
        self._on_turn = on_turn

    def do_work(self, timeout_ms: int) -> int:
        assert timeout_ms == 0, "a turn must not sleep"
        self.turns += 1
        self._on_turn()
        done = min(self.pieces, 1)
        self.pieces -= done
        return done

    def next_deadline_ms(self) -> int:
        return self.deadline_ms

    def has_input(self) -> bool:
        return self.pieces > 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def turns(clock: ManualClock) -> Turns:
    return Turns(clock.now_ns)


def test_new_agent_gets_its_first_turn_and_then_none(turns: Turns) -> None:
    agent = _Agent("a")
    turns.add(agent, agent.has_input)
    turns.run()
    turns.run()
    assert agent.turns == 1


def test_agent_with_input_gets_turns_until_it_has_none(turns: Turns) -> None:
    agent = _Agent("a", pieces=3)
    turns.add(agent, agent.has_input)
    turns.run()
    assert (agent.turns, agent.pieces) == (3, 0)


def test_agent_without_links_gets_turns_while_it_works(turns: Turns) -> None:
    agent = _Agent("acceptor", pieces=3)
    turns.add(agent, None)
    turns.run()
    assert (agent.turns, agent.pieces) == (4, 0)  # The last one finds nothing.


def test_agent_woken_by_other_has_turn_in_same_run(turns: Turns) -> None:
    woken = _Agent("b")
    waking = _Agent("a", on_turn=turns.waker(woken.id).wake)
    turns.add(woken, woken.has_input)
    turns.add(waking, waking.has_input)
    turns.run()
    assert (woken.turns, waking.turns) == (2, 1)


def test_timer_that_is_due_gives_a_turn_and_is_set_anew(turns: Turns, clock: ManualClock) -> None:
    early, late = _Agent("a"), _Agent("b")
    late.deadline_ms = 500
    for agent in (early, late):
        turns.add(agent, agent.has_input)
    turns.run()
    assert turns.deadline_ns() == clock.now_ns() + 100_000_000
    clock.advance_ms(100)
    turns.call_late()
    turns.run()
    assert (early.turns, late.turns) == (2, 1)
    assert turns.deadline_ns() == clock.now_ns() + 100_000_000
