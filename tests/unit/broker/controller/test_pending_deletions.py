"""A deleted topic's name is free when every Handler that lives has let go of its directories."""

from __future__ import annotations

import pytest

from kproc.broker.controller.pending_deletions import WAIT_NS, PendingDeletions
from kproc.broker.role.roles import handler_id
from kproc.common.clock import ManualClock

ONE, TWO = handler_id(0), handler_id(1)


class Rig:
    def __init__(self, *, unsure_until: int | None = None) -> None:
        self.clock = ManualClock()
        self.names = PendingDeletions(self.clock.now_ns, unsure_until=unsure_until)
        self.told: list[frozenset[str]] = []

    def wait(self, *names: str) -> None:
        self.names.wait(frozenset(names), self.told.append)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for handler in (ONE, TWO):
        rig.names.attach(handler)
        rig.names.acknowledged(handler, 5)
    return rig


def test_name_is_held_until_all_acknowledge_deletion(rig: Rig) -> None:
    assert not rig.names.held(["t"])
    rig.names.deleted(["t"], 7)
    assert rig.names.held(["t", "other"]) == {"t"}
    rig.wait("t", "other")
    rig.names.acknowledged(ONE, 7)
    rig.names.acknowledged(TWO, 6)  # Of something before.
    assert (rig.told, rig.names.is_waited_for) == ([], True)
    rig.names.acknowledged(TWO, 8)
    assert (rig.told, rig.names.is_waited_for) == ([frozenset()], False)
    assert not rig.names.held(["t"])


def test_the_dead_hold_nothing(rig: Rig) -> None:
    rig.names.deleted(["t"], 7)
    rig.names.acknowledged(ONE, 7)
    rig.wait("t")
    rig.names.detach(TWO)
    assert rig.told == [frozenset()]
    rig.names.deleted(["t"], 9)
    rig.names.detach(ONE)
    assert not rig.names.held(["t"])


def test_handler_without_snapshot_may_hold_earlier_deletion(rig: Rig) -> None:
    rig.names.deleted(["t"], 7)
    rig.names.attach(handler_id(2))
    rig.names.acknowledged(ONE, 7)
    rig.names.acknowledged(TWO, 7)
    assert rig.names.held(["t"])
    rig.names.acknowledged(handler_id(2), 7)
    assert not rig.names.held(["t"])


def test_wait_for_a_name_ends_after_its_time_limit(rig: Rig) -> None:
    rig.names.deleted(["t"], 7)
    rig.wait("t", "other")
    rig.clock.advance_ms(WAIT_NS // 1_000_000 - 1)
    rig.names.tick(is_stopping=False)
    assert rig.told == []
    rig.clock.advance_ms(1)
    rig.names.tick(is_stopping=False)
    assert rig.told == [{"t"}]
    rig.wait("t")
    rig.names.tick(is_stopping=True)
    assert rig.told == [{"t"}, {"t"}]


def test_restarted_controller_waits_for_all_handlers() -> None:
    rig = Rig(unsure_until=20)
    rig.names.attach(ONE)
    rig.names.acknowledged(ONE, 20)
    assert rig.names.held(["any"]), "another Handler may be linked next"
    rig.names.attach(TWO)
    rig.names.all_linked()
    rig.wait("any")
    assert rig.told == []
    rig.names.acknowledged(TWO, 20)
    assert rig.told == [frozenset()]
    assert not rig.names.held(["any"])
